"""What of the network a request needs: how deep each stack must run, and which positions must really be computed.

Knows the tasks and the names of points; knows nothing of what has been computed so far (`server.engine.sequence`), of
tensors or of other requests.
"""

from collections.abc import Iterable
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from model.hooks.points import BY_NAME, Stack, reads_encoder
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
_BEFORE_THE_OUTPUT = frozenset(
    ["hook_resid_pre"] + [f"attn.hook_{name}" for name in ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern")]
)
"""Points of a block that are there once it has its queries and keys, in every family: norms may come later."""


@dataclass(frozen=True, slots=True)
class Stacks:
    """Blocks of a model's stacks; 0 where it has no such stack."""

    decoder: int
    encoder: int = 0


class Depth(NamedTuple):
    """How far a stack must run. Compares: the deeper one is the larger."""

    num_layers: int
    needs_output: bool
    """Whether anything behind the queries, keys and values of the last of these blocks is needed."""


_NOT_AT_ALL = Depth(0, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredLayers:
    """What one request needs."""

    runs_encoder: bool
    runs_decoder: bool
    encoder: Depth
    decoder: Depth
    captured: ReadOnlySequence[int]
    """Positions of the prompt that the decoder must compute because the answer holds them, ascending."""


def required_layers_of(request: EngineRequest, stacks: Stacks) -> RequiredLayers:
    """What `request` needs of a model with these stacks. Raises ValueError when it asks a stack that is not there."""
    task = request.task
    encoder, decoder = _depths(task, stacks)
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
        captured=_captured(task, len(request.prompt_token_ids)) if runs_decoder else (),
    )


def _changed(depth: Depth, request: EngineRequest) -> Depth:
    """Patterns that a request changes are made anew where they are used, so its last block has to use them."""
    return depth._replace(needs_output=True) if request.interventions else depth


def _depths(task: Task, stacks: Stacks) -> tuple[Depth | None, Depth | None]:
    """Where the answer is read, in the encoder and in the decoder; None where it reads nothing there."""
    if isinstance(task, AttentionTask):
        return _depth_of_part(task.capture.part, [layer for layer, _ in task.capture.pairs])
    if isinstance(task, HeadScoresTask):
        return _depth_of_part(task.part, [layer for layer, _ in task.pairs])
    if isinstance(task, EmbedTask):
        read = stacks.encoder or stacks.decoder
        depth = Depth(read if task.layer is None else max(1, task.layer), needs_output=True)
        return (depth, None) if stacks.encoder else (None, depth)
    if isinstance(task, LensTask):
        return None, Depth(max(1, *task.layers), needs_output=True)
    if isinstance(task, TraceTask):
        return (
            _depth_of_points([each for each in task.points if each.stack == "encoder"], stacks.encoder),
            _depth_of_points([each for each in task.points if each.stack == "decoder"], stacks.decoder),
        )
    return None, Depth(stacks.decoder, needs_output=True)


def _depth_of_part(part: str, layers: ReadOnlySequence[int]) -> tuple[Depth | None, Depth | None]:
    """Of the attention of these layers. Across to the encoder looks what attention to the text itself made."""
    depth = Depth(max(layers, default=-1) + 1, needs_output=part == "cross")
    return (depth, None) if part == "encoder" else (None, depth)


def _depth_of_points(points: ReadOnlySequence[PointCapture], num_layers: int) -> Depth | None:
    if not points:
        return None
    return max(_depth_of_point(each, num_layers) for each in points)


def _depth_of_point(capture: PointCapture, num_layers: int) -> Depth:
    if capture.layer is not None:
        return Depth(capture.layer + 1, capture.point not in _BEFORE_THE_OUTPUT)
    if capture.point.startswith(_AFTER_THE_BLOCKS):
        return Depth(num_layers, needs_output=True)
    return _NOT_AT_ALL


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
