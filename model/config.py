"""What a network is built from, as plain data, and the one reader of Hugging Face's config.json.

Knows the outside format and its older spellings; refuses to know tensors (never imports torch) and servers. Families
differ in data only: a new one adds a reader here and a table in weight_maps.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.folder import ModelLoadError
from model.registry import Family, find_architecture

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
NormKind = Literal["rmsnorm", "layernorm"]
NormPlacement = Literal["pre", "post", "sandwich", "output"]
"""Of a sublayer f: x + f(norm(x)) | norm(x + f(x)) | x + norm2(f(norm1(x))) | x + norm(f(x))."""
QkNorm = Literal["head", "full"]
"""An RMSNorm of q and k before rotation: of each head alone (Qwen3, Gemma 3), or over all heads at once (OLMo-2)."""
Kind = Literal["decoder", "encoder", "encoder-decoder"]
RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_ROPE_TYPES: dict[str, RopeType] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",  # the name Phi-3 first gave it
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: which frequencies, and how they are stretched past the trained length."""

    rope_type: RopeType = "default"
    theta: float = 10000.0
    max_position: int
    """Positions the checkpoint declares (max_position_embeddings)."""
    original_max_position: int
    """Positions it was first trained on, before it was stretched; equal to max_position where nothing is said."""
    factor: float | None = None
    attention_factor: float | None = None
    """Multiplies cos and sin (yarn, longrope); None derives it from the factor."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    """Longrope's divisor of each frequency, [head_dim / 2]."""
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBiasConfig:
    """A number for each (distance bucket, head), added to the scaled scores of every layer (Raffel et al. 2020,
    arXiv:1910.10683, section 2.1).
    """

    num_buckets: int
    max_distance: int
    bidirectional: bool
    """Half of the buckets are for keys after the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A transformer stack and what stands before and after it, in the field's words. Sizes count elements, lengths
    count tokens.

    An encoder-decoder is a decoder whose `encoder` describes the other stack.
    """

    architecture: str
    """The class of `transformers`, e.g. LlamaForCausalLM."""
    family: Family
    kind: Kind = "decoder"
    """Of the whole model. The `encoder` of an encoder-decoder is of kind "encoder"."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_model_len: int
    """The context that the checkpoint declares, prompt and answer together. A server's own limit is kept elsewhere."""
    norm: NormKind
    norm_eps: float
    norm_placement: NormPlacement = "pre"
    norm_weight_offset: float = 0.0
    """Added to every norm's weight, in float32, before the product is rounded to the model's dtype: 1 for Gemma."""
    final_norm: bool = True
    embedding_norm: bool = False
    """A norm between the embedding and the first block."""
    first_attention_norm: bool = True
    """False: block 0 has no norm before its attention (ModernBERT, whose embedding is normed already)."""
    parallel_blocks: bool = False
    """x + attention(norm1(x)) + mlp(norm2(x)), as GPT-NeoX."""
    qk_norm: QkNorm | None = None
    activation: Activation
    gated_mlp: bool
    attention_bias: bool
    """Of the q, k and v projections."""
    attention_out_bias: bool
    mlp_bias: bool
    rope: RopeConfig | None
    local_rope: RopeConfig | None = None
    """Of the layers that have a window, where they differ (Gemma 3, ModernBERT); None: `rope` is everybody's."""
    learned_positions: bool
    sinusoidal_positions: bool = False
    """A fixed table in place of a learned one (Marian): sines in the first half, cosines in the second."""
    position_offset: int = 0
    """Row of the position table that position 0 reads: 2 for OPT and BART, padding_idx + 1 for RoBERTa."""
    num_token_types: int = 0
    """Rows of the token type table; row 0 is added to every token (one text, one segment)."""
    embedding_size: int | None = None
    """Width of the token table where it differs from `hidden_size` (OPT-350m); projected in and out."""
    embedding_scale: float = 1.0
    """Multiplies the token's vector: sqrt(d) for Gemma, rounded to the model's dtype first."""
    position_bias: PositionBiasConfig | None = None
    tie_word_embeddings: bool
    head_bias: bool = False
    logit_scale: float = 1.0
    """Multiplies the last hidden state before the head: d^-0.5 for a tied T5."""
    has_head: bool = True
    """Whether logits exist; False for encoders."""
    attention_scale: float
    """Multiplies q.k; 1 for T5."""
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    sliding_windows: tuple[int | None, ...] = ()
    """One for each layer, or () when there are none: a query at p sees keys k with |p - k| < window; None sees all."""
    causal: bool = True
    cross_attention: bool = False
    """Each block also attends to the encoder's output, between its attention and its mlp."""
    encoder: "ModelConfig | None" = None
    """The other stack of an encoder-decoder. It shares the token table."""
    decoder_start_token_id: int | None = None
    pad_token_id: int | None = None
    dtype: str = "float32"
    """What the checkpoint was saved in: float32, bfloat16, float16, float64."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Of generation_config.json, then of config.json; any of them ends a text."""

    def window_of(self, layer: int) -> int | None:
        """The sliding window of a layer, None where it sees everything."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @property
    def num_matrix_parameters(self) -> int:
        """Weights that each token is multiplied by: all matrices, the head's included, without norms and biases."""
        attention = 2 * self.hidden_size * (self.num_heads + self.num_kv_heads) * self.head_dim
        mlp = (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp) + self.vocab_size * self.hidden_size

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read config.json and generation_config.json of a folder.

        Raises ModelLoadError, naming the field and the value, when the architecture or one of its options is not
        supported, or when the files make no sense.
        """
        hf = _Fields(_read_json(folder / "config.json"))
        architecture = find_architecture(hf.values)
        if hf.values.get("quantization_config"):
            raise ModelLoadError("config.json: quantization_config is set; only unquantized checkpoints are supported")
        generation = folder / "generation_config.json"
        generation_hf = _Fields(_read_json(generation) if generation.is_file() else {})
        common = {
            "architecture": architecture.name,
            "family": architecture.family,
            "dtype": hf.dtype(),
            "bos_token_id": hf.optional_int("bos_token_id"),
            "eos_token_ids": tuple(dict.fromkeys(generation_hf.ids("eos_token_id") + hf.ids("eos_token_id"))),
        }
        return _READERS[architecture.family](hf, common)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path}: holds a {type(values).__name__}; a JSON object is expected")
    return values


class _Fields:
    """Typed reading of one JSON object; every refusal names the field and the value."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def refuse(self, name: str, accepted: str) -> ModelLoadError:
        return ModelLoadError(f"config.json: {name} is {self.values.get(name)!r}; {accepted}")

    def optional_int(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "an integer is expected")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.optional_int(name)
        value = default if value is None else value
        if value is None or value <= 0:
            raise self.refuse(name, "a positive integer is expected")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.optional_number(name)
        if value is None:
            value = default
        if value is None:
            raise self.refuse(name, "a positive number is expected")
        return value

    def optional_number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.refuse(name, "a positive number is expected")
        return float(value)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count or not all(isinstance(x, int | float) for x in value):
            raise self.refuse(name, f"a list of {count} numbers (head_dim / 2) is expected")
        return tuple(map(float, value))

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false is expected")
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        found = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(x, int) and not isinstance(x, bool) for x in found):
            raise self.refuse(name, "a token id or a list of them is expected")
        return tuple(found)

    def activation(self, name: str, default: str) -> Activation:
        value = self.values.get(name, default)
        if value not in _ACTIVATIONS:
            raise self.refuse(name, f"supported are {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def dtype(self) -> str:
        name = "dtype" if "dtype" in self.values else "torch_dtype"  # the spelling before transformers 5
        value = str(self.values.get(name) or "float32").removeprefix("torch.")
        if value not in ("float32", "bfloat16", "float16", "float64"):
            raise self.refuse(name, "supported are float32, bfloat16, float16 and float64")
        return value

    def only(self, name: str, accepted: Any) -> None:
        """Refuse an option that would change the network and is not built."""
        if self.values.get(name, accepted) not in (accepted, None):
            raise self.refuse(name, f"only {accepted!r} is supported")


def _read_llama(hf: _Fields, common: Mapping[str, Any]) -> ModelConfig:
    hidden_size, num_heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    num_kv_heads = hf.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise hf.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads}) is expected")
    head_dim = hf.size("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise hf.refuse("head_dim", f"rotary embedding needs an even head_dim, not {head_dim}")
    max_model_len = hf.size("max_position_embeddings", 2048)
    attention_bias, mlp_bias = hf.flag("attention_bias", False), hf.flag("mlp_bias", False)
    return ModelConfig(
        **common,
        vocab_size=hf.size("vocab_size"),
        hidden_size=hidden_size,
        num_layers=hf.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=hf.size("intermediate_size"),
        max_model_len=max_model_len,
        norm="rmsnorm",
        norm_eps=hf.number("rms_norm_eps", 1e-6),
        activation=hf.activation("hidden_act", "silu"),
        gated_mlp=True,
        attention_bias=attention_bias,
        attention_out_bias=attention_bias,
        mlp_bias=mlp_bias,
        rope=_read_rope(hf, head_dim, max_model_len),
        learned_positions=False,
        tie_word_embeddings=hf.flag("tie_word_embeddings", False),
        attention_scale=head_dim**-0.5,
    )


def _read_rope(hf: _Fields, head_dim: int, max_position: int) -> RopeConfig:
    """Read `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before); the newer wins."""
    written = "rope_parameters" if hf.values.get("rope_parameters") else "rope_scaling"
    nested = hf.values.get(written) or {}
    if not isinstance(nested, dict):
        raise hf.refuse(written, "an object is expected")
    outer = {name: hf.values[name] for name in ("rope_theta", "partial_rotary_factor") if name in hf.values}
    fields = _Fields({**outer, **nested})
    fields.only("partial_rotary_factor", 1.0)
    spelled = "rope_type" if "rope_type" in fields.values else "type"
    named = fields.values.get(spelled) or "default"
    if named not in _ROPE_TYPES:
        raise fields.refuse(spelled, f"supported are {', '.join(_ROPE_TYPES)}")
    rope_type = _ROPE_TYPES[named]
    # Phi-3 writes the original length beside the parameters, and that place wins, as in transformers.
    original = hf.optional_int("original_max_position_embeddings") or fields.size(
        "original_max_position_embeddings", max_position
    )
    factor = fields.optional_number("factor")
    if factor is None and rope_type in ("linear", "dynamic", "llama3"):
        raise fields.refuse("factor", f"rope type {rope_type!r} needs a positive number")
    longrope = rope_type == "longrope"
    return RopeConfig(
        rope_type=rope_type,
        theta=fields.number("rope_theta", 10000.0),
        max_position=max_position,
        original_max_position=original,
        factor=factor,
        attention_factor=fields.optional_number("attention_factor"),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        mscale=_absent_if_zero(fields, "mscale"),
        mscale_all_dim=_absent_if_zero(fields, "mscale_all_dim"),
        truncate=fields.flag("truncate", True),
        short_factor=fields.numbers("short_factor", head_dim // 2) if longrope else (),
        long_factor=fields.numbers("long_factor", head_dim // 2) if longrope else (),
    )


def _absent_if_zero(fields: _Fields, name: str) -> float | None:
    """Some checkpoints write 0 for "not used"."""
    return fields.optional_number(name) if fields.values.get(name) else None


def _read_gpt2(hf: _Fields, common: Mapping[str, Any]) -> ModelConfig:
    hidden_size, num_heads = hf.size("n_embd", 768), hf.size("n_head", 12)
    if hidden_size % num_heads:
        raise hf.refuse("n_embd", f"a multiple of n_head ({num_heads}) is expected")
    head_dim = hidden_size // num_heads
    # Softmax in float32 is what we do anyway; a scale that differs by layer and cross-attention are not built.
    hf.only("scale_attn_by_inverse_layer_idx", False)
    hf.only("add_cross_attention", False)
    return ModelConfig(
        **common,
        vocab_size=hf.size("vocab_size", 50257),
        hidden_size=hidden_size,
        num_layers=hf.size("n_layer", 12),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=hf.size("n_inner", 4 * hidden_size),
        max_model_len=hf.size("n_positions", 1024),
        norm="layernorm",
        norm_eps=hf.number("layer_norm_epsilon", 1e-5),
        activation=hf.activation("activation_function", "gelu_new"),
        gated_mlp=False,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        rope=None,
        learned_positions=True,
        tie_word_embeddings=hf.flag("tie_word_embeddings", True),
        attention_scale=head_dim**-0.5 if hf.flag("scale_attn_weights", True) else 1.0,
    )


_READERS: dict[Family, Callable[[_Fields, Mapping[str, Any]], ModelConfig]] = {"llama": _read_llama, "gpt2": _read_gpt2}
