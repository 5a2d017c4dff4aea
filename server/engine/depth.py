"""How deep a request runs the network: blocks of each of its stacks.

It knows numbers and the names of points; no task and no tensor. It needs the standard library only.
"""

from typing import NamedTuple

BEFORE_OUTPUT = frozenset(
    ["hook_resid_pre"] + [f"attn.hook_{name}" for name in ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern")]
)
"""Points of a block that exist, in every family, once the block has its queries and keys: norms may come later."""


class Stacks(NamedTuple):
    """The number of blocks in each of a model's stacks, 0 for a stack that it lacks."""

    decoder: int
    encoder: int = 0


class Depth(NamedTuple):
    """How far a stack must run. Depths can be compared: the deeper one is the larger."""

    num_layers: int
    needs_output: bool
    """Whether anything after the queries, keys and values of the last of these blocks is needed."""


class Depths(NamedTuple):
    """How far each stack must run, None for one that an answer does not read."""

    encoder: Depth | None
    decoder: Depth | None
