"""Reads the changes of weights in an adapter's folder of peft: adapter_config.json and adapter_model.safetensors.

Axes: in, out, r the rank of one module, R the sum of the ranks of a weight's modules.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from lightwell.model.checkpoint.files import open_file
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.lora_config import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    LoraConfig,
    changeable_weights,
    read_lora_config,
)
from lightwell.model.checkpoint.stored_tensor import ITEM_SIZES, StoredTensor
from lightwell.model.checkpoint.weight_files import arranged, safetensors_entries, some_of
from lightwell.model.checkpoint.weight_maps import MappedWeight, table_of
from lightwell.model.config import ModelConfig

_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class WeightChange:
    """The change of a weight: the product B A."""

    down: torch.Tensor
    """A [R, in]: the stacked matrices of the weight's modules."""
    up: torch.Tensor
    """B [out, R], scaled: block diagonal, with a block for each module."""


def read_changes(folder: Path, config: ModelConfig, max_rank: int, root: Path | None = None) -> dict[str, WeightChange]:
    """Return an adapter's changes of the network of `config`, by Lightwell's names of the weights: float32 on the CPU.

    root: the folder that must contain both files after resolving links. The network and `max_rank` limit the size of
    every tensor.

    Raises ModelLoadError in one line for an adapter that `read_lora_config` rejects, for unreadable files, and for
    tensors that are missing, not finite, of another shape, or of modules that the network lacks or that adapters must
    not change (embeddings, heads, norms).
    """
    lora, path = read_lora_config(folder, max_rank, root), folder / WEIGHTS_FILE
    try:
        with open_file(path, most=None, root=root) as file:
            entries = safetensors_entries(path, f"/dev/fd/{file.fileno()}")
    except OSError as error:
        raise ModelLoadError(
            f"adapter folder {str(folder)!r} contains no readable {WEIGHTS_FILE}, the only supported file of weights"
        ) from error
    pairs = _pairs(path, entries)
    table, changes, taken = table_of(config), {}, set[str]()
    by_short = {table.short(f"{module}.weight"): module for module in pairs}
    for weight in changeable_weights(config):
        modules = [
            next((by_short[short] for name in source.names if (short := table.short(name)) in by_short), None)
            for source in weight.sources
        ]
        if any(module is not None for module in modules):
            taken |= {module for module in modules if module is not None}
            changes[weight.name] = _stacked(path, weight, modules, pairs, lora)
    if strange := sorted(pairs.keys() - taken):
        raise ModelLoadError(
            f"{path}: {len(strange)} modules are not matrices of this network's blocks, which are the only modules "
            f"that adapters may change{' (except experts)' if config.experts else ''}: {some_of(strange)}"
        )
    return changes


Pair = dict[str, StoredTensor]
"""An adapter's two tensors of one module, by "A" and "B"."""


def _pairs(path: Path, entries: dict[str, StoredTensor]) -> dict[str, Pair]:
    found: dict[str, Pair] = {}
    strange = []
    for name, entry in entries.items():
        match = _NAME.fullmatch(name)
        if match is None:
            strange.append(name)
        else:
            found.setdefault(match["module"], {})[match["part"]] = entry
    if strange:
        raise ModelLoadError(
            f"{path}: {len(strange)} tensors do not belong to a plain LoRA adapter; its tensors are named "
            f"base_model.model.<module>.lora_A.weight and lora_B.weight: {some_of(strange)}"
        )
    if not found:
        raise ModelLoadError(f"{path}: contains no tensors; an adapter must change at least one module")
    if halves := sorted(module for module, pair in found.items() if len(pair) == 1):
        raise ModelLoadError(f"{path}: {len(halves)} modules have only one of lora_A and lora_B: {some_of(halves)}")
    return found


def _stacked(
    path: Path, weight: MappedWeight, modules: list[str | None], pairs: dict[str, Pair], lora: LoraConfig
) -> WeightChange:
    """Return the change of a weight. modules: the modules that it is made of, None for one without a change."""
    ranks = [0 if module is None else lora.rank_of(module) for module in modules]
    outputs, inputs = weight.shape
    down, up = torch.zeros(sum(ranks), inputs), torch.zeros(outputs, sum(ranks))
    row = column = 0  # of each module in B
    for source, module, rank in zip(weight.sources, modules, ranks, strict=True):
        out, width = source.shape[::-1] if weight.arrange == "transpose" else source.shape
        if module is not None:
            pair = pairs[module]
            down[column : column + rank] = _read(path, module, "A", pair, (rank, width))
            own = _read(path, module, "B", pair, (out, rank)) * lora.scale_of(module)
            up[row : row + out, column : column + rank] = (
                arranged(own, weight) if weight.arrange in ("heads first", "gates last") else own
            )
        row, column = row + out, column + rank
    return WeightChange(down, up)


def _read(path: Path, module: str, name: str, pair: Pair, shape: tuple[int, int]) -> torch.Tensor:
    entry = pair[name]
    if entry.shape != shape:
        raise ModelLoadError(
            f"{path}: {module}.lora_{name}.weight is {list(entry.shape)}; the network and {CONFIG_FILE} require "
            f"{list(shape)}"
        )
    if entry.dtype not in ITEM_SIZES:
        raise ModelLoadError(
            f"{path}: {module}.lora_{name}.weight is of {entry.dtype}; {', '.join(ITEM_SIZES)} are accepted"
        )
    tensor = entry.read().float()
    if not tensor.isfinite().all():
        raise ModelLoadError(f"{path}: {module}.lora_{name}.weight contains infinite numbers or NaN")
    return tensor
