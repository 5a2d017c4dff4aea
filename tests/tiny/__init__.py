"""Makes small checkpoints of each family in a folder, with transformers, so that errors show.

Weights are large and random, biases and norms random too, sizes odd if possible, head_dim independent of d / heads,
windows shorter than the prompts of the tests, caps low enough to bite. A run makes each checkpoint once and copies it.
The families are in `tests.tiny.families`, `mixtures` and `recurrences`, their tokenizers in `tokenizers`.
"""

import inspect
import json
import math
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.shared import once
from tests.tiny.families import CONTEXT, ROPE_VARIANTS, Family
from tests.tiny.families import FAMILIES as PLAIN
from tests.tiny.mixtures import MIXTURES
from tests.tiny.recurrences import RECURRENCES
from tests.tiny.tokenizers import BOS, EOS, VOCAB_SIZE, make_tokenizer
from tests.tiny.variants import VARIANTS

__all__ = [
    "BOS", "CLASSIFIERS", "CONTEXT", "DECODERS", "ENCODERS", "ENCODER_DECODERS", "EOS", "FAMILIES", "MASKED_LMS",
    "ROPE_VARIANTS", "UNLIKE", "VARIANTS", "VOCAB_SIZE", "make", "make_classifier", "make_variant", "theirs",
]  # fmt: skip


FAMILIES = {**PLAIN, **MIXTURES, **RECURRENCES}


def _of_kind(kind: str) -> tuple[str, ...]:
    return tuple(name for name, (family, _) in VARIANTS.items() if FAMILIES[family].kind == kind)


DECODERS, ENCODERS, ENCODER_DECODERS = _of_kind("decoder"), _of_kind("encoder"), _of_kind("encoder-decoder")
"""The names of VARIANTS by their kind."""
MASKED_LMS = tuple(name for name in ENCODERS if FAMILIES[VARIANTS[name][0]].network.__name__.endswith("ForMaskedLM"))
"""The encoders that have a head."""


_ALIKE = (
    "llama", "llama-biases", "llama-gelu", *(f"llama-{name}" for name in ROPE_VARIANTS), "mistral", "qwen2", "olmoe",
    "mixtral", "granite4", "granite4-experts", "phi3-long", "olmo2", "gpt2-untied", "gpt2-relu-unscaled", "roberta",
    "modernbert-biases", "jina_embeddings_v3",
)  # fmt: skip
UNLIKE = tuple(name for name in VARIANTS if name not in _ALIKE)
"""The names of VARIANTS with networks of different structure. The left-out variants differ from these only in numbers
or in the names in their files, so the engine treats both alike.
"""


CLASSIFIERS = tuple(
    name
    for name, family in FAMILIES.items()
    if family.kind != "encoder-decoder" and family.classifier is not None and name != "opt"
)
"""The names of the served FAMILIES for which transformers has a class that labels its input."""


def make(
    family: str, path: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, network: Any = None, **overrides: Any
) -> Path:
    """Write a checkpoint of `family` (one of FAMILIES) to folder `path` and return the folder.

    `network` is the class of transformers, by default the family's; `overrides` are fields of its config, e.g.
    `num_key_value_heads=2`.
    """
    key = (family, network and network.__name__, seed, dtype, sorted(overrides.items()))
    built = once(key, lambda folder: _build(family, folder, seed, dtype, network, overrides))
    shutil.copytree(built, path, dirs_exist_ok=True)
    return path


def _build(family: str, path: Path, seed: int, dtype: torch.dtype, network: Any, overrides: dict[str, Any]) -> None:
    made = FAMILIES[family]
    config = made.config(**{**made.options, **made.special_ids, **overrides})
    generator = torch.Generator().manual_seed(seed)
    model = (network or made.network)(config)
    held = ("final_logits_bias", "layer_scalar")
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(held)]
    for name, parameter in [*model.named_parameters(), *buffers]:
        if "embed_positions" in name and family == "marian":
            continue  # computed, not learned
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.data = _spread(name, noise, made)
    model.to(dtype).save_pretrained(path)
    make_tokenizer(path, made.text)
    (path / "generation_config.json").write_text(json.dumps(made.generation), encoding="utf-8")


def make_classifier(name: str, path: Path, **more: Any) -> Path:
    """Write the checkpoint that VARIANTS calls `name` with a head that labels its input."""
    family, options = VARIANTS[name]
    return make(family, path, network=FAMILIES[family].classifier, **{**options, **more})


def make_variant(name: str, path: Path, **more: Any) -> Path:
    """Write the checkpoint that VARIANTS calls `name`."""
    family, options = VARIANTS[name]
    return make(family, path, **{**options, **more})


def theirs(folder: Path, dtype: torch.dtype) -> Any:
    """Return the checkpoint as transformers reads it, with plain ("eager") attention and experts."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    if kind.startswith("Qwen3_5"):
        _keep_float64_in_delta_rules()
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    own = {family.network.__name__: family.network for family in FAMILIES.values()}
    network = getattr(transformers, kind, None) or own[kind]
    return network.from_pretrained(folder, dtype=dtype, **plain).eval()


@cache
def _keep_float64_in_delta_rules() -> None:
    """Let transformers compute gated delta nets of a float64 model in float64, by its own source, which casts to
    float32.
    """
    module = transformers.models.qwen3_5.modeling_qwen3_5
    rule = re.search(r"^def torch_chunk_gated_delta_rule\(.*?(?=^@|^def )", inspect.getsource(module), re.M | re.S)
    assert rule is not None
    wide = rule[0].replace("torch.float32", "torch.promote_types(initial_dtype, torch.float32)")
    exec(compile(wide, module.__file__, "exec"), module.__dict__)


def _spread(name: str, noise: torch.Tensor, family: Family) -> torch.Tensor:
    """Turn standard normal noise into a parameter: norms around 1 (or 0, if 1 is added), biases around 0, matrices
    far larger than trained ones.
    """
    if name.endswith("bias"):
        return noise * 0.3
    if name.endswith("linear_attn.norm.weight"):  # to which 1 is not added, as to the others of its network
        return 1 + noise * 0.3
    if noise.dim() == 1:
        return family.norm_centre + noise * 0.3
    if "relative_attention_bias" in name:
        return noise
    tables = ("wte", "wpe", "embed_tokens", "embeddings", "shared.weight", "embed_positions", "embed_in")
    if any(part in name for part in tables):
        return noise * family.table
    is_query_or_key = "q_proj" in name or "k_proj" in name or "Wqkv" in name
    gain = family.gain if is_query_or_key or family.gain_of_values is None else family.gain_of_values
    return noise * (gain / math.sqrt(noise.shape[-1]))
