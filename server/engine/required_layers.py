"""Works out which part of the network a request needs: how deep each stack must run, and when a point is reached.

It knows what a task declares and the names of points; it knows nothing of what has been computed so far
(`server.engine.sequence`), of tensors or of other requests.
"""

from typing import Literal

from model.hooks.points import BY_NAME, Stack, reads_encoder
from server.engine.base_task import BaseTask, Depth, Stacks

Stage = Literal["encoder", "cross", "decoder", "logits"]
"""Parts of a step, in the order in which they run; in "cross" the decoder's blocks take keys and values from the
encoder's output.
"""

NOT_AT_ALL = Depth(0, needs_output=False)


def required_depths(task: BaseTask, stacks: Stacks, *, is_changed: bool) -> tuple[Depth, Depth | None]:
    """Return how deep the encoder and the decoder must run for a task; None if the decoder has no part in the answer.

    is_changed: whether interventions change the numbers. Raises ValueError if the task asks for a stack that the model
    lacks.
    """
    encoder, decoder = task.depths(stacks)
    for name, depth, has in (("encoder", encoder, stacks.encoder), ("decoder", decoder, stacks.decoder)):
        if depth is not None and not has:
            raise ValueError(f"{type(task).__name__} needs the {name}; this model has none")
    encoder = encoder or NOT_AT_ALL
    if decoder is not None:  # A decoder reads the encoder's output.
        encoder = max(encoder, Depth(stacks.encoder, needs_output=True))
    if is_changed:
        # Changed patterns are computed again where they are used, so the last block has to use them.
        encoder = encoder._replace(needs_output=True)
        decoder = decoder and decoder._replace(needs_output=True)
    return encoder, decoder


def stage_of(stack: Stack, name: str) -> Stage:
    """Return the stage in which the network reaches a point of a stack."""
    point = BY_NAME[name]
    if name == "logits":
        return "logits"
    if stack == "encoder":
        return "encoder"
    return "cross" if reads_encoder(point) else "decoder"
