"""Loader of low-rank adapters for a network."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.lora_files import read_changes
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import Adapter, LowRank
from lightwell.model.network.transformer import Transformer


def load_adapter(folder: Path, model: Transformer, *, max_rank: int, root: Path | None = None) -> Adapter:
    """Load an adapter in peft's format, in the network's dtype and on its device. root: a folder that must contain its
    files.

    Raises ModelLoadError in the cases of `read_changes`, and for a network that is divided between processes.
    """
    changes = read_changes(folder, model.config, max_rank, root)
    layers = dict(_layers(model))
    if missing := sorted(changes.keys() - layers.keys()):
        raise ModelLoadError(
            f"adapter {str(folder)!r} changes {missing[0]}, which adapters of this network cannot change"
        )

    def linear(weight: Tensor) -> Linear:
        own = weight.to(model.device, model.dtype)
        return Linear(own, kernels=model.kernels, batch_invariant=model.batch_invariant)

    return Adapter({layers[name]: LowRank(linear(each.down), linear(each.up)) for name, each in changes.items()})


def _layers(model: Transformer) -> Iterator[tuple[str, Linear]]:
    """Yield the matrices of the blocks with Lightwell's names of their weights."""
    prefix = "" if model.decoder is None else "encoder."
    for start, stack in ((prefix, model.encoder), ("", model.decoder)):
        for block in () if stack is None else stack.blocks:
            for name, linear in block.linears.items():
                name = "gate_up" if name == "up" and block.one_mlp and block.one_mlp.gate is not None else name
                yield f"{start}layers.{block.index}.{name}.weight", linear
