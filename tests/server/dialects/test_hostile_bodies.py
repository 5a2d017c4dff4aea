"""Bodies within the limits that would take long. They are rejected before the work, or processed in pieces, so that the
event loop serves other requests in between.
"""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ValidationError, field_validator

from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.config.auth.keys import Keyring
from lightwell.server.dialects.auth_route import guarded_route
from lightwell.server.generation.interventions.reading import MAX_CHANGES
from lightwell.server.generation.prompts.text_parts import MIN_TEXT_LIMIT, Keep, part_for
from lightwell.server.http.error_handlers import install_error_handlers
from lightwell.server.http.json_reader import MAX_SCALARS
from lightwell.server.schemas.base import RequestModel
from lightwell.server.schemas.generation import ChatCompletionRequest
from lightwell.server.schemas.judgements.decisions import DecisionsRequest
from lightwell.server.schemas.judgements.systemone import SystemOneRequest
from lightwell.server.schemas.openai_responses.responses import MAX_REPEATED, ResponsesRequest
from tests.server.dialects.test_interventions import clean, numbers
from tests.server.dialects.test_judgements import PREDICATE, STATE
from tests.server.fake_client import NUM_LAYERS
from tests.server.serving import VOCAB_SIZE, Site, error_of, site, tiny_classifier

ZERO = {"point": "attn.hook_z", "layer": "all", "op": "zero"}


async def turns_of(at: Site, path: str, body: Any) -> tuple[httpx.Response, int]:
    """Return the answer, and the number of iterations of the event loop until it arrived."""
    answering = asyncio.create_task(at.post(path, body))
    turns = 0
    while not answering.done():
        turns += 1
        await asyncio.sleep(0)
    return await answering, turns


async def test_inputs_times_interventions_have_a_bound_of_their_own(tmp_path: Path) -> None:
    body = {"input": ["a"] * 2048, "points": ["ln_final.hook_scale"], "interventions": [ZERO] * 64}
    async with site(tmp_path, max_num_queued_requests=4096) as at:
        error = await at.error("/v1/trace", body, 400)
        assert error["code"] == "too_many_changes"
        assert f"times layers is {2048 * 64 * NUM_LAYERS}; at most {MAX_CHANGES} is" in error["message"]
        body = {"prompt": ["a"] * 1000, "max_tokens": 1, "interventions": [ZERO] * 64}
        assert (await at.error("/v1/completions", body, 400))["code"] == "too_many_changes"
        assert at.engine.submitted == []


async def test_interventions_are_planned_once_for_inputs_of_a_length(plain: Site) -> None:
    inputs = [[1] * (1 + i % 60) for i in range(600)]
    body = {"input": inputs, "points": ["ln_final.hook_scale"], "interventions": [ZERO] * 64}
    answer, turns = await turns_of(plain, "/v1/trace", body)
    assert answer.status_code == 200
    changes = [each.interventions for each in plain.engine.submitted]
    assert {len(each) for each in changes} == {64 * NUM_LAYERS}
    assert len({id(each) for each in changes}) == 60
    assert turns > 60 + 600 // 64


async def test_equal_inputs_of_from_are_one_source(plain: Site) -> None:
    """Weigh each input by its number of copies in the mean: two of "ab" and one of "cdef" are eight positions."""
    mean = {"point": "resid_pre.0", "op": "mean"}
    many = [{**mean, "from": {"input": ["a"] * 200}}] * 64
    answer = await plain.post("/v1/trace", {"input": "a", "points": ["logits"], "interventions": many})
    assert answer.status_code == 200
    assert len(plain.engine.submitted) == 2
    few = [{**mean, "from": {"input": inputs}} for inputs in (["ab", "ab", "cdef"], ["cdef", "ab", "ab"])]
    await plain.post("/v1/trace", {"input": "a", "points": ["logits"], "interventions": few})
    one, other = plain.engine.submitted[-1].interventions
    own = await plain.post("/v1/trace", {"input": ["a"] * 256, "points": ["logits"], "interventions": [mean]})
    assert own.status_code == 200
    assert len({id(each.interventions) for each in plain.engine.submitted[-256:]}) == 1
    two, four = (clean("hook_resid_pre", 0, length).sum(0) for length in (2, 4))
    assert np.allclose(numbers(one).reshape(-1), (2 * two + four) / 8)
    assert np.allclose(numbers(one), numbers(other))


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the texts that tokenizers read."""
    read: list[str] = []
    encode, encode_pairs = Tokenizer.encode_batch, Tokenizer.encode_pairs

    def batch(tokenizer: Tokenizer, texts: Sequence[str], *arguments: Any, **options: Any) -> Any:
        read.extend(texts)
        return encode(tokenizer, texts, *arguments, **options)

    def pairs(tokenizer: Tokenizer, texts: Sequence[tuple[str, str]], *arguments: Any, **options: Any) -> Any:
        read.extend(text for pair in texts for text in pair)
        return encode_pairs(tokenizer, texts, *arguments, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", batch)
    monkeypatch.setattr(Tokenizer, "encode_pairs", pairs)
    return read


async def test_long_texts_are_tokenised_as_far_as_they_are_read(tokenised: list[str], plain: Site) -> None:
    text = "a" + "b" * MIN_TEXT_LIMIT + "c"
    for path, body in (
        ("/v1/completions", {"prompt": [text] * 3, "max_tokens": 1, "truncate": True}),
        ("/v1/completions", {"prompt": text, "max_tokens": 1, "truncate_prompt_tokens": 5}),
        ("/v1/embeddings", {"input": [text] * 3, "truncate": True}),
        ("/v1/trace", {"input": text, "points": ["logits"], "positions": -1, "truncate": True}),
    ):
        assert (await plain.post(path, body)).status_code == 200
    for path, field in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        error = await plain.error(path, {field: [text[:100_000]] * 3, "truncate": False}, 400)
        assert error["message"].startswith(f"{field}[0]: the prompt has more than 64 tokens; at most 64 are accepted")
    ids = [bytes(each.prompt_token_ids) for each in plain.engine.submitted]
    assert ids == [b"b" * 62 + b"c"] * 3 + [b"bbbbc"] + [b"a" + b"b" * 63] * 4
    assert sum(map(len, tokenised)) < 20_000


async def test_a_query_is_tokenised_once_for_all_documents(tokenised: list[str], tmp_path: Path) -> None:
    config = tiny_classifier()
    async with site(tmp_path, config=config) as at:
        body = {"query": "1 " * 120_000, "documents": ["a"] * 30, "truncate": True}
        assert (await at.post("/v1/rerank", body)).status_code == 200
        assert {len(each.prompt_token_ids) for each in at.engine.submitted} == {64}
    assert sum(map(len, tokenised)) < 30 * 150 + 2000


@pytest.mark.parametrize("keep", ["start", "end"])
def test_part_of_a_text_has_the_tokens_of_the_whole_text(keep: Keep) -> None:
    tokenizer = Tokenizer.from_folder("model/fables")
    for word in ("The fox, who longed for grapes, beholds. ", " " * 50 + "x", "a", "\u00e9\U0001f600", "...!? "):
        text = word * (40_000 // len(word))
        whole, part = (tokenizer.encode(each, False).ids for each in (text, part_for(tokenizer, text, 300, keep)))
        assert len(part) < len(whole)
        assert part[:300] == whole[:300] if keep == "start" else part[-300:] == whole[-300:]


async def test_large_bodies_of_a_key_do_not_hold_up_those_of_another(tmp_path: Path) -> None:
    """Check that bodies of one key are read in order, and that bodies of other keys are read between them."""
    order: list[str] = []
    async with site(tmp_path, api_key=("a" * 20, "b" * 20)) as at:

        async def send(key: str, size: int) -> None:
            headers = {"Authorization": f"Bearer {key * 20}"}
            answer = await at.post("/tokenize", {"prompt": "x" * size}, headers=headers)
            assert answer.status_code == 400
            order.append(f"{key} {size}")

        await asyncio.gather(*(send("a", 1_000_000) for _ in range(4)), send("b", 400_000), send("b", 300_000))
    assert order == ["a 1000000", "b 400000", "b 300000", *["a 1000000"] * 3]


@pytest.mark.parametrize("path", ["/v1/models/org/tiny/weights/W_E", "/v1/models/org/tiny/geometry", "/health", "/"])
async def test_fields_of_a_query_are_counted_before_any_is_read(path: str, plain: Site) -> None:
    for method in ("GET", "HEAD"):
        answer = await plain.http.request(method, f"{path}?{'&'.join(f'a{i}' for i in range(257))}")
        assert answer.status_code == 400
    error = error_of(await plain.http.get(f"{path}?{'&' * 60_000}"))
    assert error["message"] == "The query has 60001 fields; at most 256 are accepted."
    few = await plain.http.get(f"{path}?{'&'.join(f'a{i}' for i in range(256))}")
    assert "The query has" not in few.text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/lens", {}),
        ("/v1/rollout", {}),
        ("/v1/trajectory", {"positions": "all"}),
        ("/v1/next", {"full": True}),
        ("/v1/contributions", {}),
        ("/v1/explain", {"layer": 0, "head": 0}),
        ("/v1/geometry", {"point": "blocks.0.hook_resid_pre"}),
        ("/v1/embeddings", {"truncate": True}),
    ],
)
async def test_others_are_served_while_many_inputs_are_planned(
    path: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    async with site(tmp_path, max_response_bytes=10, max_num_queued_requests=4096) as at:
        answer, turns = await turns_of(at, path, {"input": [[1, 2, 3]] * 2048, **fields})
    assert answer.status_code == 413
    assert turns > 2048 // 64


FLOATS = [i + 0.5 for i in range(9000)]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": [*range(9000)]})}}
USER = {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"enum": [*range(4000)]}}}}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/systemone", {"state": "x", "questions": {"q": {"type": "score", "criteria": [FLOATS] * 10}}}),
        ("/v1/decisions", {"input": [{**USER, "content": [{"type": "input_json", "data": {"a": FLOATS}}] * 8}]}),
        ("/v1/messages/count_tokens", {"messages": [USER], "system": [{"type": "text", "text": "", "a": FLOATS * 8}]}),
        ("/v1/chat/completions", {"messages": [USER], "chat_template_kwargs": {"a": FLOATS * 8}}),
        ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL] * 17}),
        ("/api/chat", {"messages": [USER], "format": {"enum": [*range(70_000)]}}),
        ("/v1/trace", {"input": "a", "interventions": [{**ZERO, "head": [*range(30_000)]}] * 3}),
    ],
)
async def test_values_of_any_field_are_counted_over_the_whole_body(path: str, body: Any, plain: Site) -> None:
    """Send lists that are within the limits of their own fields."""
    answer = await plain.post(path, body)
    assert answer.status_code == 413
    assert f"more than {MAX_SCALARS} numbers and words, token ids not counted" in answer.text


async def test_token_ids_do_not_count_among_them(plain: Site) -> None:
    ids = [1] * (MAX_SCALARS + 1)
    mean = {"point": "resid_pre.0", "op": "mean", "from": {"input": [[1] * 64] * 1100}}
    assert (await plain.post("/detokenize", {"tokens": ids})).status_code == 200
    assert (await plain.post("/v1/completions", {"prompt": ids, "truncate": True})).status_code == 200
    body = {"input": [[1] * 64] * 1100, "points": ["logits"], "interventions": [mean]}
    assert (await plain.post("/v1/trace", body)).status_code == 200
    answer = await plain.post("/detokenize", {"tokens": [*ids, 0.5] + [1] * MAX_SCALARS})
    assert answer.status_code == 413


async def test_arguments_of_all_calls_have_a_bound_together(plain: Site) -> None:
    messages = [USER, {"role": "assistant", "tool_calls": [CALL] * 8}]
    error = await plain.error("/v1/chat/completions", {"messages": messages}, 400)
    assert error["message"].startswith(f"messages: the JSON has {8 * 8999} commas; at most {MAX_SCALARS} are accepted")
    body = {"prompt": "a", "guided_json": json.dumps({"enum": [*range(70_000)]})}
    error = await plain.error("/v1/completions", body, 400)
    assert error["message"].startswith("guided_json: the JSON has 69999 commas")


async def test_what_responses_repeat_is_short(plain: Site) -> None:
    error = await plain.error("/v1/responses", {"input": "a", "user": "u" * 513}, 400)
    assert error["param"] == "user"
    half = "d" * (MAX_REPEATED // 2 + 1)
    function = {"type": "function", "name": "f", "description": half}
    for longest, fields in (
        ("instructions", {"instructions": half + half, "truncation": "auto"}),
        ("text", {"text": {"format": {"type": "text", "description": half + half}}}),
        ("text", {"text": {"format": {"type": "text", "name": half + half}}}),
        ("tools", {"tools": [function, {**function, "name": "g"}], "tool_choice": "none"}),
    ):
        error = await plain.error("/v1/responses", {"input": "a", "stream": True, **fields}, 400)
        assert error["param"] == longest
        assert f"at most {MAX_REPEATED} are accepted" in error["message"]
    assert plain.engine.submitted == []
    tools = {"tools": [function], "tool_choice": "none", "max_output_tokens": 1}
    answer = (await plain.post("/v1/responses", {"input": "a", **tools})).json()
    assert answer["tools"] == [function]


@pytest.mark.parametrize(
    ("path", "body", "least"),
    [
        ("/v1/chat/completions", {"messages": [USER], "n": 128, "logprobs": True, "max_tokens": 1}, 128),
        ("/v1/completions", {"prompt": "a", "n": 128, "logprobs": 1, "max_tokens": 1}, 128),
        ("/v1/completions", {"prompt": ["a"] * 1088, "max_tokens": 1}, 1088 + 1088 // 16),
    ],
)
async def test_others_are_served_while_many_choices_are_begun_and_written(
    path: str, body: Any, least: int, tmp_path: Path
) -> None:
    async with site(tmp_path, max_num_queued_requests=4096) as at:
        answer, turns = await turns_of(at, path, body)
    assert answer.status_code == 200
    assert turns > least


async def test_a_long_list_of_tokens_is_written_in_pieces(plain: Site) -> None:
    body = {"prompt": "\U0001f600" * 6000, "return_token_strs": True, "return_offsets": True}
    answer = (await plain.post("/tokenize", body)).json()
    assert answer["tokens"] == [*"\U0001f600".encode()] * 6000
    assert len(answer["token_strs"]) == 24_000
    assert answer["offsets"] == [[i // 4, i // 4 + 1] for i in range(24_000)]


async def test_memory_is_given_back_once_for_all_answers_of_a_moment(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Return memory to the system after any request: a small body may have a large answer."""
    given_back = []
    monkeypatch.setattr("lightwell.server.dialects.auth_route.give_back_memory", lambda: given_back.append(1))
    monkeypatch.setattr("lightwell.server.dialects.auth_route._GIVE_BACK_AFTER", 0.0)
    for count in (1, 2):
        await asyncio.gather(*(plain.post("/v1/completions", {"prompt": "a", "max_tokens": 1}) for _ in range(3)))
        while len(given_back) < count:
            await asyncio.sleep(0)
        assert len(given_back) == count


async def test_tokens_that_an_answer_names_are_bounded_in_every_format(tmp_path: Path) -> None:
    """Limit the tokens, since their whole text is in memory at once: 1 GB for 128 inputs at 64 temperatures."""
    body = {"input": ["a"] * 128, "temperatures": [1.0] * 64, "num_tokens": 1024}
    async with site(tmp_path, max_num_queued_requests=4096) as at:
        for accept in ("application/json", "application/vnd.safetensors"):
            answer = await at.post("/v1/next", body, headers={"accept": accept})
            error = error_of(answer)
            assert (answer.status_code, error["code"]) == (413, "answer_too_large")
            assert f"would take about {128 * 64 * VOCAB_SIZE * 130} bytes; at most 33554432" in error["message"]
        assert at.engine.submitted == []
        assert (await at.post("/v1/next", {**body, "input": ["a"] * 8})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"inputs": [["a"]] * 100}),
        ("/", {"inputs": [["a"]] * 100, "parameters": {"top_k": 2}}),
        ("/v1/classify", {"input": ["a"] * 100}),
    ],
)
async def test_the_labels_of_an_answer_are_counted_before_it_is_computed(
    path: str, body: dict[str, Any], tmp_path: Path
) -> None:
    classifier = tiny_classifier("no", "maybe", "yes")
    async with site(tmp_path, config=classifier, max_response_bytes=9000) as at:
        assert (await at.post(path, body)).status_code == 413
        assert at.engine.submitted == []
        few = {name: value[:50] if isinstance(value, list) else value for name, value in body.items()}
        assert (await at.post(path, few)).status_code == 200


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (ChatCompletionRequest, {"logit_bias": {f"k{i}": "x" for i in range(60_000)}}),
        (ChatCompletionRequest, {"logit_bias": {f"k{i}": "x" for i in range(1_000)}}),
        (ResponsesRequest, {"metadata": {f"k{i}": 1 for i in range(60_000)}}),
        (ResponsesRequest, {"chat_template_kwargs": {f"k\ud800{i}": 1 for i in range(60_000)}}),
        (SystemOneRequest, {"state": {f"k\ud800{i}": 1 for i in range(60_000)}}),
        (SystemOneRequest, {"questions": {f"q{i}": 1 for i in range(400)}}),
        (
            SystemOneRequest,
            {"questions": {f"q{i}": {"type": "choice", "criteria": dict.fromkeys("abcdefgh", 1)} for i in range(400)}},
        ),
        (
            DecisionsRequest,
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": [1] * 60_000}]}]},
        ),
    ],
)
def test_a_wrong_entry_ends_the_reading_of_an_object(schema: type[BaseModel], body: dict[str, Any]) -> None:
    """End validation early, since pydantic describes each wrong entry and compares the descriptions with each other."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(body)
    assert len([each for each in caught.value.errors() if each["loc"][0] in body]) < 400


async def test_a_large_body_is_validated_outside_the_event_loop() -> None:
    threads = {}

    class Body(RequestModel):
        text: str

        @field_validator("text")
        @classmethod
        def _note(cls, text: str) -> str:
            threads[len(text)] = threading.current_thread().name.partition("_")[0]
            return text

    app = FastAPI()
    router = APIRouter(route_class=guarded_route(Keyring((), None), 1 << 20))

    @router.post("/length")
    async def length(body: Body) -> int:
        return len(body.text)

    app.include_router(router)
    install_error_handlers(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = [await client.post("/length", json={"text": "x" * size}) for size in (10, 40_000, 300_000)]
        wrong = await client.post("/length", json={"text": 1, "more": "x" * 40_000})
    assert [answer.json() for answer in answers] == [10, 40_000, 300_000]
    assert threads == {10: "MainThread", 40_000: "parse", 300_000: "parse"}
    assert wrong.json()["error"]["message"] == "text: input should be a valid string, got 1."


@pytest.mark.parametrize("path", ["/v1/decisions", "/v1/systemone"])
async def test_megabytes_of_json_are_refused_before_the_chat_is_written(path: str, plain: Site) -> None:
    data = [{"type": "input_json", "data": {"k": "x" * 200_000}}] * 50
    bodies = {
        "/v1/decisions": {"input": [{"role": "user", "content": data}], "questions": [PREDICATE]},
        "/v1/systemone": STATE | {"instructions": "x" * 10_000_000},
    }
    error = error_of(await plain.post(path, bodies[path]))
    assert "the text has 10000" in error["message"]
    assert error["param"] == ("input" if path == "/v1/decisions" else "state")
