"""Without inspection requests, captures cost nothing: a step dispatches the operations that it would without them,
and runs none of their code.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import model.hooks.attention_hooks
import model.network.sublayers
from model.hooks.attention_hooks import Attended
from model.hooks.hooks import Hooks, LayerHooks
from model.layers.attention import NativeAttention, PlainAttention
from model.network.transformer import Transformer
from server.engine.captures.attention_sink import AttentionSink
from server.engine.engine import Engine
from server.engine.request import AttentionCapture, EmbedTask, Task
from tests import tiny
from tests.server.engine.driving import Load, build, generate, request

CAPTURES: tuple[tuple[Any, str], ...] = (
    (Hooks, "__init__"),
    (LayerHooks, "__init__"),
    (LayerHooks, "__call__"),
    (Attended, "rows"),
    (NativeAttention, "rows"),
    (PlainAttention, "rows"),
    (AttentionSink, "__init__"),
    (model.network.sublayers, "attend_with_hooks"),
    (model.network.sublayers, "deliver_results"),
)
"""All entry points of the code that captures: it runs only for an inspection request."""
Operation = tuple[str, tuple[tuple[int, ...], ...]]
"""An operation's name and the shapes of the tensors it was given."""


class Dispatched(TorchDispatchMode):
    """Records each operation that torch dispatches while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        shapes = tuple(tuple(each.shape) for each in args if isinstance(each, torch.Tensor))
        self.operations.append((str(func), shapes))
        return func(*args, **(kwargs or {}))


def steps_of(network: Transformer, *tasks: Task) -> list[list[Operation]]:
    """Return the operations of each step of an engine that has these tasks and no others."""
    engine: Engine = build(network)
    encoded = range(3, 12) if network.config.kind == "encoder-decoder" else ()
    for uid, task in enumerate(tasks):
        engine.add_request(request(uid, range(4 + uid, 20), task, encoded=encoded))
    steps = []
    while engine.has_work:
        with Dispatched() as dispatched:
            outputs = engine.step().outputs
        errors = [output.error for output in outputs if output.error]
        assert not errors, errors
        steps.append(dispatched.operations)
    return steps


def without_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the code that captures, so that any call of it fails."""

    def removed(name: str) -> Callable[..., None]:
        def fail(*arguments: object, **named: object) -> None:
            raise AssertionError(f"{name} ran, though nobody looks")

        return fail

    for owner, name in CAPTURES:
        monkeypatch.setattr(owner, name, removed(f"{owner.__name__}.{name}"))


def usual(network: Transformer) -> tuple[Task, ...]:
    """Return the tasks of a server without inspection requests."""
    if network.config.kind == "encoder":
        embed = EmbedTask(layer=None, pooling="mean", normalize=True, dimensions=None)
        return (embed, embed)
    return (generate(6), generate(5, temperature=1.0, top_p=0.9), generate(4, logprobs=2))


@pytest.mark.parametrize("name", tiny.UNLIKE)
def test_a_step_dispatches_the_operations_that_it_would_without_captures(
    model_of: Load, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = model_of(name)
    steps_of(network, *usual(network))  # an encoder allocates its scratch memory here and keeps it
    with_them = steps_of(network, *usual(network))
    without_captures(monkeypatch)
    assert steps_of(network, *usual(network)) == with_them


def test_the_count_sees_an_inspection(
    model_of: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that a capture is counted; otherwise the test above could not fail."""
    network = model_of("llama")
    looking = generate(5, attention=AttentionCapture(pairs=((0, 0),)))
    plain, looked = (sum(map(len, steps_of(network, task))) for task in (generate(5), looking))
    assert looked > plain
    without_captures(monkeypatch)
    with pytest.raises(AssertionError, match="log"):
        steps_of(network, looking)
    assert "nobody looks" in caplog.text
