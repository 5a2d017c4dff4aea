"""Plots: titles, maps side by side, labels that do not overlap, and clear errors."""

import math
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot

from lightwell_client import ChatCompletion, Classification, Client, Completion, Decisions, Reranking, Scores
from tests.client.answers import Arrays, as_json, check_nothing_is_cut, draw, fields_of
from tests.client.test_attention import answered, causal
from tests.client.test_inspection import CONTRIBUTIONS, ROLLOUT, WEIGHTS
from tests.client.test_mappings import TRACED, embeddings
from tests.client.wire_server import Reply, WireServer

mpl.use("Agg")  # no display in tests


def labels_of(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def overlaps(axis: Any) -> bool:
    """Return whether two labels of a drawn axis cover each other."""
    boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
    return any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    pyplot.close("all")


def test_all_heads_are_drawn_at_once(client: Client, server: WireServer) -> None:
    pattern = causal(2, 3)
    result = answered(client, server, pattern)
    axes = result.plot()
    assert (labels_of(axes.yaxis), labels_of(axes.xaxis)) == (["0", "5"], ["1", "2", "7"])
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_title()) == ("layer", "head", "pattern: 6 maps")
    picture = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(picture[-4:, -4:], pattern[1, 2])
    np.testing.assert_allclose(picture[:4, 5:9], pattern[0, 1])
    check_nothing_is_cut(axes.figure)
    assert labels_of(result.plot(layer=5).xaxis) == ["1", "2", "7"]
    assert labels_of(result.plot(head=7).yaxis) == ["0", "5"]
    head = result.plot(layer=5, head=7)
    assert (head.get_ylabel(), head.get_xlabel(), head.get_title()) == ("query", "key", "pattern: layer 5, head 7")
    assert labels_of(head.xaxis) == ["The", " <b>", "\\n", "fox"]
    assert (head.images[0].get_array() == pattern[1, 2]).all()
    with pytest.raises(ValueError, match=r"layer is 1; this answer has \[0, 5\]"):
        result.plot(layer=1)


def test_maps_of_pairs_of_reduced_heads_and_of_scores_are_drawn_at_once(client: Client, server: WireServer) -> None:
    pattern = causal(2)
    named = {"pairs": [[0, 1], [5, 2]], "axes": ["pair", "query", "key"], "layers": None, "heads": None}
    pairs = answered(client, server, pattern, **named)
    assert labels_of(pairs.plot().yaxis) == ["0.1", "5.2"]
    assert (np.asarray(pairs.plot(layer=5).images[0].get_array()) == pattern[1]).all()
    with pytest.raises(ValueError, match="choose 0 of the pairs"):
        pairs.plot(layer=5, head=1)
    reduced = answered(client, server, pattern, axes=["layer", "query", "key"], heads=None)
    assert labels_of(reduced.plot().yaxis) == ["0", "5"]
    scores = np.where(np.tri(4, dtype=bool), draw(2, 3, 4, 4), -np.inf).astype(np.float32)
    drawn = answered(client, server, scores, kind="scores").plot().images[0]
    assert drawn.get_clim()[1] == np.float32(abs(scores[np.isfinite(scores)]).max())


def test_a_trace_is_drawn_by_name_and_without_one_if_it_has_one(client: Client, server: WireServer) -> None:
    server.will(as_json("points", (fields_of(0), TRACED)))
    with pytest.raises(
        ValueError, match=r"2 points; plot\(\) draws one of them: blocks.0.attn.hook_q, blocks.0.hook_res"
    ):
        client.trace("x", "all").plot()
    streams: Arrays = {f"blocks.{i}.hook_resid_post": (("position", "d_model"), draw(3, 4)) for i in range(3)}
    server.will(as_json("points", (fields_of(0), streams)))
    trace = client.trace("x", "hook_resid_post")
    axes = trace.plot()
    assert labels_of(axes.yaxis) == ["0", "1", "2"]
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array())[-3:], streams["blocks.2.hook_resid_post"][1])
    assert labels_of(trace.plot("resid_post", layer=1).yaxis) == ["<s>", "The", " fox"]
    with pytest.raises(KeyError, match="it has blocks"):
        trace.plot("hook_q")


def test_several_queries_layers_and_heads_are_drawn_together(client: Client, server: WireServer) -> None:
    added: Arrays = {"norms": (("layer", "head", "query", "key"), np.abs(draw(2, 2, 2, 3)))}
    fields = {**CONTRIBUTIONS, "query_positions": [1, 2], "target": None}
    server.will(as_json("arrays", (fields_of(0, **fields), added)))
    drawn = client.contributions("x", query_positions=[1, 2]).plot()
    np.testing.assert_allclose(np.asarray(drawn.images[0].get_array()), added["norms"][1].sum((0, 1)), rtol=1e-6)
    rolled: Arrays = {"rollout": (("layer", "query", "key"), np.stack([np.tri(3), np.eye(3)]).astype(np.float32))}
    server.will(as_json("arrays", (fields_of(0, **ROLLOUT | {"layers": [0, 1]}), rolled)))
    assert labels_of(client.rollout("x", layers="all").plot().yaxis) == ["0", "1"]
    heads: Arrays = {"weights": (("head", "d_model", "d_head"), draw(3, 4, 2))}
    server.will(as_json("arrays", (fields_of(0, **WEIGHTS | {"rows": None}), heads)))
    assert labels_of(client.weights("W_Q", layer=0, model="m").plot().xaxis) == ["0", "1", "2"]


def test_labels_do_not_overlap(client: Client, server: WireServer) -> None:
    square: Arrays = {"weights": (("d_model", "d_head"), draw(400, 400))}
    server.will(as_json("arrays", (fields_of(0, **WEIGHTS | {"rows": None}), square)))
    weights = client.weights("W_Q", layer=0, head=0, model="m")
    positions, tokens = list(range(64)), [f" word{i}" for i in range(64)]
    places = {"query_positions": positions, "key_positions": positions, "tokens": tokens, "token_ids": positions}
    attention = answered(client, server, causal(1, 1, size=64), layers=[0], heads=[0], offsets=None, **places)
    for axes in (weights.plot(), attention.plot()):
        axes.figure.canvas.draw()
        assert labels_of(axes.xaxis)
        assert not overlaps(axes.xaxis)
        assert not overlaps(axes.yaxis)


def test_embeddings_are_drawn() -> None:
    axes = embeddings(embedding=[[1, 2], [3, -4]], tokens=["a", "b"]).plot()
    assert (np.asarray(axes.images[0].get_array()) == [[1, 2], [3, -4]]).all()
    assert (labels_of(axes.yaxis), axes.get_title()) == (["a", "b"], "embeddings, toy")
    assert labels_of(embeddings().plot().yaxis) == ["0"]


OPTIONS = [{"value": "yes", "probability": 0.75}, {"value": "no", "probability": 0.25}]
ANSWERS: list[tuple[Any, list[str], list[float]]] = [
    (Reranking(results=[{"index": 1, "relevance_score": 0.5, "document": {"text": "a fox"}}]), ["a fox"], [0.5]),
    (Scores(data=[{"index": 0, "score": 0.25}]), ["0"], [0.25]),
    (
        Classification(data=[{"index": 0, "label": "good", "probs": [0.25, 0.75], "num_classes": 2}]),
        ["0: good"],
        [0.75],
    ),
    (Decisions(answers=[{"type": "choice", "name": "q", "probabilities": OPTIONS}]), ["q: yes", "q: no"], [0.75, 0.25]),
]


@pytest.mark.parametrize(("answer", "labels", "widths"), ANSWERS, ids=lambda value: type(value).__name__)
def test_answers_with_a_notebook_view_are_drawn_as_bars(answer: Any, labels: list[str], widths: list[float]) -> None:
    axes = answer.plot()
    assert labels_of(axes.yaxis) == labels
    assert [bar.get_width() for bar in axes.patches] == widths
    assert axes.get_title()
    assert answer._repr_html_() in answer.to_html()


ROWS = {"axes": ["layer", "head", "query", "key"], "shape": [1, 1, 1, 2], "attention": [[[[0.25, 0.75]]]]}


def test_generated_text_is_shown_with_its_probabilities_and_rows(client: Client, server: WireServer) -> None:
    logprobs = {"tokens": [" ran", " <b>"], "token_logprobs": [math.log(0.5), 0.0]}
    choice = {"index": 0, "text": " ran <b>", "finish_reason": "stop", "logprobs": logprobs, "attention": ROWS}
    server.will(Reply(body={"choices": [choice]}))
    completion = client.generate("x", logprobs=1)
    assert isinstance(completion, Completion)
    shown = completion._repr_html_()
    assert shown.count("<img") == 1
    assert " &lt;b&gt;" in shown
    assert "&#x27; ran&#x27;: 0.5" in shown
    axes = completion.plot()
    assert (labels_of(axes.yaxis), [bar.get_width() for bar in axes.patches]) == ([" ran", " <b>"], [0.5, 1.0])
    with pytest.raises(ValueError, match=r"choice is 3; this answer has \[0\]"):
        completion.plot(choice=3)


def test_a_chat_is_shown_and_without_probabilities_is_not_drawn(client: Client) -> None:
    chat = client.chat("x")
    assert isinstance(chat, ChatCompletion)
    assert "über den Bach" in chat._repr_html_()
    with pytest.raises(ValueError, match="ask with logprobs=1, or logprobs=True in a chat"):
        chat.plot()
