"""Reads peft's adapter_config.json, and lists the weights that adapters may change. Independent of tensors.

github.com/huggingface/peft, `LoraConfig`: an adapter adds scale (x A^T) B^T to a module's product, with scale =
lora_alpha / r, or lora_alpha / sqrt(r) where use_rslora is true (Kalajdzievski 2023, arXiv:2312.03732).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightwell.model.checkpoint.files import read_json
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.weight_maps import MappedWeight, weights_of
from lightwell.model.config import ModelConfig

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_MOST_BYTES = 1 << 20
"""Most bytes of the file: peft's own have one to two thousand."""
_WITHOUT_MEANING = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "bias",
        "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
        "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "megatron_core",
        "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "alpha_pattern", "revision",
        "target_modules", "task_type", "use_rslora",
    }
)  # fmt: skip
"""Fields that are read here, and fields of the training that do not change the adapter's computation."""
_SHOWN = 100
"""Most characters of a value in an error."""
_MOST_ALPHA = 1_000_000
"""The largest accepted scale. Adapters have 8 to 256."""
_OF_OTHER_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of `init_lora_weights` in adapters that were trained with a changed base model."""
_CHANGEABLE = re.compile(
    r"(encoder\.)?layers\.\d+\."
    r"(qkv|attn_out|conv_in|conv_out|delta_in|delta_out|cross_q|cross_kv|cross_out|gate_up|up|down|per_layer_gate|"
    r"per_layer_out|laurel_left|laurel_right)\.weight"
)
"""Lightwell's names of the weights that an adapter may change: the matrices of the blocks."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The ranks and scales of an adapter."""

    rank: int
    alpha: float
    rank_stabilized: bool
    ranks: dict[str, int]
    """Other ranks of some modules, by the ends of their names."""
    alphas: dict[str, float]
    """Other alphas of some modules, by the ends of their names."""

    def rank_of(self, module: str) -> int:
        """Return the rank of a module. module: its name in the network."""
        return next((rank for name, rank in self.ranks.items() if _ends_with(module, name)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's low-rank product."""
        alpha = next((alpha for name, alpha in self.alphas.items() if _ends_with(module, name)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)


def _ends_with(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")


def read_lora_config(folder: Path, max_rank: int, root: Path | None = None) -> LoraConfig:
    """Read the file. root: the folder that must contain it after resolving links.

    Raises ModelLoadError, with the field's name, for an adapter that cannot be served: other types than LoRA, DoRA,
    biases, whole modules, or a rank above `max_rank`.
    """
    fields = read_json(folder / CONFIG_FILE, most=_MOST_BYTES, root=root)
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{folder / CONFIG_FILE}: contains a {type(fields).__name__}; an object is accepted")

    def refuse(name: str, accepted: str) -> ModelLoadError:
        return ModelLoadError(f"{folder / CONFIG_FILE}: {_shown(name)[1:-1]} is {_shown(fields.get(name))}; {accepted}")

    if fields.get("peft_type") != "LORA":
        raise refuse("peft_type", "'LORA' is accepted")
    if fields.get("bias", "none") != "none":
        raise refuse("bias", "'none' is accepted, because biases of adapters are not supported")
    initial = fields.get("init_lora_weights")
    if isinstance(initial, str) and initial.lower().startswith(_OF_OTHER_BASES):
        raise refuse("init_lora_weights", "such an adapter also changes the base model; convert it to plain LoRA")
    for name in fields.keys() - _WITHOUT_MEANING:
        if fields[name]:
            raise refuse(name, "only plain LoRA is supported; remove this field, or set it to null or false")
    ranks, alphas = _pattern(folder, fields, "rank_pattern"), _pattern(folder, fields, "alpha_pattern")
    for name, rank in [("r", fields.get("r")), *(("rank_pattern", rank) for rank in ranks.values())]:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= max_rank:
            raise refuse(name, f"ranks of 1 to {max_rank} are accepted (--max-lora-rank)")
    alpha = fields.get("lora_alpha")
    for name, number in [("lora_alpha", alpha), *(("alpha_pattern", number) for number in alphas.values())]:
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= _MOST_ALPHA:
            raise refuse(name, f"a number from -{_MOST_ALPHA} to {_MOST_ALPHA} is accepted")
    stabilized = fields.get("use_rslora", False)
    if not isinstance(stabilized, bool):
        raise refuse("use_rslora", "true or false is accepted")
    return LoraConfig(fields["r"], float(fields["lora_alpha"]), stabilized, ranks, alphas)


def _shown(value: object) -> str:
    """Return a value for an error: on one line, and shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _pattern(folder: Path, fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the numbers of some modules, by plain names. peft reads them as regular expressions."""
    pattern = fields.get(name) or {}
    if not isinstance(pattern, dict):
        raise ModelLoadError(f"{folder / CONFIG_FILE}: {name} is {_shown(pattern)}; an object of numbers is accepted")
    for key in pattern:
        if not re.fullmatch(r"[\w.]+", key):
            raise ModelLoadError(
                f"{folder / CONFIG_FILE}: {name} has the key {_shown(key)}; names of modules, or the ends of such "
                "names, are accepted"
            )
    return pattern


def changeable_weights(config: ModelConfig) -> Iterator[MappedWeight]:
    """Yield the weights of a network that adapters may change."""
    return (weight for weight in weights_of(config) if _CHANGEABLE.fullmatch(weight.name))


def adapter_parameters(config: ModelConfig, rank: int) -> int:
    """Return the number of parameters of an adapter of this rank that changes all weights that it may change."""
    return sum(len(weight.sources) * rank * sum(weight.shape) for weight in changeable_weights(config))
