"""decisions(), rerank(), score() and classify(): their bodies and results, and how reasons are drawn and shown."""

import html
import re
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from lightwell_client import Client, DecisionAnswer, InvalidResponse, Reasons, SpanReasons, WordPart
from tests.client.answers import as_json, as_safetensors, check_nothing_is_cut, fields_of
from tests.client.conftest import Asker
from tests.client.test_inspection import NEXT
from tests.client.wire_server import Reply, WireServer
from tests.support.contrast import contrast

mpl.use("Agg")  # no display in tests

WORDS = [("The", 0.5), (" <b>old</b>", -1.5), (" king", 2.0)]
BY_WORD: dict[str, Any] = {
    "by": "word",
    "target": {"option": "a king", "token": " A", "token_id": 7},
    "versus": {"option": "a fox", "token": " B", "token_id": 8},
    "value": 1.25,
    "sum": 1.25,
    "difference": 0.0,
    "positions": [3],
    "parts": [{"position": i, "token": token, "value": value} for i, (token, value) in enumerate(WORDS)],
    "rest": {"embedding": 0.5, "biases": 0.0, "mlps": -0.25},
    "verify": [
        {"words": [{"position": 2, "token": " king"}], "predicted": -0.75, "measured": -0.5},
        {"words": [{"position": i, "token": WORDS[i][0]} for i in (2, 1)], "predicted": 0.75, "measured": 0.625},
    ],
}
BY_HEAD: dict[str, Any] = {
    **BY_WORD,
    "verify": None,
    "parts": [{"layer": n // 2, "head": n % 2, "value": n - 1.5} for n in range(4)],
    "rest": {"embedding": 1.0, "biases": 0.0, "mlps": 0.25},
    "by": "head",
}
BY_LAYER: dict[str, Any] = {
    **BY_HEAD,
    "by": "layer",
    "parts": [{"layer": 0, "attention": 1.0, "mlp": 0.5}, {"layer": 1, "attention": 0.25, "mlp": -1.0}],
    "rest": {"embedding": 0.5, "biases": 0.0},
}
BY_SPAN: dict[str, Any] = {
    "by": "span",
    "text": "A <king> ran.",
    "start": 0,
    "end": 13,
    "tokens": [0, 5],
    "logprob": -2.5,
    "value": 9.0,
    "rest": 7.0,
    "parts": [
        {"message": 0, "start": 9 * n, "end": 9 * n + 8, "tokens": [n, n + 1], "estimate": value, "share": value / 4}
        for n, value in enumerate((3.0, -1.0))
    ],
    "verify": [
        {"span": 0, "logprob": -2.0, "effect": 0.5, "share": 0.1},
        {"span": 1, "logprob": -7.0, "effect": -4.5, "share": -0.9},
    ],
}
USAGE = {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}
CHOICE = {"type": "choice", "name": "who", "instructions": "Who?", "choices": [{"value": "a king"}, {"value": "a fox"}]}
ANSWERED = {
    "type": "choice",
    "name": "who",
    "choice": "a king",
    "confidence": 0.5,
    "probabilities": [{"value": "a king", "probability": 0.75}, {"value": "a fox", "probability": 0.25}],
}
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], str, dict[str, Any]]] = {
    "decisions": (
        ("The old king.", [CHOICE]),
        {"input": "The old king.", "questions": [CHOICE]},
        "/v1/decisions",
        {"answers": [ANSWERED], "model": "toy", "usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}},
    ),
    "rerank": (
        ("a king", ["The old king.", "A fox."]),
        {"query": "a king", "documents": ["The old king.", "A fox."]},
        "/v1/rerank",
        {"id": "rerank-1", "model": "toy", "results": [{"index": 1, "relevance_score": 0.75}], "usage": USAGE},
    ),
    "score": (
        ("a king", ["The old king."]),
        {"text_1": "a king", "text_2": ["The old king."]},
        "/v1/score",
        {"id": "score-1", "model": "toy", "data": [{"index": 0, "object": "score", "score": 0.75}], "usage": USAGE},
    ),
    "classify": (
        ("The old king.",),
        {"input": "The old king."},
        "/v1/classify",
        {"data": [{"index": 0, "label": "royal", "probs": [0.75, 0.25], "num_classes": 2}], "usage": USAGE},
    ),
}
"""For each method: its arguments, the body that it sends, the route, and the answer without reasons."""


def parts_of(answer: Any) -> Any:
    return next(getattr(answer, name) for name in ("answers", "results", "data") if hasattr(answer, name))


@pytest.mark.parametrize("method", CASES)
def test_what_is_judged_comes_with_its_reasons(ask: Asker, server: WireServer, method: str) -> None:
    given, sent, path, body = CASES[method]
    (place,) = body.keys() & {"answers", "results", "data"}
    server.will(Reply(body=body), Reply(body={**body, place: [{**body[place][0], "reasons": BY_WORD}]}))
    assert parts_of(ask.call(method, *given))[0].reasons is None
    options = {"by": "word", "versus": None, "verify": 2}
    explained = ask.call(method, *given, explain=options)
    reasons = parts_of(explained)[0].reasons
    assert (reasons.target.name, reasons.versus.name, reasons.value) == ("a king", "a fox", 1.25)
    assert [(part.token, part.value) for part in reasons.parts] == WORDS
    assert [row.measured for row in reasons.verify] == [-0.5, 0.625]
    assert [(seen.path, seen.body) for seen in server.seen] == [(path, sent), (path, {**sent, "explain": options})]
    assert "a king, rather than a fox: 1.25" in explained._repr_html_()


def test_answers_have_the_fields_of_their_routes(client: Client, server: WireServer) -> None:
    server.will(*(Reply(body=CASES[name][3]) for name in ("decisions", "rerank", "score", "classify")))
    decisions = client.decisions("The old king.", [CHOICE])
    assert isinstance(decisions["who"], DecisionAnswer)
    assert decisions["who"].choice == "a king"
    assert decisions[0].probabilities is not None
    assert [option.probability for option in decisions[0].probabilities] == [0.75, 0.25]
    with pytest.raises(KeyError, match="no question 'when' in this answer; it has who"):
        decisions["when"]
    (best,) = client.rerank("a king", ["The old king."]).results
    assert (best.index, best.relevance_score) == (1, 0.75)
    assert client.score("a king", "The old king.").scores == [0.75]
    assert client.classify("The old king.").data[0].label == "royal"


def test_wrong_arguments_are_named_before_anything_is_sent(client: Client, server: WireServer) -> None:
    with pytest.raises(TypeError, match="explain has no argument 'per'; known are by, take_out, verify, versus"):
        client.classify("A fox.", explain={"per": "word"})
    with pytest.raises(TypeError, match=r"no argument 'top_k'; known are .*top_n"):
        client.rerank("a", ["b"], top_k=3)
    with pytest.raises(TypeError, match="input is 3"):
        client.classify(3)
    assert server.seen == []
    server.will(Reply(body={"data": [{"index": 0}]}))
    with pytest.raises(InvalidResponse, match="not a Scores"):
        client.score("a", "b")


@pytest.mark.parametrize("write", [as_json, as_safetensors])
def test_the_next_token_comes_with_its_reasons(client: Client, server: WireServer, write: Any) -> None:
    server.will(write("arrays", (fields_of(0, **NEXT, reasons=BY_HEAD), {})))
    found = client.next("The fox", explain=True)
    assert server.seen[0].body == {"input": "The fox", "explain": True}
    assert found.reasons is not None
    assert found.reasons.by == "head"
    assert "a king, rather than a fox" in found._repr_html_()


def test_each_of_a_chats_first_tokens_comes_with_its_reasons(ask: Asker, server: WireServer) -> None:
    choice = {"message": {"role": "assistant", "content": "A king."}, "reasons": [BY_WORD, BY_HEAD]}
    server.will(Reply(body={"choices": [choice]}))
    answer = ask.call("chat", "Who ran?", explain={"by": "word"})
    assert [reasons.by for reasons in answer.choices[0].reasons] == ["word", "head"]
    assert server.seen[0].body["explain"] == {"by": "word"}


def test_each_sentence_of_a_chat_comes_with_its_sources(ask: Asker, server: WireServer) -> None:
    choice = {"message": {"role": "assistant", "content": "A <king> ran."}, "reasons": [BY_SPAN]}
    server.will(Reply(body={"choices": [choice]}))
    answer = ask.call("chat", "Who ran?", explain={"by": "span", "verify": 2})
    (reasons,) = answer.choices[0].reasons
    assert isinstance(reasons, SpanReasons)
    assert reasons.strongest() == reasons.parts[1]  # the measured one, not the estimated one
    assert "A &lt;king&gt; ran." in reasons._repr_html_()
    assert reasons.model_copy(update={"verify": None}).strongest() == reasons.parts[0]
    assert server.seen[0].body["explain"] == {"by": "span", "verify": 2}


def test_words_and_the_rest_are_bars_that_add_up_to_the_value() -> None:
    reasons = Reasons.model_validate(BY_WORD)
    axes = reasons.plot(largest=2)
    assert [bar.get_width() for bar in axes.patches] == [2.0, -1.5, 0.5, 0.5, 0.0, -0.25]
    assert sum(bar.get_width() for bar in axes.patches) == reasons.value
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == [
        " king (2)",
        " <b>old</b> (1)",
        "1 other words",
    ]
    check_nothing_is_cut(axes.figure)


def test_heads_are_a_map_and_layers_are_stacked() -> None:
    axes = Reasons.model_validate(BY_HEAD).plot()
    np.testing.assert_array_equal(axes.images[0].get_array(), [[-1.5, -0.5], [0.5, 1.5]])
    check_nothing_is_cut(axes.figure)
    axes = Reasons.model_validate(BY_LAYER).plot()
    # The bar of layer 0's mlp starts at the end of its attention's; the bar of layer 1's is negative and starts at 0.
    assert [(bar.get_y(), bar.get_height()) for bar in axes.patches] == [
        (0, 1.0), (0, 0.25), (1.0, 0.5), (0, -1.0), (0, 0.5), (0, 0.0),
    ]  # fmt: skip
    check_nothing_is_cut(axes.figure)


def test_what_was_predicted_stands_beside_what_was_measured() -> None:
    reasons = Reasons.model_validate(BY_WORD)
    axes = reasons.plot("verify")
    assert [bar.get_width() for bar in axes.patches] == [-0.75, 0.75, -0.5, 0.625]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["without  king (2)", "without all 2"]
    check_nothing_is_cut(axes.figure)
    with pytest.raises(ValueError, match="nothing was taken out"):
        Reasons.model_validate(BY_HEAD).plot("verify")
    with pytest.raises(ValueError, match='"parts" or "verify" is accepted'):
        reasons.plot("words")


def test_a_notebook_shows_each_word_on_the_colour_of_its_part() -> None:
    reasons = Reasons.model_validate(BY_WORD)
    shown = reasons._repr_html_()
    assert "<b>" not in shown
    words = re.findall(r"<span([^>]*)>([^<]*)</span>", shown)
    assert [html.unescape(text) for _, text in words] == [text for text, _ in WORDS]
    titles = [re.findall(r'title="([^"]*)"', attributes) for attributes, _ in words]
    assert titles == [["0: 0.5"], ["1: -1.5"], ["2: 2"]]
    colours = [re.findall(r"#[0-9a-f]+", attributes) for attributes, _ in words]
    grounds = [bytes.fromhex(ground[1:]) for ground, _ in colours]
    assert [red > blue for red, _, blue in grounds] == [True, False, True]  # red raises, blue lowers, as in plot()
    for ground, ink in colours:
        assert contrast(ground, ink) >= 4.5, "WCAG 2.2 asks for that contrast"


@pytest.mark.parametrize("body", [BY_HEAD, BY_LAYER])
def test_a_notebook_names_the_largest_parts(body: dict[str, Any]) -> None:
    shown = Reasons.model_validate(body)._repr_html_()
    assert ("<img" in shown) == (body is BY_HEAD)
    assert {"head": "layer 1, head 1", "layer": "layer 1, mlp"}[body["by"]] in shown


def test_the_texts_of_an_encoder_decoder_stand_in_two_lines() -> None:
    stacks = {0: "encoder", 1: "encoder", 2: "decoder"}
    parts = [{**part, "stack": stacks[i]} for i, part in enumerate(BY_WORD["parts"])]
    reasons = Reasons.model_validate({**BY_WORD, "parts": parts})
    shown = reasons._repr_html_()
    assert shown.count("<p ") == 2
    assert 'title="encoder 1: -1.5"' in shown
    assert isinstance(reasons.parts[0], WordPart)
    heads = [{**part, "part": "cross"} for part in BY_HEAD["parts"]] + BY_HEAD["parts"]
    axes = Reasons.model_validate({**BY_HEAD, "parts": heads}).plot()
    assert axes.images[0].get_array().shape == (4, 2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cross 0", "cross 1", "0", "1"]
