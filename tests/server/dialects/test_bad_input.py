"""Bad input on every route: a 4xx error that names the field, the value and the accepted values. The next request
works.
"""

import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.dialects.auth_route import MAX_BODY_VALUES
from lightwell.server.generation.prompts.prompt import read_chat, read_following, read_prompts
from lightwell.server.generation.prompts.text_parts import MIN_TEXT_LIMIT
from lightwell.server.generation.supported_routes import SPARSE
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.json_reader import MAX_CONTAINERS
from lightwell.server.schemas.base import MAX_FIELDS, MAX_PROMPTS
from lightwell.server.schemas.chat_messages import MAX_MESSAGES, MAX_PARTS, ChatMessage
from lightwell.server.schemas.generation import MAX_CHOICES
from lightwell.server.schemas.sampling import MAX_LOGIT_BIAS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from tests.server.dialects.routes import ROUTES, RUN_NOTHING, at_path, refuses
from tests.server.serving import Site, error_of, site

JSON = {"content-type": "application/json"}
GOOD = {
    path: (ROUTES | RUN_NOTHING)[path]
    for path in (
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/decisions", "/v1/systemone", "/v1/rerank",
        "/rerank", "/score", "/classify", "/v1/messages", "/v1/messages/count_tokens", "/v1/attention", "/v1/trace",
        "/v1/embeddings", "/embed_sparse", "/predict", "/tokenize", "/detokenize",
    )
}  # fmt: skip


async def check_next_request_works(at: Site, path: str) -> None:
    assert (await at.post(path, GOOD[path])).status_code == 200


@pytest.mark.parametrize("path", GOOD)
async def test_every_route_refuses_what_it_cannot_read(path: str, tmp_path: Path) -> None:
    async with at_path(tmp_path, path, max_body_bytes=2000) as at:
        for content, headers, status in (
            (b'{"prompt": ', JSON, 400),
            (b"\xff\xfe", JSON, 400),
            (b'"text"', JSON, 400),
            (b"[]", JSON, 400),
            (b"null", JSON, 400),
            (b"", JSON, 400),
            (b"[" * 1900, JSON, 400),
            (b'{"seed": ' + b"9" * 1800 + b"}", JSON, 400),
            (b'{"model": NaN}', JSON, 400),
            (b'{"\\ud800": 1}', JSON, 400),
            (b"{}", {"content-type": "text/plain"}, 415),
            (b"{}", {"content-type": "application/x-www-form-urlencoded"}, 415),
            (b"{}", {"content-type": ""}, 415),
            (b"{}", {"origin": "http://elsewhere.test"}, 415),
            (b"{}", {"content-type": "text/plain", "origin": "http://elsewhere.test"}, 415),
            (b" " * 2001, JSON, 413),
        ):
            answer = await at.http.post(path, content=content, headers=headers)
            assert answer.status_code == status, (content[:40], answer.text)
            error_of(answer)
        assert at.engine.submitted == []
        # A client that is no browser may leave the content type out. With an Origin it is refused: a web page can send
        # such a request without a CORS preflight, a Blob without a type.
        body = json.dumps(GOOD[path]).encode()
        assert (await at.http.post(path, content=body)).status_code == 200
        for origin in ("http://elsewhere.test", "null"):
            assert (await at.http.post(path, content=body, headers={"origin": origin})).status_code == 415
        assert (await at.http.post(path, content=b"{", headers={})).status_code == 400

        unknown = await at.error(path, {**GOOD[path], "no_such_field": 1}, 400)
        assert "no_such_field" in unknown["message"]
        if path not in (SPARSE, "/predict"):  # errors of Text Embeddings Inference have only a message and a type
            assert (unknown["param"], unknown["code"]) == ("no_such_field", "unknown_field")
        model = await at.error(path, {**GOOD[path], "model": "gpt-4"}, 404)
        if path not in (SPARSE, "/predict"):
            assert (model["param"], model["code"]) == ("model", "model_not_found")
        assert "'gpt-4'" in model["message"]
        assert "'org/tiny'" in model["message"]
        for method in ("GET", "PUT", "DELETE"):
            answer = await at.http.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
            error_of(answer)
        assert (await at.post(path, {**GOOD[path], "model": "org/tiny"})).status_code == 200


@pytest.mark.parametrize("has_length", [True, False])
async def test_a_body_of_exactly_the_limit_is_read(has_length: bool, tmp_path: Path) -> None:
    async def pieces(content: bytes) -> AsyncIterator[bytes]:
        for i in range(0, len(content), 100):
            yield content[i : i + 100]

    async with site(tmp_path, max_body_bytes=1000) as at:
        for size, status in ((1000, 200), (1001, 413)):
            content = json.dumps(GOOD["/v1/completions"]).encode().ljust(size)
            sent = content if has_length else pieces(content)
            answer = await at.http.post("/v1/completions", content=sent, headers=JSON)
            assert answer.status_code == status, answer.text
        assert error_of(answer)["code"] == "body_too_large"


async def test_of_two_wrong_fields_one_is_named_with_its_problem_alone(plain: Site) -> None:
    body = {"prompt": "a", "max_tokens": "many", "temperature": "hot"}
    error = await plain.error("/v1/completions", body, 400)
    assert error["param"] == "temperature"
    assert "hot" in error["message"]
    assert "many" not in error["message"]


async def test_json_that_python_cannot_hold_is_refused_by_its_reason(plain: Site) -> None:
    for content, said in (
        (b'{"metadata": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "more than 4300 digits"),
    ):
        answer = await plain.http.post("/v1/completions", content=content, headers=JSON)
        assert answer.status_code == 400
        assert said in error_of(answer)["message"]


async def test_more_choices_than_the_server_ever_takes_are_refused_for_good(tmp_path: Path) -> None:
    async with site(tmp_path, max_num_seqs=4, max_num_queued_requests=2, max_num_batched_tokens=64) as at:
        error = await at.error("/v1/completions", {"prompt": ["x", "y"], "n": 4}, 400)
        assert (error["param"], error["code"]) == ("n", "too_many_choices")
        assert "8 choices; at most 6" in error["message"]
        assert at.engine.submitted == []
        assert (await at.post("/v1/completions", {"prompt": ["x", "y"], "n": 3})).status_code == 200


async def test_a_compressed_body_is_refused_by_its_encoding(tmp_path: Path) -> None:
    async with site(tmp_path) as at:
        content = gzip.compress(b'{"prompt": "x"}')
        answer = await at.http.post("/v1/completions", content=content, headers={**JSON, "content-encoding": "gzip"})
        assert answer.status_code == 415
        assert "'gzip'" in error_of(answer)["message"]
        plain = await at.http.post("/tokenize", content=b'{"prompt": "x"}', headers={**JSON, "content-encoding": ""})
        assert plain.status_code == 200


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/completions", "prompt"), ("/v1/attention", "input"), ("/v1/embeddings", "input"), ("/tokenize", "prompt")],
)
async def test_a_text_far_over_any_context_is_refused_before_it_is_tokenised(
    path: str, field: str, plain: Site
) -> None:
    error = await plain.error(path, {field: "x" * (MIN_TEXT_LIMIT + 1)}, 400)
    assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    assert f"{MIN_TEXT_LIMIT + 1} bytes; at most {MIN_TEXT_LIMIT}" in error["message"]
    await check_next_request_works(plain, path)


async def test_text_whose_tokens_the_network_lacks_never_reaches_the_engine(plain: Site) -> None:
    model = plain.model
    small = replace(model, config=replace(model.config, vocab_size=ord("y")))
    for read, field in (
        (read_prompts(small, "xyz", "prompt"), "prompt"),
        (read_prompts(small, ["x", "xyz"], "prompt"), r"prompt\[1\]"),
        (read_chat(small, [ChatMessage.model_validate({"role": "user", "content": "xyz"})]), "messages"),
        (read_following(small, "xyz", "completion"), "completion"),
    ):
        with pytest.raises(
            BadRequest, match=rf"{field}: the text contains 'y', the token id 121, .* 0 to 120"
        ) as caught:
            await read
        assert caught.value.code == "invalid_token_id"
    assert list((await read_prompts(small, "x", "prompt"))[0].ids) == [120]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt[1]", "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]", "empty"),
        ({"prompt": [257]}, "prompt", "the token id 257 is out of range; accepted are 0 to 256"),
        ({"prompt": "x" * 64}, "prompt", "64 tokens"),
        ({"prompt": "x" * 60, "max_tokens": 5}, "max_tokens", "at most 4"),
        ({"max_tokens": 64}, "max_tokens", "at most 63"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens", "3"),
        ({"logit_bias": {"257": 1}}, "logit_bias", "257"),
        ({"stop_token_ids": [300]}, "stop_token_ids", "300"),
        ({"attention": {"layers": 3}}, "attention.layers", "no layer 3"),
        ({"attention": {"pairs": [[0, -5]]}}, "attention.pairs", "no head -5"),
    ],
)
async def test_what_the_model_cannot_do_is_refused(fields: dict[str, Any], param: str, said: str, plain: Site) -> None:
    await refuses(plain, "/v1/completions", {"prompt": "x", **fields}, said, param=param)
    assert plain.engine.submitted == []
    await check_next_request_works(plain, "/v1/completions")


MESSAGE = {"role": "user", "content": "x"}
PART = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/chat/completions", {"messages": [MESSAGE] * (MAX_MESSAGES + 1)}, f"at most {MAX_MESSAGES} items"),
        ("/tokenize", {"messages": [MESSAGE] * (MAX_MESSAGES + 1)}, f"at most {MAX_MESSAGES} items"),
        ("/v1/attention", {"input": [MESSAGE] * (MAX_MESSAGES + 1)}, f"at most {MAX_MESSAGES} items"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [PART] * (MAX_PARTS + 1)}]},
            f"at most {MAX_PARTS} items",
        ),
        ("/v1/completions", {"prompt": "x", "stop": ["a"] * (MAX_STOP_STRINGS + 1)}, f"at most {MAX_STOP_STRINGS}"),
        ("/v1/completions", {"prompt": "x", "stop": "a" * 1025}, "at most 1024 characters"),
        ("/v1/completions", {"prompt": "x", "stop_token_ids": [1] * (MAX_STOP_TOKEN_IDS + 1)}, "at most"),
        ("/v1/completions", {"prompt": "x", "n": MAX_CHOICES + 1}, f"less than or equal to {MAX_CHOICES}"),
        ("/v1/completions", {"prompt": ["x"] * (MAX_PROMPTS + 1)}, f"at most {MAX_PROMPTS}"),
        ("/v1/embeddings", {"input": ["x"] * (MAX_PROMPTS + 1)}, f"at most {MAX_PROMPTS}"),
        ("/v1/completions", {"prompt": "x", **{f"f{i}": 1 for i in range(MAX_FIELDS)}}, f"at most {MAX_FIELDS}"),
        (
            "/v1/completions",
            {"prompt": "x", "logit_bias": {str(i): 1 for i in range(MAX_LOGIT_BIAS + 1)}},
            f"at most {MAX_LOGIT_BIAS} items",
        ),
    ],
)
async def test_lists_have_a_bound_that_is_told_before_any_work(
    path: str, body: dict[str, Any], said: str, plain: Site
) -> None:
    assert said in (await plain.error(path, body, 400))["message"]
    assert plain.engine.submitted == []


WIDE: dict[str, bytes] = {
    "parts": b'{"messages": ['
    + b",".join([b'{"role": "user", "content": [' + b",".join([b'{"type": "text", "text": "a"}'] * 250) + b"]}"] * 80)
    + b"]}",
    "metadata": b'{"prompt": "x", "metadata": [' + b",".join([b"{}"] * 20_000) + b"]}",
    "lists": b'{"prompt": [' + b",".join([b"[]"] * 20_000) + b"]}",
    "values": b'{"prompt": "x", "metadata": [' + b"[]," * MAX_BODY_VALUES + b"0]}",
}
"""Small variants of bodies that once blocked all streams for up to seven seconds while they were read."""


@pytest.mark.parametrize("shape", WIDE)
async def test_a_body_of_too_many_lists_and_objects_is_refused_before_it_is_parsed(shape: str, plain: Site) -> None:
    path = "/v1/chat/completions" if shape == "parts" else "/v1/completions"
    answer = await plain.http.post(path, content=WIDE[shape], headers=JSON)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")
    assert shape == "values" or f"at most {MAX_CONTAINERS} are accepted" in error_of(answer)["message"]
    await check_next_request_works(plain, path)


async def test_brackets_in_a_text_are_no_lists(plain: Site) -> None:
    answer = await plain.post("/tokenize", {"prompt": '{"a": [' * MAX_CONTAINERS})
    assert answer.status_code == 200
    messages = [{"role": "user", "content": [{"type": "text", "text": "[]"}]}] * MAX_MESSAGES
    answer = await plain.post("/tokenize", {"messages": messages})
    assert answer.status_code == 200, "the longest conversation, of one part each"
