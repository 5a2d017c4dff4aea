"""The field `explain` of requests: its comparisons, its answers, and the rejected requests."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.server.dialects.routes import refuses
from tests.server.inline_engine import InlineEngine
from tests.server.serving import TEMPLATE, Site, build_site
from tests.tiny import make, make_classifier, make_variant

CHOICE: dict[str, Any] = {
    "type": "choice",
    "name": "c",
    "instructions": "Q",
    "choices": [{"value": "x"}, {"value": "y"}, {"value": True}],
}
TEXTS = ["A wolf ate her.", "There was a girl.", "Wolf?"]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A decoder that writes, with a tokenizer of bytes."""
    return built(tmp_path_factory.mktemp("writer"), make_variant, "llama-gqa", own_tokenizer=False)


@pytest.fixture(scope="module")
def labeller(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An encoder with three labels."""
    return built(tmp_path_factory.mktemp("labeller"), make_classifier, "bert", num_labels=3)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An encoder that scores pairs."""
    return built(tmp_path_factory.mktemp("ranker"), make_classifier, "bert", num_labels=1)


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An encoder that fills in masked words."""
    return built(tmp_path_factory.mktemp("filler"), make_variant, "bert")


def built(
    folder: Path,
    make: Callable[..., Path],
    name: str,
    *,
    own_tokenizer: bool = True,
    template: str | None = None,
    max_capture_bytes: int = 1 << 30,
    **more: Any,
) -> Site:
    engine = InlineEngine(folder=make(name, folder / "model", **more))
    engine.engine_info = replace(engine.engine_info, max_model_len=128)
    place = engine.folder if own_tokenizer else folder
    limits: dict[str, Any] = {"max_model_len": 128, "max_capture_bytes": max_capture_bytes}
    return build_site(place, engine, config=engine.model_config, template=template, **limits)


async def ask(at: Site, path: str, **body: Any) -> Any:
    answer = await at.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(reasons: dict[str, Any], by: str = "word") -> None:
    """Check that parts and rest sum to the value."""
    parts = [part.get("value", part.get("attention", 0) + part.get("mlp", 0)) for part in reasons["parts"]]
    assert reasons["by"] == by
    assert reasons["sum"] == pytest.approx(reasons["value"], abs=1e-4)
    assert sum(parts) + sum(reasons["rest"].values()) == pytest.approx(reasons["sum"], abs=1e-9)


async def test_a_decision_is_explained_against_the_runner_up(writer: Site) -> None:
    plain = await ask(writer, "/v1/decisions", input="I", questions=[CHOICE])
    told = await ask(writer, "/v1/decisions", input="I", questions=[CHOICE], explain=True)
    (answer,) = told["answers"]
    reasons = answer.pop("reasons")
    assert plain["answers"] == [answer]
    check(reasons)
    ranked = sorted(answer["probabilities"], key=lambda each: -each["probability"])
    first, second = ({True: "true"}.get(each["value"], each["value"]) for each in ranked[:2])
    assert (reasons["target"]["option"], reasons["versus"]["option"]) == (first, second)
    # The difference of two logits is the logarithm of the quotient of their probabilities.
    quotient = math.log(ranked[0]["probability"] / ranked[1]["probability"])
    assert reasons["value"] == pytest.approx(quotient, abs=1e-4)
    prompt = writer.engine.submitted[-1].prompt_token_ids or writer.engine.submitted[0].prompt_token_ids
    assert "".join(part["token"] for part in reasons["parts"]) == bytes(prompt).decode()
    assert reasons["positions"] == [len(prompt) - 1]


async def test_a_named_option_is_compared_with_the_likeliest_other(writer: Site) -> None:
    (answer,) = (await ask(writer, "/v1/decisions", input="I", questions=[CHOICE]))["answers"]
    likeliest, *others = sorted(answer["probabilities"], key=lambda each: -each["probability"])
    for versus in (likeliest, *others):
        asked = {"by": "layer", "versus": versus["value"]}
        (told,) = (await ask(writer, "/v1/decisions", input="I", questions=[CHOICE], explain=asked))["answers"]
        target = others[0] if versus is likeliest else likeliest
        check(told["reasons"], "layer")
        assert told["reasons"]["value"] == pytest.approx(
            math.log(target["probability"] / versus["probability"]), abs=1e-4
        )
    asked = {"by": "head", "versus": None}
    (told,) = (await ask(writer, "/v1/decisions", input="I", questions=[CHOICE], explain=asked))["answers"]
    check(told["reasons"], "head")
    assert told["reasons"]["versus"] is None


async def test_systemone_has_reasons_by_name(writer: Site) -> None:
    questions = {"n": {"type": "noul", "instructions": "y"}, "s": {"type": "score", "criteria": ["a", {"b": 1}]}}
    told = await ask(writer, "/v1/systemone", state="s", questions=questions, explain={"verify": 2})
    for answer in told["answers"].values():
        check(answer["reasons"])
        assert len(answer["reasons"]["verify"]) == 3
    assert {told["answers"]["s"]["reasons"]["target"]["option"]} <= {"a", '{"b":1}'}
    assert "reasons" not in (await ask(writer, "/v1/systemone", state="s", questions=questions))["answers"]["n"]


async def test_the_next_token_is_explained(writer: Site) -> None:
    body = {"input": ["abcde", "xyz"], "position": -2, "num_tokens": 3}
    told = await ask(writer, "/v1/next", **body, explain={"versus": "next", "verify": 1})
    for entry in told["data"]:
        check(entry["reasons"])
        first, second, _ = entry["temperatures"][0]["tokens"]
        assert entry["reasons"]["value"] == pytest.approx(first["logit"] - second["logit"], abs=1e-4)
        assert entry["reasons"]["target"]["token_id"] == first["token_id"]
        assert entry["reasons"]["positions"] == [entry["position"]]
    named = await ask(writer, "/v1/next", **body, explain={"versus": "q"})
    assert [entry["reasons"]["versus"]["token"] for entry in named["data"]] == ["q", "q"]
    alone = await ask(writer, "/v1/next", **body, explain={"versus": None})
    for entry in alone["data"]:
        assert entry["reasons"]["value"] == pytest.approx(entry["temperatures"][0]["tokens"][0]["logit"], abs=1e-4)


async def test_the_first_tokens_of_a_chat_are_explained(tmp_path: Path) -> None:
    chat = built(tmp_path, make_variant, "llama-gqa", own_tokenizer=False, template=TEMPLATE)
    body = {"messages": [{"role": "user", "content": "abc"}], "temperature": 0, "ignore_eos": True, "max_tokens": 18}
    body |= {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    told = await ask(chat, "/v1/chat/completions", **body, explain=True)
    (choice,) = told["choices"]
    entries = choice["logprobs"]["content"]
    assert len(choice["reasons"]) == 16
    for reasons, entry, token_id in zip(choice["reasons"], entries, choice["token_ids"], strict=False):
        check(reasons)
        assert reasons["target"]["token_id"] == token_id
        first, second = entry["top_logprobs"]
        assert reasons["value"] == pytest.approx(first["logprob"] - second["logprob"], abs=1e-4)
    first = choice["reasons"][0]["positions"][0]
    assert [each["positions"] for each in choice["reasons"]] == [[first + i] for i in range(16)]
    for change in ({"stream": True}, {"n": 2}):
        await refuses(chat, "/v1/chat/completions", {**body, **change, "explain": True}, param="explain")


async def test_a_masked_word_is_explained(filler: Site) -> None:
    told = await ask(filler, "/v1/next", input="there was a [MASK] in a wood", explain={"by": "word"})
    (entry,) = told["data"]
    check(entry["reasons"])
    first, second, *_ = entry["temperatures"][0]["tokens"]
    assert entry["reasons"]["value"] == pytest.approx(first["logit"] - second["logit"], abs=1e-4)
    assert [part["token"] for part in entry["reasons"]["parts"]] == entry["tokens"]


async def test_scores_and_ranks_are_explained_by_their_logit(ranker: Site) -> None:
    body = {"query": "who ate her?", "documents": TEXTS, "use_activation": False}
    told = await ask(ranker, "/v1/rerank", **body, top_n=2, explain=True)
    assert len(told["results"]) == 2
    for result in told["results"]:
        check(result["reasons"])
        assert result["reasons"]["value"] == pytest.approx(result["relevance_score"], abs=1e-5)
        assert result["reasons"]["versus"] is None
    pairs = {"text_1": "who ate her?", "text_2": TEXTS, "use_activation": False}
    for each in (await ask(ranker, "/v1/score", **pairs, explain={"by": "head"}))["data"]:
        check(each["reasons"], "head")
        assert each["reasons"]["value"] == pytest.approx(each["score"], abs=1e-5)
    texts = {"query": "who ate her?", "texts": TEXTS, "raw_scores": True}
    for each in await ask(ranker, "/rerank", **texts, explain={"by": "layer"}):
        check(each["reasons"], "layer")
        assert each["reasons"]["value"] == pytest.approx(each["score"], abs=1e-5)


async def test_labels_are_explained(labeller: Site) -> None:
    told = await ask(labeller, "/v1/classify", input=TEXTS, use_activation=False, explain={"verify": 1})
    for each in told["data"]:
        check(each["reasons"])
        order = sorted(each["probs"], reverse=True)
        assert each["reasons"]["target"]["label"] == each["label"]
        assert each["reasons"]["value"] == pytest.approx(order[0] - order[1], abs=1e-5)
    told = await ask(labeller, "/v1/classify", input=[[5, 6, 7]], use_activation=False, explain={"versus": "LABEL_1"})
    assert told["data"][0]["reasons"]["versus"] == {"label": "LABEL_1", "index": 1}
    for likeliest, *others in await ask(labeller, "/predict", inputs=[[text] for text in TEXTS], explain=True):
        check(likeliest["reasons"])
        assert likeliest["reasons"]["target"]["label"] == likeliest["label"]
        assert not any("reasons" in other for other in others)


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"explain": {"by": "sentence"}}, "explain.by", "'word', 'head' or 'layer'"),
        ({"explain": {"verify": 17}}, "explain.verify", "less than or equal to 16"),
        ({"explain": {"verify": -1}}, "explain.verify", "greater than or equal to 0"),
        ({"explain": {"take_out": "word"}}, "explain.take_out", "'keys' or 'embedding'"),
        ({"explain": {"words": 1}}, "explain.words", "no such field"),
        ({"explain": "yes"}, "explain", "object"),
        ({"explain": {"versus": "z"}}, "explain.versus", '"next", null, '),
        ({"questions": [CHOICE] * 17, "explain": True}, "explain", "17 questions; at most 16 are explained"),
    ],
)
async def test_bad_questions_about_reasons_name_the_field(
    writer: Site, change: dict[str, Any], field: str, reason: str
) -> None:
    await refuses(writer, "/v1/decisions", {"input": "I", "questions": [CHOICE], **change}, reason, param=field)


async def test_what_cannot_be_explained_is_refused(writer: Site, labeller: Site, tmp_path: Path) -> None:
    changed = {"interventions": [{"point": "hook_resid_pre", "layer": 0, "op": "zero"}]}
    for fields, field in (
        ({**changed, "explain": True}, "explain"),
        ({"explain": {"versus": True}}, "explain.versus"),
        ({"explain": {"versus": "no token"}}, "explain.versus"),
    ):
        assert (await writer.error("/v1/next", {"input": "abc", **fields}, 400))["param"] == field
    error = await labeller.error("/v1/classify", {"input": "wolf", "explain": {"versus": "LABEL_3"}}, 400)
    assert (error["param"], "LABEL_0" in error["message"]) == ("explain.versus", True)
    many = built(tmp_path, make, "gemma3n", own_tokenizer=False)
    error = await many.error("/v1/next", {"input": "abc", "explain": True}, 400)
    assert (error["param"], "residual streams" in error["message"]) == ("explain", True)


async def test_captures_of_reasons_are_bounded(writer: Site) -> None:
    at = build_site(
        Path(str(writer.engine.folder)).parent,
        writer.engine,
        config=writer.model.config,
        template=None,
        max_capture_bytes=10_000,
    )
    await refuses(at, "/v1/next", {"input": "abcdef" * 4, "explain": True}, "--max-capture-bytes", status=413)


async def test_a_chat_whose_reasons_have_no_room_is_refused_before_it_is_written(tmp_path: Path) -> None:
    chat = built(tmp_path, make_variant, "llama-gqa", own_tokenizer=False, template=TEMPLATE, max_capture_bytes=10_000)
    body = {"messages": [{"role": "user", "content": "abc" * 9}], "max_tokens": 18, "logprobs": True}
    await refuses(chat, "/v1/chat/completions", {**body, "explain": True}, "--max-capture-bytes", status=413)
    assert await chat.metric("lightwell_generation_tokens_total") <= 1
    assert (await chat.post("/v1/chat/completions", body)).status_code == 200
