"""Where each of our weights comes from in a Hugging Face checkpoint, as tables. Knows names and shapes; never a tensor.

Our layout: `embed`, `pos_embed`, `layers.{i}.` attn_norm, qkv (rows q, then k, then v), attn_out, mlp_norm, gate_up
(rows gate, then up) or up, down; `final_norm`; `head`, absent when it is tied to `embed`. Every matrix is [out, in].
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from model.config import ModelConfig
from model.registry import Family


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of the file."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """One of our weights: its sources stacked along the first axis, each transposed first where `transpose` says so."""

    name: str
    sources: tuple[Source, ...]
    transpose: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Ours, after transposing and stacking."""
        shapes = [source.shape[::-1] if self.transpose else source.shape for source in self.sources]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _always(config: ModelConfig) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a table. `{i}` stands for the layer; `shapes` name lengths that `_lengths` gives."""

    name: str
    sources: tuple[str, ...]
    shapes: tuple[tuple[str, ...], ...]
    when: Callable[[ModelConfig], bool] = _always
    transpose: bool = False


def _untied(config: ModelConfig) -> bool:
    return not config.tie_word_embeddings


_attention_bias = attrgetter("attention_bias")
_attention_out_bias = attrgetter("attention_out_bias")
_mlp_bias = attrgetter("mlp_bias")


@dataclass(frozen=True, slots=True)
class WeightMap:
    """How one family names its tensors."""

    rows: tuple[_Row, ...]
    prefix: str
    """Put before most names by checkpoints with a head, left out by those without: accepted either way."""
    ignored: re.Pattern[str]
    """Tensors, without the prefix, that old files carry and nobody needs."""


_LLAMA = WeightMap(
    rows=(
        _Row("embed.weight", ("model.embed_tokens.weight",), (("vocab", "d"),)),
        _Row("layers.{i}.attn_norm.weight", ("model.layers.{i}.input_layernorm.weight",), (("d",),)),
        _Row(
            "layers.{i}.qkv.weight",
            tuple(f"model.layers.{{i}}.self_attn.{part}_proj.weight" for part in "qkv"),
            (("q", "d"), ("kv", "d"), ("kv", "d")),
        ),
        _Row(
            "layers.{i}.qkv.bias",
            tuple(f"model.layers.{{i}}.self_attn.{part}_proj.bias" for part in "qkv"),
            (("q",), ("kv",), ("kv",)),
            when=_attention_bias,
        ),
        _Row("layers.{i}.attn_out.weight", ("model.layers.{i}.self_attn.o_proj.weight",), (("d", "q"),)),
        _Row("layers.{i}.attn_out.bias", ("model.layers.{i}.self_attn.o_proj.bias",), (("d",),), _attention_out_bias),
        _Row("layers.{i}.mlp_norm.weight", ("model.layers.{i}.post_attention_layernorm.weight",), (("d",),)),
        _Row(
            "layers.{i}.gate_up.weight",
            tuple(f"model.layers.{{i}}.mlp.{part}_proj.weight" for part in ("gate", "up")),
            (("ff", "d"), ("ff", "d")),
        ),
        _Row(
            "layers.{i}.gate_up.bias",
            tuple(f"model.layers.{{i}}.mlp.{part}_proj.bias" for part in ("gate", "up")),
            (("ff",), ("ff",)),
            when=_mlp_bias,
        ),
        _Row("layers.{i}.down.weight", ("model.layers.{i}.mlp.down_proj.weight",), (("d", "ff"),)),
        _Row("layers.{i}.down.bias", ("model.layers.{i}.mlp.down_proj.bias",), (("d",),), when=_mlp_bias),
        _Row("final_norm.weight", ("model.norm.weight",), (("d",),)),
        _Row("head.weight", ("lm_head.weight",), (("vocab", "d"),), when=_untied),
    ),
    prefix="model.",
    ignored=re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)


def _gpt2_norm(ours: str, theirs: str) -> tuple[_Row, ...]:
    return tuple(_Row(f"{ours}.{part}", (f"transformer.{theirs}.{part}",), (("d",),)) for part in ("weight", "bias"))


def _gpt2_linear(ours: str, theirs: str, shape: tuple[str, str]) -> tuple[_Row, ...]:
    """GPT-2's Conv1D keeps its matrix as [in, out]."""
    ours, theirs = f"layers.{{i}}.{ours}", f"transformer.h.{{i}}.{theirs}"
    return (
        _Row(f"{ours}.weight", (f"{theirs}.weight",), (shape,), transpose=True),
        _Row(f"{ours}.bias", (f"{theirs}.bias",), (shape[1:],)),
    )


_GPT2 = WeightMap(
    rows=(
        _Row("embed.weight", ("transformer.wte.weight",), (("vocab", "d"),)),
        _Row("pos_embed.weight", ("transformer.wpe.weight",), (("context", "d"),)),
        *_gpt2_norm("layers.{i}.attn_norm", "h.{i}.ln_1"),
        *_gpt2_linear("qkv", "attn.c_attn", ("d", "qkv")),
        *_gpt2_linear("attn_out", "attn.c_proj", ("q", "d")),
        *_gpt2_norm("layers.{i}.mlp_norm", "h.{i}.ln_2"),
        *_gpt2_linear("up", "mlp.c_fc", ("d", "ff")),
        *_gpt2_linear("down", "mlp.c_proj", ("ff", "d")),
        *_gpt2_norm("final_norm", "ln_f"),
        _Row("head.weight", ("lm_head.weight",), (("vocab", "d"),), when=_untied),
    ),
    prefix="transformer.",
    # The causal mask and its fill value, saved as buffers by transformers before 4.30.
    ignored=re.compile(r"h\.\d+\.attn\.(masked_)?bias"),
)

WEIGHT_MAPS: dict[Family, WeightMap] = {"llama": _LLAMA, "gpt2": _GPT2}


def weights_of(config: ModelConfig) -> Iterator[Weight]:
    """Every weight that the network of `config` needs, in the order of the forward pass."""
    lengths = _lengths(config)

    def fill(row: _Row, layer: int | None) -> Weight:
        def named(text: str) -> str:
            return text if layer is None else text.replace("{i}", str(layer))

        sources = (
            Source(named(name), tuple(lengths[length] for length in shape))
            for name, shape in zip(row.sources, row.shapes, strict=True)
        )
        return Weight(named(row.name), tuple(sources), row.transpose)

    rows = [row for row in WEIGHT_MAPS[config.family].rows if row.when(config)]
    layered = ["{i}" in row.name for row in rows]
    first, last = layered.index(True), len(rows) - layered[::-1].index(True)
    yield from (fill(row, None) for row in rows[:first])
    for layer in range(config.num_layers):
        yield from (fill(row, layer) for row in rows[first:last])
    yield from (fill(row, None) for row in rows[last:])


def _lengths(config: ModelConfig) -> dict[str, int]:
    """What the tables' axis names stand for."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "vocab": config.vocab_size,
        "d": config.hidden_size,
        "q": q,
        "kv": kv,
        "qkv": q + 2 * kv,
        "ff": config.intermediate_size,
        "context": config.max_model_len,
    }
