"""POST /v1/decisions and /v1/systemone: the prompts of questions, and the rejected requests."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.dialects.judgements.option_probabilities import Judgement
from tests.server.dialects.routes import refuses
from tests.server.fake_client import FakeEngine
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, error_of, site
from tests.tiny import make_variant

PREDICATE: dict[str, Any] = {"type": "predicate", "instructions": "P"}
CHOICE: dict[str, Any] = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Q"}, {"type": "input_json", "data": {"a": [1, None]}}],
    "choices": [{"value": "x", "description": "d"}, {"value": True}],
}
REASONING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
)
LONG = {"type": "noul", "instructions": "x" * 3_000}
STATE = {"state": "s", "questions": {"q": {"type": "noul", "instructions": "y"}}}


async def prompts(at: Site, **body: Any) -> list[str]:
    """Return the prompts that the engine gets."""
    first = len(at.engine.submitted)
    answer = await at.post("/v1/decisions", body)
    assert answer.status_code == 200, answer.text
    return [bytes(each.prompt_token_ids).decode() for each in at.engine.submitted[first:]]


class WideEngine(FakeEngine):
    """A fake engine with room for long prompts."""

    def info(self) -> Any:
        return replace(super().info(), max_model_len=4000)


async def test_questions_follow_the_users_last_message(tmp_path: Path) -> None:
    async with site(tmp_path, WideEngine(), max_model_len=4000) as at:
        one, two = await prompts(at, input="I", questions=[PREDICATE, CHOICE])
        conversation: Any = [
            {"role": "developer", "content": "D"},
            {"role": "user", "content": [{"type": "input_json", "data": [{"k": "v"}]}]},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
        (three,) = await prompts(at, input=conversation, questions=[PREDICATE])
    assert one == "<user>I\n\nQuestion: P\nA: Yes\nB: No\nAnswer with one label.<A>"
    assert two == '<user>I\n\nQuestion: Q{"a":[1,null]}\nA: x - d\nB: true\nAnswer with one label.<A>'
    told = '<system>D<user>[{"k":"v"}]<assistant>no<user>Question: P\nA: Yes\nB: No\nAnswer with one label.<A>'
    assert three == told


async def test_without_a_chat_template_the_input_is_written_plainly(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
    output = {"type": "function_call_output", "call_id": "c", "output": "7"}
    async with site(tmp_path, WideEngine(), template=None, max_model_len=4000) as at:
        (one,) = await prompts(at, input="I", questions=[PREDICATE])
        (two,) = await prompts(at, input=[call, output], questions=[PREDICATE])
    question = "Question: P\nA: Yes\nB: No\nAnswer with one label.\n\nAnswer:"
    assert one == f"I\n\n{question}"
    assert two == f'assistant: f({{"a":1}})\n\ntool: 7\n\n{question}'


async def test_reasoning_is_left_out_or_refused(tmp_path: Path) -> None:
    async with site(tmp_path, WideEngine(), template=REASONING, max_model_len=4000) as at:
        (prompt,) = await prompts(at, input="I", questions=[PREDICATE])
        body = {"input": "I", "questions": [PREDICATE], "chat_template_kwargs": {"enable_thinking": True}}
        await refuses(at, "/v1/decisions", body, code="answer_begins_in_reasoning")
    assert prompt.endswith("<think></think>")


async def test_a_template_that_hides_the_question_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path, template="{{ messages[0].role }}") as at:
        error = await at.error("/v1/decisions", {"input": "I", "questions": [PREDICATE]}, 400)
    assert (error["code"], error["param"]) == ("no_place_for_questions", "input")


async def test_more_options_than_labels_are_refused(tmp_path: Path) -> None:
    many = {**CHOICE, "choices": [{"value": str(i)} for i in range(27)]}
    async with site(tmp_path, WideEngine(), max_model_len=4000) as at:
        error = await at.error("/v1/decisions", {"input": "I", "questions": [PREDICATE, many]}, 400)
    assert (error["code"], error["param"]) == ("labels_not_single_tokens", "questions[1]")
    assert "27 options; at most 26 are accepted" in error["message"]


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"questions": []}, "questions", "at least 1"),
        ({"questions": [PREDICATE] * 401}, "questions", "at most 400"),
        ({"questions": [{"type": "guess", "instructions": "x"}]}, "questions[0].type", "predicate, choice, score"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions", "required"),
        ({"questions": [{**CHOICE, "choices": [{"value": "x"}]}]}, "questions[0].choices", "at least 2"),
        ({"questions": [{**CHOICE, "choices": [{"value": "x"}] * 2}]}, "questions[0].choices", "there twice"),
        ({"questions": [{**CHOICE, "choices": [{"value": 1}, {"value": 2}]}]}, "questions[0].choices[0].value", "str"),
        ({"input": []}, "input", "at least 1"),
        ({"input": [{"type": "custom_tool_call"}]}, "input[0].type", "arguments are JSON"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input", "no call before it"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}] * 129},
            "input",
            "at most 128",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "does not accept images",
        ),
        ({"input": "x" * 500}, "questions[0]", "at most 63 are accepted"),
        ({"input": "x" * 3_000}, "input", "at most 64 are accepted"),
        ({"questions": [{**PREDICATE, "instructions": "x" * 2_000_000}]}, "questions[0]", "bytes"),
        ({"questions": [{**PREDICATE, "name": "x" * 257}]}, "questions[0].name", "at most 256"),
        ({"temperature": 1}, "temperature", "no such field"),
    ],
)
async def test_bad_input_names_the_field(change: dict[str, Any], field: str, reason: str, plain: Site) -> None:
    error = await plain.error("/v1/decisions", {"input": "I", "questions": [PREDICATE], **change}, 400)
    assert error["param"] == field
    assert reason in error["message"]
    assert "truncate" not in error["message"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"questions": {"a-b c": {"type": "noul", "instructions": 5}}}, "questions.a-b c.instructions"),
        ({"questions": {"str": {"type": "noul", "instructions": 5}}}, "questions.str.instructions"),
        ({"questions": {"é.0": {"type": "choice", "criteria": {"x y": 1}}}}, "questions.é.0.criteria.x y"),
        ({"questions": {"a-b": {"type": "noul"}}}, "questions.a-b.instructions"),
        ({"questions": {"a-b": {"type": "guess"}}}, "questions.a-b.type"),
        ({"state": "x" * 3_000}, "state"),
        ({"state": "x" * 300_000}, "state"),
        ({"questions": {"first": {"type": "noul", "instructions": "y"}, "a-b": LONG}}, "questions.a-b"),
    ],
)
async def test_systemones_errors_name_fields_as_the_client_wrote_them(
    change: dict[str, Any], field: str, plain: Site
) -> None:
    error = error_of(await plain.post("/v1/systemone", STATE | change))
    assert error["param"] == field
    assert error["message"].startswith(field + ":")
    assert "truncate" not in error["message"]
    assert "input and" not in error["message"]


async def test_json_of_an_input_is_bounded(plain: Site) -> None:
    deep: Any = {}
    for _ in range(40):
        deep = {"a": deep}
    for data, reason in (
        (deep, "32 levels"),
        ({"a": [0] * 10_001}, "10000 values"),
        ({"a": "x" * 300_000}, "bytes"),
    ):
        part = {"role": "user", "content": [{"type": "input_json", "data": data}]}
        await refuses(plain, "/v1/decisions", {"input": [part], "questions": [PREDICATE]}, reason)


async def test_systemones_errors_are_read_by_both_kinds_of_clients(tmp_path: Path) -> None:
    async with site(tmp_path, WideEngine(), max_model_len=4000) as at:
        for change, reason in (
            ({"questions": {}}, "at least 1"),
            ({"questions": {"q": {"type": "box"}}}, "does not accept images"),
            ({"questions": {"q": {"type": "noul"}}}, "needs instructions"),
            ({"questions": {"q": {"type": "score", "criteria": []}}}, "at least 1"),
            ({"assets": {"a": {"type": "image"}}}, "does not accept images"),
        ):
            answer = await at.post("/v1/systemone", {**STATE, **change})
            assert answer.status_code == 400, change
            assert reason in error_of(answer)["message"]
            assert answer.json()["detail"] == answer.json()["error"]["message"]
        one = {"type": "choice", "criteria": {"only": None}}
        told = (await at.post("/v1/systemone", {**STATE, "questions": {"q": one}})).json()
    assert told["answers"]["q"] == {
        "type": "choice",
        "choice": "only",
        "confidence": 1.0,
        "probabilities": {"only": 1.0},
    }


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [((1.0, 0.0), 1.0), ((0.25, 0.75), 0.5), ((0.5, 0.5), 0.0), ((0.5, 0.25, 0.25), 0.25)],
)
def test_confidence_grows_from_equal_shares_to_a_certain_choice(
    probabilities: tuple[float, ...], confidence: float
) -> None:
    assert Judgement(probabilities, label_mass=1.0, is_label=True).confidence == pytest.approx(confidence)


async def test_names_and_criteria_may_be_of_any_language_and_json(tmp_path: Path) -> None:
    engine = WideEngine()
    criteria = {"true": {"if": "é"}, "false": None}
    body = {"state": ["ü", 1], "instructions": "Z", "questions": {"ü?": {"type": "noul", "criteria": criteria}}}
    async with site(tmp_path, engine, max_model_len=4000) as at:
        answer = await at.post("/v1/systemone", body)
    assert list(answer.json()["answers"]) == ["ü?"]
    prompt = bytes(engine.submitted[0].prompt_token_ids).decode()
    assert prompt.startswith('<user>Z\n\n["ü",1]\n\nQuestion: Which of these fits?\nA: Yes - {"if":"é"}\nB: No\n')


@pytest.mark.parametrize("variant", ["llama-gqa", "gemma4"])
async def test_a_network_answers_as_its_logits_tell(variant: str, tmp_path: Path) -> None:
    engine = InlineEngine(folder=make_variant(variant, tmp_path / "model"))
    async with site(tmp_path, engine, config=engine.model_config, max_model_len=200) as at:
        body = {"input": "I", "questions": [PREDICATE]}
        answer = await at.post("/v1/decisions", body)
        assert answer.status_code == 200, answer.text
        prompt = list(engine.submitted[0].prompt_token_ids)
        following = await at.post("/v1/next", {"input": prompt, "full": True})
    logits = following.json()["data"][0]["arrays"]["logits"]["data"]
    yes, no = (math.exp(logits[ord(label)]) for label in "AB")
    assert abs(answer.json()["answers"][0]["probability"] - yes / (yes + no)) <= 1e-6
