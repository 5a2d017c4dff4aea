"""The heads, neurons and words of each rank, and its part of every weight.

Query heads, neurons of the mlp and rows of the token table (and of the head) are split in order, an equal number for
each rank. So are key heads; with fewer key heads than ranks, each is on several ranks, with the query heads that read
it. Every rank has all weights with the width of the residual stream: norms, position tables, biases of its summands.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.points import BY_NAME
from lightwell.model.sharding.group import Group
from lightwell.model.sharding.split import check_split


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's part of `total` consecutive items: heads, neurons or words."""

    group: Group
    total: int

    @property
    def width(self) -> int:
        """Return the number of items of each rank; the last rank may have fewer."""
        return -(-self.total // self.group.size)

    @property
    def start(self) -> int:
        """Return this rank's first item."""
        if self.total < self.group.size:
            return self.group.rank * self.total // self.group.size
        return self.group.rank * self.width

    @property
    def stop(self) -> int:
        return min(self.start + self.width, self.total)

    def part(self, x: torch.Tensor, axis: int, unit: int = 1) -> torch.Tensor:
        """Return this rank's part of x, a view. unit: entries of `axis` for each item."""
        return x.narrow(axis, self.start * unit, (self.stop - self.start) * unit)

    def whole(self, part: torch.Tensor, axis: int) -> torch.Tensor:
        """Return all `total` items, from the part of every rank. All ranks must call it."""
        lacking = self.width - part.shape[axis]
        if lacking:
            part = torch.cat((part, part.new_zeros(*part.shape[:axis], lacking, *part.shape[axis + 1 :])), axis)
        found = self.group.gather(part, axis)
        if self.total < self.group.size:  # several ranks have the same item
            copies = self.group.size // self.total
            return found.index_select(axis, torch.arange(0, self.group.size, copies, device=found.device))
        return found.narrow(axis, 0, self.total)


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of one stack."""

    config: ModelConfig
    """The config of the whole stack."""
    group: Group
    heads: Share
    kv_heads: Share
    neurons: Share
    words: Share

    @property
    def own_config(self) -> ModelConfig:
        """Return the config of this rank's part of the stack: with only its heads and neurons."""
        return replace(
            self.config,
            num_heads=self.heads.width,
            num_kv_heads=self.kv_heads.width,
            intermediate_size=self.neurons.width,
        )

    def of_point(self, point: str) -> Share | None:
        """Return the share of a point's second axis if the ranks split it, or None if every rank has all of it."""
        axis = BY_NAME[point].axes[1]
        if point.endswith("hook_result"):  # hooks get all heads of it
            return None
        return {"head": self.heads, "kv_head": self.kv_heads, "d_mlp": self.neurons}.get(axis)

    def of_weight(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a whole weight, a view if possible. name: as in `model.checkpoint.weight_maps`."""
        size = self.config.head_dim
        owner, _, kind = name.rpartition(".")
        owner = owner.rpartition(".")[2]
        q, kv = self.config.num_heads * size, self.config.num_kv_heads * size
        match owner:
            case "embed" | "head":
                return self.words.part(weight, 0)
            case "qkv":
                queries, keys, values = torch.split(weight, [q, kv, kv])
                own = [self.kv_heads.part(each, 0, size) for each in (keys, values)]
                return torch.cat((self.heads.part(queries, 0, size), *own))
            case "cross_q":
                return self.heads.part(weight, 0, size)
            case "cross_kv":
                return torch.cat([self.kv_heads.part(each, 0, size) for each in weight.chunk(2)])
            case "gate_up":
                return torch.cat([self.neurons.part(each, 0) for each in weight.chunk(2)])
            case "up":
                return self.neurons.part(weight, 0)
            case "attn_out" | "cross_out" if kind == "weight":
                return self.heads.part(weight, 1, size)
            case "down" if kind == "weight":
                return self.neurons.part(weight, 1)
            case "position_bias":
                return self.heads.part(weight, 1)
        return weight


def shares_of(config: ModelConfig, group: Group) -> dict[str, Shares]:
    """Return the shares of each stack of a model, by the prefix of its weights' names. Raises ModelLoadError if the
    model cannot be split over the ranks of the group.
    """
    check_split(config, group.size)
    stacks = {"": config} if config.encoder is None else {"": config, "encoder.": config.encoder}
    return {
        prefix: Shares(
            stack,
            group,
            heads=Share(group, stack.num_heads),
            kv_heads=Share(group, stack.num_kv_heads),
            neurons=Share(group, stack.intermediate_size),
            words=Share(group, stack.vocab_size),
        )
        for prefix, stack in stacks.items()
    }


def weight_parts(shares: Mapping[str, Shares]) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """Return a function (full name, whole weight) -> this rank's part, for the weights of all stacks."""

    def part(name: str, whole: torch.Tensor) -> torch.Tensor:
        prefix = "encoder." if name.startswith("encoder.") else ""
        return shares[prefix].of_weight(name.removeprefix(prefix), whole)

    return part
