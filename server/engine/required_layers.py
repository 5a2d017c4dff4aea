"""Works out which part of the network a request needs: how deep each stack must run, and which positions must really be
computed.

It knows what a task declares and the names of points; it knows nothing of what has been computed so far
(`server.engine.sequence`), of tensors or of other requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from model.hooks.points import BY_NAME, Stack, reads_encoder
from server.engine.base_task import BaseTask, Depth, Stacks

Stage = Literal["encoder", "cross", "decoder", "logits"]
"""Parts of a step, in the order in which they run; in "cross" the decoder's blocks take keys and values from the
encoder's output.
"""

_NOT_AT_ALL = Depth(0, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredLayers:
    """The parts of the network that one request needs."""

    runs_encoder: bool
    runs_decoder: bool
    encoder: Depth
    decoder: Depth
    captured: Sequence[int]
    """Positions of the prompt that the decoder must compute because the answer holds them, ascending."""


def required_layers_of(task: BaseTask, stacks: Stacks, num_prompt_tokens: int, *, is_changed: bool) -> RequiredLayers:
    """Return what a task with a prompt of `num_prompt_tokens` needs of a model with these stacks. Raises ValueError if
    it asks for a stack that the model lacks.
    """
    encoder, decoder = task.depths(stacks)
    for name, depth, has in (("encoder", encoder, stacks.encoder), ("decoder", decoder, stacks.decoder)):
        if depth is not None and not has:
            raise ValueError(f"{type(task).__name__} asks for the {name}; this model has none")
    runs_decoder = decoder is not None
    runs_encoder = stacks.encoder > 0
    encoder = encoder or _NOT_AT_ALL
    if runs_decoder:  # A decoder reads the encoder's output.
        encoder = max(encoder, Depth(stacks.encoder, needs_output=True))
    decoder = decoder or _NOT_AT_ALL
    if is_changed:  # by interventions
        # Changed patterns are computed again where they are used, so the last block has to use them.
        encoder, decoder = encoder._replace(needs_output=True), decoder._replace(needs_output=True)
    return RequiredLayers(
        runs_encoder=runs_encoder,
        runs_decoder=runs_decoder,
        encoder=encoder,
        decoder=decoder,
        captured=task.captured_positions(num_prompt_tokens) if runs_decoder else (),
    )


def stage_of(stack: Stack, name: str) -> Stage:
    """Return the stage in which the network reaches a point of a stack."""
    point = BY_NAME[name]
    if stack == "encoder":
        return "encoder"
    if name == "logits":
        return "logits"
    return "cross" if reads_encoder(point) else "decoder"
