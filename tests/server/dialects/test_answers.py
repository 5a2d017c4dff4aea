"""The ways in which an answer is sent: by its size, in pieces, and token by token past the application."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import orjson
import pytest
from starlette.responses import Response
from starlette.types import Message

from lightwell.model.tokenization.detokenizer import Detokenizer
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.dialects.responses import tensor_response
from lightwell.server.engine.messages.outputs import TokenLogprobs
from lightwell.server.generation.logprobs import LegacyLogprobs, chat_entries, ranked_entries
from lightwell.server.http.connection import HttpProtocol
from lightwell.server.http.tensor_formats import WRITE_BYTES, Format, NumpyArray, Piece, npy_pieces
from tests.server.bare_server import PATIENCE, serving
from tests.server.dialects.looks import at_site, engine_of
from tests.server.fake_client import INFO, FakeEngine
from tests.server.serving import Site, events_of, site, write_tokenizer


async def bodies_of(answer: Response) -> list[bytes]:
    """Return the pieces of the answer that are sent, including the empty piece that ends a stream."""
    sent: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            sent.append(bytes(message["body"]))

    await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
    return sent


def lines(num_bytes: int) -> Iterator[Piece]:
    return iter([bytes(999) + b"\n"] * (num_bytes // 1000))


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/embeddings", {"input": "ab"}), ("/v1/attention", {"input": "ab", "layers": 0})]
)
async def test_a_small_answer_says_how_long_it_is(path: str, body: dict[str, object], plain: Site) -> None:
    answer = await plain.post(path, body)
    assert int(answer.headers["content-length"]) == len(answer.content) > 0


@pytest.mark.parametrize(
    "route", ["attention", "trace", "embeddings", "next", "lens", "heads", "rollout", "trajectory"]
)
async def test_every_answer_that_looks_inside_tells_the_precision_that_computed_it(route: str, tmp_path: Path) -> None:
    """Check the field `compute_dtype`, since the dtype of the numbers is only the format in which they are sent: a
    network that computes in bfloat16 may send float32.
    """
    body = {"input": "abcab", **({"points": ["hook_embed"]} if route == "trace" else {})}
    engine = engine_of()
    precision = "bfloat16/int8" if route == "trace" else "bfloat16"
    info = replace(INFO, dtype="bfloat16", activations="int8" if route == "trace" else "dtype")
    with patch.object(type(engine), "info", lambda _: info):
        async with at_site(tmp_path, engine) as at:
            answer = await at.post(f"/v1/{route}", body)
            assert answer.json()["compute_dtype"] == precision
            binary = await at.http.post(f"/v1/{route}", json=body, headers={"accept": Format.SAFETENSORS.value})
            length = int.from_bytes(binary.content[:8], "little")
            assert json.loads(binary.content[8 : 8 + length])["__metadata__"]["compute_dtype"] == precision
            for path in ("/v1/models/org/tiny", "/v1/capabilities", "/version"):
                assert (await at.http.get(path)).json()["compute_dtype"] == precision


async def test_an_answer_with_layers_tells_how_many_there_are(plain: Site) -> None:
    capabilities = (await plain.http.get("/v1/capabilities")).json()["stacks"]
    for route, fields in (("attention", {}), ("rollout", {}), ("trace", {"points": ["attn.hook_q"]})):
        told = (await plain.post(f"/v1/{route}", {"input": "ab", "layers": 0, **fields})).json()["stacks"]
        assert list(told) == list(capabilities)
        for stack, sizes in told.items():
            assert sizes.items() <= capabilities[stack].items()
            assert sizes.keys() == {"num_layers", "num_heads", "num_kv_heads"}


async def test_a_small_answer_is_one_piece_and_a_large_one_a_stream() -> None:
    answer = await tensor_response(Format.JSON, lines(10_000), ())
    assert await bodies_of(answer) == [b"".join(lines(10_000))]
    answer = await tensor_response(Format.JSON, lines(3 * WRITE_BYTES), ())
    bodies = await bodies_of(answer)
    assert "content-length" not in answer.headers
    assert len(bodies) > 3
    assert max(map(len, bodies)) < 2 * WRITE_BYTES
    assert b"".join(bodies) == b"".join(lines(3 * WRITE_BYTES))


@pytest.mark.parametrize("size", [10, 3 * WRITE_BYTES])
async def test_a_binary_answer_of_any_size_says_how_long_it_is(size: int) -> None:
    array: NumpyArray = np.zeros(size, np.uint8)
    answer = await tensor_response(Format.NPY, npy_pieces(array), [array])
    assert int(answer.headers["content-length"]) == sum(map(len, await bodies_of(answer))) > size


LENGTH = 1000
IDS = [97 + i % 26 for i in range(LENGTH)]
"""Token ids of letters: an id of the tests' tokenizer is a byte."""
SCORED = [TokenLogprobs.of(token_id, -0.5, 1, ((token_id, -0.5), (65, -1.5))) for token_id in IDS]
MANY_TURNS = 15
"""Iterations of the event loop for `LENGTH` positions: more than for a short prompt, which is one piece."""


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path)
    return Tokenizer.from_folder(tmp_path)


async def turns_during(work: Awaitable[Any]) -> tuple[int, Any]:
    """Return how often another task could run during the work, and the result of the work, as a client reads it."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    result = await work
    task.cancel()
    return turns, orjson.loads(orjson.dumps(result))


Write = Callable[[Tokenizer, int], Awaitable[Any]]
FORMS: dict[str, Write] = {
    "legacy": lambda tokenizer, length: LegacyLogprobs(tokenizer, 2, Detokenizer(tokenizer)).entries(
        IDS[:length], SCORED[:length]
    ),
    "chat": lambda tokenizer, length: chat_entries(tokenizer, SCORED[:length], 2),
    "prompt": lambda tokenizer, length: ranked_entries(tokenizer, [None, *SCORED[1:length]], 2),
}


CHOSEN = [{"token": chr(token_id), "logprob": -0.5, "bytes": [token_id]} for token_id in IDS]
RANKED = [{"logprob": -0.5, "rank": 1, "decoded_token": chr(token_id)} for token_id in IDS]
OTHER = {"logprob": -1.5, "rank": 2, "decoded_token": "A"}
EXPECTED: dict[str, Any] = {
    "legacy": {
        "tokens": [chr(token_id) for token_id in IDS],
        "token_logprobs": [-0.5] * LENGTH,
        "top_logprobs": [{chr(token_id): -0.5, "A": -1.5} for token_id in IDS],
        "text_offset": list(range(LENGTH)),
    },
    "chat": [{**each, "top_logprobs": [each, {"token": "A", "logprob": -1.5, "bytes": [65]}]} for each in CHOSEN],
    "prompt": [None, *({str(i): each, "65": OTHER} for i, each in zip(IDS[1:], RANKED[1:], strict=True))],
}


@pytest.mark.parametrize("form", FORMS)
async def test_log_probabilities_of_a_long_prompt_are_written_in_pieces_that_join_without_a_seam(
    form: str, tokenizer: Tokenizer
) -> None:
    few, _ = await turns_during(FORMS[form](tokenizer, 20))
    many, written = await turns_during(FORMS[form](tokenizer, LENGTH))
    assert few <= 1
    assert many >= MANY_TURNS
    assert written == EXPECTED[form]


@pytest.mark.parametrize("form", ["legacy", "chat"])
async def test_nothing_to_write_is_an_empty_list(form: str, tokenizer: Tokenizer) -> None:
    _, written = await turns_during(FORMS[form](tokenizer, 0))
    assert written in ([], {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []})


async def test_two_tokens_of_one_text_are_both_among_the_likeliest(tokenizer: Tokenizer) -> None:
    """Check tokens that are parts of characters. All of them have the text U+FFFD; an old version lost one of them."""
    top = ((0xC3, -0.5), (0xE4, -1.0), (97, -1.5))
    entries = [TokenLogprobs.of(token_id, logprob, 1, top) for token_id, logprob in top]
    written = LegacyLogprobs(tokenizer, 3, Detokenizer(tokenizer))
    fields = orjson.loads(orjson.dumps(await written.entries([0xC3, 0xE4, 97], entries)))
    first, second, letter = fields["top_logprobs"]
    assert first == {"\ufffd": -0.5, "token_id:228": -1.0, "a": -1.5}
    assert second == {"token_id:195": -0.5, "\ufffd": -1.0, "a": -1.5}, "the chosen token has its text's name"
    assert letter == first


SCRIPT = tuple("Grüße, 世界! ".encode())
COMPLETION = ("/v1/completions", {"prompt": "ab", "echo": True})
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]})


async def both_ways(folder: Path, engine: FakeEngine, path: str, body: dict[str, Any]) -> list[list[Any]]:
    """Return the events of a stream over a socket, and of the same stream with all tokens sent by the application."""
    body = {"max_tokens": 24, "stream": True, "stream_options": {"include_usage": True}, **body}
    async with (
        site(folder, engine) as at,
        serving(at.app, HttpProtocol) as port,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        answers = [await client.post(f"http://127.0.0.1:{port}{path}", json=body), await at.post(path, body)]
    assert engine.submitted[1].handle.on_token is None
    ways = [events_of(answer) for answer in answers]
    for events in ways:
        for event in events[:-1]:
            del event["id"], event["created"]
    return ways


WITH_LOGPROBS = [
    (COMPLETION[0], {**COMPLETION[1], "logprobs": 2}),
    (CHAT[0], {**CHAT[1], "logprobs": True, "top_logprobs": 2}),
]


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT, *WITH_LOGPROBS])
async def test_a_stream_is_the_same_whoever_writes_its_tokens(path: str, body: dict[str, Any], tmp_path: Path) -> None:
    engine = FakeEngine(script=SCRIPT)
    written, sent = await both_ways(tmp_path, engine, path, body)
    assert engine.submitted[0].handle.on_token is not None
    assert written == sent
    assert written[-2]["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize(
    "more", [{"stop": "界"}, {"logprobs": 2}, {"n": 2}, {"return_token_ids": True}, {"attention": {"layers": 0}}]
)
async def test_streams_that_bring_more_than_text_are_left_to_the_application(
    more: dict[str, Any], tmp_path: Path
) -> None:
    written, sent = await both_ways(tmp_path, FakeEngine(script=SCRIPT), COMPLETION[0], {**COMPLETION[1], **more})
    assert sorted(map(str, written)) == sorted(map(str, sent))  # the order of the choices may differ


async def test_tokens_that_are_written_count_in_the_metrics(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as at,
        serving(at.app, HttpProtocol) as port,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        body = {"prompt": "ab", "max_tokens": 9, "stream": True}
        await client.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
        assert await at.metric("lightwell_time_to_first_token_seconds_count") == 1
        assert await at.metric("lightwell_inter_token_latency_seconds_count") == 8
