"""What a task declares about itself: how deep it runs each stack of the network, which positions, what it captures.

It knows numbers and the names of points; none of the tasks and no tensor. It needs the standard library only.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

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


class BaseTask:
    """What a task declares about itself. The defaults serve a task that looks inside the whole decoder; a task that
    reads less overrides them, and the rest is not computed.
    """

    __slots__ = ()

    is_inspection: ClassVar[bool] = True
    """Whether it only looks inside. While other requests write text or embed it, an inspection may wait."""

    def depths(self, stacks: Stacks) -> Depths:
        """Return how deep the encoder and the decoder must run for the answer, None for one that it does not read."""
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
