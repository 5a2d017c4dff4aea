"""Defines what a task declares: how deep each stack must run, which positions the answer holds, and what to capture.

It knows numbers and the names of points; it knows no particular task and no tensor.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import msgspec

BEFORE_OUTPUT = frozenset(
    ["hook_resid_pre"] + [f"attn.hook_{name}" for name in ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern")]
)
"""Points of a block that exist, in every family, once the block has its queries and keys: norms may come later."""


class Stacks(NamedTuple):
    """The number of blocks in each of a model's stacks, 0 for a stack that it lacks."""

    decoder: int
    encoder: int = 0


class Depth(NamedTuple):
    """The part of a stack that must run: its first `num_layers` blocks. The deeper of two depths is the larger."""

    num_layers: int
    needs_output: bool
    """Whether the last of these blocks must run beyond its queries, keys and values."""


class Depths(NamedTuple):
    """The depth of each stack, None for a stack that the answer does not read."""

    encoder: Depth | None
    decoder: Depth | None


class BaseTask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The base of all tasks. Its declarations are those of a task that inspects the whole decoder; a task that reads
    less overrides them, and the rest is not computed.
    """

    is_inspection: ClassVar[bool] = True
    """Whether the task only inspects. An inspection may wait while other requests generate or embed text."""

    def depths(self, stacks: Stacks) -> Depths:
        """Return how deep the encoder and the decoder must run."""
        return Depths(encoder=None, decoder=Depth(stacks.decoder, needs_output=True))

    def captured_positions(self, num_tokens: int) -> Sequence[int]:
        """Return the positions of a prompt of `num_tokens` tokens, ascending, that the decoder must compute because the
        answer holds them; () if only the newest token counts.
        """
        return range(num_tokens)

    def captures(self) -> Sequence[object]:
        """Return what to gather while the prompt is computed. For the class of each of these objects,
        `server.engine.captures.request_captures` names the sink that gathers it. By default it is the task itself.
        """
        return (self,)
