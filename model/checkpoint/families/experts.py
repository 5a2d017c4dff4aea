"""Reads how many experts a config.json speaks of, and how many of them each token goes through."""

from collections.abc import Sequence

from model.checkpoint.families.fields import Fields
from model.config import ExpertsConfig

_MOST_EXPERTS = 100_000
"""Most experts of all layers together: each is an entry of a table, which must not fill the memory."""


def read_experts(
    hf: Fields,
    name: str,
    num_experts: int | None,
    *,
    num_chosen: int | None,
    intermediate_size: int,
    normalized: bool,
    dense_layers: Sequence[int] = (),
    chosen: str = "num_experts_per_tok",
    beside_mlp: bool = False,
) -> ExpertsConfig:
    """Read the experts, whose number the field `name` says, and `chosen` how many of them a token goes through.

    num_experts, num_chosen: what holds if the file does not say; the others are the same as in `ExpertsConfig`. Raises
    ModelLoadError for more experts than can be, and for more chosen than there are.
    """
    num_layers, num_experts = hf.size("num_hidden_layers"), hf.size(name, num_experts)
    if num_experts * num_layers > _MOST_EXPERTS:
        raise hf.refuse(name, f"at most {_MOST_EXPERTS} in all {num_layers} layers are accepted")
    num_chosen = hf.size(chosen, num_chosen)
    if num_chosen > num_experts:
        raise hf.refuse(chosen, f"at most {name} ({num_experts}) is accepted")
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=intermediate_size,
        normalized=normalized,
        dense_layers=tuple(dense_layers),
        beside_mlp=beside_mlp,
    )
