"""Turns tensors that hold one matrix of each expert into one tensor for each, none of them read yet."""

from collections.abc import Mapping

from model.checkpoint.families.weight_table import WeightMap
from model.checkpoint.stored_tensor import StoredTensor
from model.config import ModelConfig


def unstacked(entries: Mapping[str, StoredTensor], config: ModelConfig, table: WeightMap) -> dict[str, StoredTensor]:
    """Return the tensors of some files with those apart that `table` names as stacked; of another length than the
    network has experts, they stay as they are.
    """
    found = dict(entries)
    for stacked in table.stacked:
        for name in [name for name in found if name.endswith(stacked.ending)]:
            whole = found[name]
            if config.experts is None or whole.shape[:1] != (config.experts.num_experts,):
                continue
            del found[name]
            start = name.removesuffix(stacked.ending)
            for e in range(config.experts.num_experts):
                one = start + stacked.one.replace("{e}", str(e))
                found[one] = whole.entry(e, transposed=stacked.is_transposed)
    return found
