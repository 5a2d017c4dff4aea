"""Says which heads, neurons and words each rank holds, and which part of every weight that is. It knows names and
sizes.

Query heads, neurons of the mlp and rows of the token table (and of the head) are split in order, an equal number for
each rank. So are key heads, but if there are fewer of them than ranks each is on several, with the query heads that
read it. What is as wide as the residual stream (norms, position tables, biases of what is added to it) is everywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from model.config import ModelConfig
from model.hooks.points import BY_NAME
from model.sharding.group import Group
from model.sharding.split import check_split


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's part of `total` things in a row."""

    group: Group
    total: int

    @property
    def width(self) -> int:
        """Return how many things each rank has; the last one may have fewer."""
        return -(-self.total // self.group.size)

    @property
    def start(self) -> int:
        """Return the first of this rank's things."""
        if self.total < self.group.size:
            return self.group.rank * self.total // self.group.size
        return self.group.rank * self.width

    @property
    def stop(self) -> int:
        return min(self.start + self.width, self.total)

    def part(self, x: torch.Tensor, axis: int, unit: int = 1) -> torch.Tensor:
        """Return this rank's part of x, a view; `unit`: entries of `axis` that each thing has."""
        return x.narrow(axis, self.start * unit, (self.stop - self.start) * unit)

    def whole(self, part: torch.Tensor, axis: int) -> torch.Tensor:
        """Return all `total` things, from the part of every rank: all must call it."""
        lacking = self.width - part.shape[axis]
        if lacking:
            part = torch.cat((part, part.new_zeros(*part.shape[:axis], lacking, *part.shape[axis + 1 :])), axis)
        found = self.group.gather(part, axis)
        if self.total < self.group.size:  # several ranks hold the same one
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

    @classmethod
    def of(cls, config: ModelConfig, group: Group) -> "Shares":
        """Return the shares of a stack. Raises ModelLoadError when `config` cannot be split over so many ranks."""
        check_split(config, group.size)
        return cls(
            config,
            group,
            heads=Share(group, config.num_heads),
            kv_heads=Share(group, config.num_kv_heads),
            neurons=Share(group, config.intermediate_size),
            words=Share(group, config.vocab_size),
        )

    @property
    def own_config(self) -> ModelConfig:
        """Return the config of the stack as this rank has it: with its heads and neurons alone."""
        return replace(
            self.config,
            num_heads=self.heads.width,
            num_kv_heads=self.kv_heads.width,
            intermediate_size=self.neurons.width,
        )

    def of_point(self, point: str) -> Share | None:
        """Return the share of a point's second axis, if each rank has some of it, or None if every rank has it all."""
        axis = BY_NAME[point].axes[1]
        if point.endswith("hook_result"):  # made whole before the hooks see it
            return None
        return {"head": self.heads, "kv_head": self.kv_heads, "d_mlp": self.neurons}.get(axis)

    def of_weight(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a whole weight under our name (`model.checkpoint.weight_maps`), a view if
        possible.
        """
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
    """Return the shares of each stack of a model, by the prefix of its weights' names. Raises ModelLoadError as
    `Shares.of` does.
    """
    found = {"": Shares.of(config, group)}
    return found if config.encoder is None else {**found, "encoder.": Shares.of(config.encoder, group)}


def weight_parts(shares: Mapping[str, Shares]) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """Return a function for this rank's part of a whole weight of any stack, by its full name."""

    def part(name: str, whole: torch.Tensor) -> torch.Tensor:
        prefix = "encoder." if name.startswith("encoder.") else ""
        return shares[prefix].of_weight(name.removeprefix(prefix), whole)

    return part
