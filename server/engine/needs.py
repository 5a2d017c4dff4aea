"""What of the network a request needs: how deep each stack must run, and which positions must really be computed.

Knows the tasks and the names of points; knows nothing of what has been computed so far (`server.engine.sequence`), of
tensors or of other requests.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass
from typing import Literal

from model.points import BY_NAME, Stack, reads_encoder
from server.engine.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    EngineRequest,
    GenerateTask,
    HeadScoresTask,
    LensTask,
    PointCapture,
    Task,
    TraceTask,
)

Stage = Literal["encoder", "cross", "decoder", "logits"]
"""Parts of a step, in the order in which they run; "cross" is where the decoder's blocks take keys and values from the
encoder's output.
"""

_AFTER_THE_BLOCKS = ("ln_final", "logits")


@dataclass(frozen=True, slots=True)
class Stacks:
    """Blocks of a model's stacks; 0 where it has no such stack."""

    decoder: int
    encoder: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one request needs."""

    runs_encoder: bool
    runs_decoder: bool
    encoder_layers: int
    """Blocks of the encoder."""
    decoder_layers: int
    captured: ReadOnlySequence[int]
    """Positions of the prompt that the decoder must compute because the answer holds them, ascending."""


def needs_of(request: EngineRequest, stacks: Stacks) -> Needs:
    """What `request` needs of a model with these stacks. Raises ValueError when it asks a stack that is not there."""
    task = request.task
    encoder_layers, decoder_layers = _depths(task, stacks)
    for name, depth, has in (("encoder", encoder_layers, stacks.encoder), ("decoder", decoder_layers, stacks.decoder)):
        if depth is not None and not has:
            raise ValueError(f"request {request.uid}: {type(task).__name__} asks the {name}; this model has none")
    runs_decoder = decoder_layers is not None
    runs_encoder = stacks.encoder > 0
    whole = stacks.encoder if runs_decoder else 0  # a decoder looks at the encoder's last word
    return Needs(
        runs_encoder=runs_encoder,
        runs_decoder=runs_decoder,
        encoder_layers=max(whole, encoder_layers or 0),
        decoder_layers=decoder_layers or 0,
        captured=_captured(task, len(request.prompt_token_ids)) if runs_decoder else (),
    )


def _depths(task: Task, stacks: Stacks) -> tuple[int | None, int | None]:
    """Blocks that the answer is read from, of the encoder and of the decoder; None where it reads nothing there."""
    if isinstance(task, AttentionTask):
        return _depth_of_part(task.capture.part, [layer for layer, _ in task.capture.pairs])
    if isinstance(task, HeadScoresTask):
        return _depth_of_part(task.part, [layer for layer, _ in task.pairs])
    if isinstance(task, EmbedTask):
        read = stacks.encoder or stacks.decoder
        depth = read if task.layer is None else max(1, task.layer)
        return (depth, None) if stacks.encoder else (None, depth)
    if isinstance(task, LensTask):
        return None, max(1, *task.layers)
    if isinstance(task, TraceTask):
        return (
            _depth_of_points([each for each in task.points if each.stack == "encoder"], stacks.encoder),
            _depth_of_points([each for each in task.points if each.stack == "decoder"], stacks.decoder),
        )
    return None, stacks.decoder


def _depth_of_part(part: str, layers: ReadOnlySequence[int]) -> tuple[int | None, int | None]:
    depth = max(layers, default=-1) + 1
    return (depth, None) if part == "encoder" else (None, depth)


def _depth_of_points(points: ReadOnlySequence[PointCapture], num_layers: int) -> int | None:
    if not points:
        return None
    return max(_depth_of_point(each, num_layers) for each in points)


def _depth_of_point(capture: PointCapture, num_layers: int) -> int:
    if capture.layer is not None:
        return capture.layer + 1
    return num_layers if capture.point.startswith(_AFTER_THE_BLOCKS) else 0


def _captured(task: Task, length: int) -> ReadOnlySequence[int]:
    """() when only the newest token counts."""
    everything = range(length)
    if isinstance(task, EmbedTask):
        if task.pooling == "last":
            return range(length - 1, length)
        return range(1) if task.pooling == "cls" else everything
    if isinstance(task, AttentionTask):
        return _queries(task.capture, length)
    if isinstance(task, TraceTask):
        return _traced(task.points, length)
    if isinstance(task, LensTask):
        return sorted(set(task.positions))
    if isinstance(task, GenerateTask) and task.sampling.prompt_logprobs is None:
        return _queries(task.attention, length) if task.attention is not None and task.attention_prompt else ()
    return everything


def _queries(capture: AttentionCapture, length: int) -> ReadOnlySequence[int]:
    return range(length) if capture.queries is None else sorted(set(capture.queries))


def _traced(points: Iterable[PointCapture], length: int) -> ReadOnlySequence[int]:
    positions: set[int] = set()
    for each in points:
        if each.stack == "encoder" or reads_encoder(BY_NAME[each.point]):
            continue
        if each.positions is None:
            return range(length)
        positions.update(each.positions)
    return sorted(positions)


def stage_of(stack: Stack, name: str) -> Stage:
    """When the network comes by a point of a stack."""
    point = BY_NAME[name]
    if stack == "encoder":
        return "encoder"
    if name == "logits":
        return "logits"
    return "cross" if reads_encoder(point) else "decoder"
