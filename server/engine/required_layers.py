"""Works out which part of the network a request needs: how deep each stack must run, and which positions must really be
computed.

It knows the tasks and the names of points; it knows nothing of what has been computed so far
(`server.engine.sequence`), of tensors or of other requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from model.hooks.points import BY_NAME, Stack, reads_encoder
from server.engine.depth import Depth, Stacks
from server.engine.request import EngineRequest

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


def required_layers_of(request: EngineRequest, stacks: Stacks) -> RequiredLayers:
    """Return what `request` needs of a model with these stacks. Raises ValueError if it asks for a stack that the
    model lacks.
    """
    task = request.task
    encoder, decoder = task.depths(stacks)
    for name, depth, has in (("encoder", encoder, stacks.encoder), ("decoder", decoder, stacks.decoder)):
        if depth is not None and not has:
            raise ValueError(f"request {request.uid}: {type(task).__name__} asks the {name}; this model has none")
    runs_decoder = decoder is not None
    runs_encoder = stacks.encoder > 0
    # A decoder looks at the encoder's last word.
    whole = Depth(stacks.encoder, needs_output=True) if runs_decoder else _NOT_AT_ALL
    return RequiredLayers(
        runs_encoder=runs_encoder,
        runs_decoder=runs_decoder,
        encoder=_changed(max(whole, encoder or _NOT_AT_ALL), request),
        decoder=_changed(decoder or _NOT_AT_ALL, request),
        captured=task.captured_positions(len(request.prompt_token_ids)) if runs_decoder else (),
    )


def _changed(depth: Depth, request: EngineRequest) -> Depth:
    """Return the depth with the last block's output if the request intervenes: changed patterns are computed again
    where they are used, so the last block has to use them.
    """
    return depth._replace(needs_output=True) if request.interventions else depth


def stage_of(stack: Stack, name: str) -> Stage:
    """Return the stage in which the network reaches a point of a stack."""
    point = BY_NAME[name]
    if stack == "encoder":
        return "encoder"
    if name == "logits":
        return "logits"
    return "cross" if reads_encoder(point) else "decoder"
