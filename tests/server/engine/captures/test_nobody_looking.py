"""Without inspection requests, captures cost nothing: a step runs none of their code."""

from collections.abc import Callable
from typing import Any

import pytest

from lightwell.model.hooks.attention_hooks import Attended
from lightwell.model.hooks.hooks import Hooks, LayerHooks
from lightwell.model.layers.attention import NativeAttention, PlainAttention
from lightwell.model.network import sublayers
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.captures.attention_sink import AttentionSink
from lightwell.server.engine.messages.request import AttentionCapture, EmbedTask, Task
from tests import tiny
from tests.server.engine.driving import Answer, Load, build, generate, request, run

CAPTURES: tuple[tuple[Any, str], ...] = (
    (Hooks, "__init__"),
    (LayerHooks, "__init__"),
    (LayerHooks, "__call__"),
    (Attended, "rows"),
    (NativeAttention, "rows"),
    (PlainAttention, "rows"),
    (AttentionSink, "__init__"),
    (sublayers, "attend_with_hooks"),
    (sublayers, "deliver_results"),
)
"""All entry points of the code that captures: it runs only for an inspection request."""


@pytest.fixture(autouse=True)
def _without_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the code that captures, so that any call of it fails."""

    def removed(name: str) -> Callable[..., None]:
        def fail(*arguments: object, **named: object) -> None:
            raise AssertionError(f"{name} ran, though nobody looks")

        return fail

    for owner, name in CAPTURES:
        monkeypatch.setattr(owner, name, removed(f"{owner.__name__}.{name}"))


def answers_of(network: Transformer, *tasks: Task) -> list[Answer]:
    encoded = range(3, 12) if network.config.kind == "encoder-decoder" else ()
    asked = [request(uid, range(4 + uid, 20), task, encoded=encoded) for uid, task in enumerate(tasks)]
    return list(run(build(network), asked).values())


@pytest.mark.parametrize("name", tiny.UNLIKE)
def test_a_step_of_texts_or_embeddings_runs_no_code_of_captures(model_of: Load, name: str) -> None:
    network = model_of(name)
    tasks: tuple[Task, ...] = (EmbedTask(pooling="mean"), EmbedTask(pooling="mean"))
    if network.config.kind != "encoder":
        tasks = (generate(6), generate(5, temperature=1.0, top_p=0.9), generate(4, logprobs=2))
    assert [answer.error for answer in answers_of(network, *tasks)] == [None] * len(tasks)


def test_an_inspection_runs_it(model_of: Load, caplog: pytest.LogCaptureFixture) -> None:
    """Check that a capture is noticed; otherwise the test above could not fail."""
    (answer,) = answers_of(model_of("llama"), generate(5, attention=AttentionCapture(pairs=((0, 0),))))
    assert answer.error == "the server's log has the reason"
    assert "nobody looks" in caplog.text
