"""Tasks: their declarations of the depth of each stack, the positions of the answer, and the captures."""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import msgspec

from lightwell.model.hooks.points import BY_NAME, Stack, reads_encoder

Stage = Literal["encoder", "cross", "decoder", "logits"]
"""Parts of a step, in the order in which they run; in "cross" the decoder's blocks compute keys and values of the
encoder's output.
"""
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


NOT_AT_ALL = Depth(0, needs_output=False)


class Depths(NamedTuple):
    """The depth of each stack, None for a stack that the answer does not read."""

    encoder: Depth | None
    decoder: Depth | None


def input_depths(stacks: Stacks, depth: Depth) -> Depths:
    """Return the depths of a task that reads only the first stack: the encoder, if there is one."""
    return Depths(encoder=depth, decoder=None) if stacks.encoder else Depths(encoder=None, decoder=depth)


class BaseTask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The base of all tasks. By default, a task inspects the whole decoder; a task that reads less overrides these
    declarations, and the rest is not computed.
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
        """Return the captures of the prompt, by default the task itself. `server.engine.captures.request_captures` has
        a sink for each of their classes.
        """
        return (self,)


def required_depths(task: BaseTask, stacks: Stacks, *, is_changed: bool) -> tuple[Depth, Depth | None]:
    """Return how deep the encoder and the decoder must run for a task; None if the decoder has no part in the answer.

    is_changed: whether interventions change the numbers. Raises ValueError if the task needs a stack that the model
    lacks.
    """
    encoder, decoder = task.depths(stacks)
    for name, depth, has in (("encoder", encoder, stacks.encoder), ("decoder", decoder, stacks.decoder)):
        if depth is not None and not has:
            raise ValueError(f"{type(task).__name__} needs the {name}; this model has none")
    encoder = encoder or NOT_AT_ALL
    if decoder is not None:  # a decoder reads the encoder's output
        encoder = max(encoder, Depth(stacks.encoder, needs_output=True))
    if is_changed:
        # Changed patterns are recomputed where they are used, so the last block must use them.
        encoder = encoder._replace(needs_output=True)
        decoder = decoder and decoder._replace(needs_output=True)
    return encoder, decoder


def stage_of(stack: Stack, name: str) -> Stage:
    """Return the stage in which the network reaches a point of a stack."""
    if name == "logits":
        return "logits"
    if stack == "encoder":
        return "encoder"
    return "cross" if reads_encoder(BY_NAME[name]) else "decoder"
