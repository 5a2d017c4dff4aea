"""The program of a network as text: the numbers, weights, executor and points of each step."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from torch import Tensor

from lightwell.model.kernels.products import LaidWeight
from lightwell.model.kernels.program.steps import NormWeights, Product, Register, Step
from lightwell.model.layers.dense_weight import DenseWeight
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.triton_grouped_weight import TritonGroupedWeight
from lightwell.model.network.block import Block
from lightwell.model.network.block_program import Program
from lightwell.model.network.stack import Stack
from lightwell.model.network.transformer import Transformer


class Line(NamedTuple):
    """A step as text."""

    name: str
    numbers: str
    """Its registers, the shapes of its weights, and its constants."""
    num_bytes: int
    """The bytes of its weights."""
    executor: str
    """cpu: the kernels' one call. gpu: Triton. torch: torch's operations between the kernels of single steps."""
    points: str = ""
    """The points that can be read after the step."""


def describe(model: Transformer) -> str:
    """Return the steps of a network's stacks, with equal layers together, and its head."""
    lines: list[str] = []
    for stack in (model.encoder, model.decoder):
        for heading, steps in () if stack is None else _of_stack(stack):
            lines += [heading, *_as_table(steps), ""]
    if (head := model.head) is not None:
        executor = "cpu" if head.native else "gpu" if model.keys_in_rows else "torch"
        lines += ["head", *_as_table([Line("Multiply", _shown("", head), _bytes(head), executor)])]
    return "\n".join(lines)


def _of_stack(stack: Stack) -> Iterator[tuple[str, Sequence[Line]]]:
    step, executor = (stack.decode_step, "cpu") if stack.gpu_program is None else (stack.gpu_program, "gpu")
    kind, alike = stack.config.kind, dict[tuple[Line, ...], list[int]]()
    name = kind if kind != "encoder-decoder" else "decoder" if stack.config.causal else "encoder"
    for n, block in enumerate(stack.blocks):
        lines = _of_block(block, stack) if step is None else _of_layer(step.program, n, executor)
        alike.setdefault(tuple(lines), []).append(n)
    for steps, layers in alike.items():
        yield f"{name}, {_as_ranges(layers)}", steps
    if step is not None and (last := _of_layer(step.program, len(stack.blocks), executor)):
        yield f"{name}, after the layers", last


def _of_layer(program: Program, layer: int, executor: str) -> list[Line]:
    """Return the steps of a layer, or after the last layer."""
    first, end = ([*program.layers, len(program.steps)][layer + n] for n in (0, 1))
    points: list[list[str]] = [[] for _ in program.steps[first:end]]
    for name, place in program.points[layer].items():
        points[max(0, place.step - 1 - first)].append(name)
    return [_of_step(*each, executor) for each in zip(program.steps[first:end], points, strict=True)]


def _of_step(step: Step, points: Sequence[str], executor: str) -> Line:
    values = {field.name: getattr(step, field.name) for field in fields(step) if field.name != "layer"}
    places = [value.name.lower() for value in values.values() if isinstance(value, Register)]
    shown = [" -> ".join(places), *(_shown(name, value) for name, value in values.items())]
    num_bytes = _bytes([value for name, value in values.items() if name != "rotary_tables"])
    return Line(type(step).__name__, ", ".join(filter(None, shown)), num_bytes, executor, " ".join(points))


def _of_block(block: Block, stack: Stack) -> list[Line]:
    """Return the matrices of a block that has no program."""
    executor = "cpu" if stack.encode_step else "torch"
    named = {**block.linears, "experts": [each for each in block.matrices if each not in block.linears.values()]}
    return [Line(name, _shown("", each), _bytes(each), executor) for name, each in named.items() if each != []]


def _shown(name: str, value: Any) -> str:
    """Return the value of a step's field as text, or "" if it is absent."""
    match value:
        case None | False | Register():
            return ""
        case True:
            return name
        case Product() | Linear():
            weight = value.weight
            return f"[{weight.num_outputs}, {weight.num_inputs}] {weight.stored}"
        case NormWeights():
            return f"{name} [{len(value.weight)}]"
        case Tensor():
            return f"{name} {list(value.shape)}"
        case tuple() | list():
            return f"{len(value)} x {_shown(name, value[0])}"
        case float():
            return f"{name} {value:g}"
    return f"{name} {value}"


def _bytes(value: Any) -> int:
    """Return the bytes of the weights in a field of a step, or in several."""
    match value:
        case Tensor():
            return value.nbytes
        case Product() | Linear() | NormWeights():
            return _bytes(value.weight) + _bytes(value.bias)
        case LaidWeight():
            return value.packed.nbytes
        case list() | tuple():
            return sum(map(_bytes, value))
        case DenseWeight():
            return _bytes(value.to_dense())
        case TritonGroupedWeight():
            return value.num_bytes
    return 0


def _as_table(lines: Sequence[Line]) -> list[str]:
    """Return the lines in columns."""
    rows = [[line.name, line.numbers, f"{line.num_bytes / 1024:.1f} KiB", line.executor, line.points] for line in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _as_ranges(layers: Sequence[int]) -> str:
    """Return ascending layers as text: "layers 0-4, 6"."""
    starts = [n for n in layers if n - 1 not in layers]
    ends = [n for n in layers if n + 1 not in layers]
    shown = [f"{first}" if first == end else f"{first}-{end}" for first, end in zip(starts, ends, strict=True)]
    return f"layer{'s' * (len(layers) > 1)} {', '.join(shown)}"
