"""Attention rows in completions: one row with each token, the rows of the prompt, and their limits."""

import base64
from pathlib import Path

import numpy as np
import pytest

from tests.server.dialects.routes import refuses
from tests.server.dialects.test_completions import chunks, complete
from tests.server.fake_client import number
from tests.server.serving import Site, events_of, site


async def test_each_streamed_token_brings_the_row_that_chose_it(plain: Site) -> None:
    data = await chunks(plain, max_tokens=2, attention={"layers": [-1], "heads": [1, 3]})
    for i, chunk in enumerate(data[:-1]):
        rows = chunk["choices"][0]["attention"]
        assert rows["axes"] == ["layer", "head", "query", "key"]
        assert (rows["layers"], rows["heads"], rows["query_positions"]) == ([2], [1, 3], [1 + i])
        expected = [[[[number(2, h, 1 + i, k) for k in range(2 + i)]] for h in (1, 3)]]
        assert np.array_equal(np.array(rows["attention"], np.float32), np.array(expected, np.float32))


async def test_an_unstreamed_answer_pads_its_rows_to_the_longest(plain: Site) -> None:
    (choice,) = (await complete(plain, max_tokens=3, attention={"pairs": [[0, 1], [2, 3]]}))["choices"]
    rows = choice["attention"]
    assert (rows["axes"], rows["shape"], rows["pairs"]) == (["pair", "query", "key"], [2, 3, 4], [[0, 1], [2, 3]])
    expected = [[[number(la, h, q, k) for k in range(4)] for q in (1, 2, 3)] for la, h in ((0, 1), (2, 3))]
    assert np.array_equal(np.array(rows["attention"], np.float32), np.array(expected, np.float32))


async def test_the_prompts_rows_come_once_with_the_first_token(plain: Site) -> None:
    data = await chunks(plain, attention={"layers": 0, "heads": 0, "prompt": True})
    has_prompt = ["prompt" in chunk["choices"][0]["attention"] for chunk in data[:-1]]
    assert has_prompt == [True, False, False, False]
    prompt = data[0]["choices"][0]["attention"]["prompt"]
    assert (prompt["shape"], prompt["query_positions"]) == ([1, 1, 2, 2], [0, 1])


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_scored_without_generating_brings_no_row_of_a_token(
    prompt: bool, stream: bool, plain: Site
) -> None:
    rows = {"layers": 0, "heads": 0, "prompt": prompt}
    body = {"prompt": "ab", "max_tokens": 0, "echo": True, "attention": rows, "stream": stream}
    answer = await plain.post("/v1/completions", body)
    (choice,) = (events_of(answer)[0] if stream else answer.json())["choices"]
    assert choice["text"] == "ab"
    if prompt:
        assert list(choice["attention"]) == ["prompt"]
        assert choice["attention"]["prompt"]["query_positions"] == [0, 1]
    else:
        assert "attention" not in choice


async def test_rows_can_be_base64_and_top_k(plain: Site) -> None:
    fields = {"layers": 0, "heads": 1, "top_k": 3, "dtype": "float16", "encoding_format": "base64"}
    data = await chunks(plain, max_tokens=1, attention=fields)
    rows = data[0]["choices"][0]["attention"]
    values = np.frombuffer(base64.b64decode(rows["values"]), "<f2").reshape(rows["shape"])
    indices = np.frombuffer(base64.b64decode(rows["indices"]), "<i4").reshape(rows["shape"])
    assert rows["axes"] == ["layer", "head", "query", "k"]
    assert indices.tolist() == [[[[1, 0, -1]]]]
    assert values[0, 0, 0, 0] == np.float16(number(0, 1, 1, 1))


@pytest.mark.parametrize("stream", [True, False])
async def test_rows_count_as_captured_until_the_answer_is_sent(stream: bool, plain: Site) -> None:
    body = {"prompt": "ab", "max_tokens": 3, "n": 2, "attention": {"layers": 0}, "stream": stream}
    await plain.post("/v1/completions", body)
    assert plain.engine.held == [each.capture_bytes for each in plain.engine.submitted]
    assert len(plain.engine.held) == 2
    assert min(plain.engine.held) > 0


async def test_too_many_rows_are_refused_before_anything_runs(tmp_path: Path) -> None:
    async with site(tmp_path, max_response_bytes=2000) as at:
        body = {"prompt": "ab", "max_tokens": 30, "attention": {}}
        await refuses(at, "/v1/completions", body, "bytes", status=413)
        assert at.engine.submitted == []
        assert await at.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 1
