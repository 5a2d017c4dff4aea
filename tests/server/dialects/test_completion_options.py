"""Completions: stop strings, scores of the prompt, echo, truncation and errors."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.dialects.test_completions import chunks, complete, sampling
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, site


async def test_a_stop_token_is_told_and_shown_only_when_asked(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(eos_after=2)) as at:
        (hidden,) = (await complete(at, stop_token_ids=[33]))["choices"]
        (shown,) = (await complete(at, stop_token_ids=[33], include_stop_str_in_output=True))["choices"]
    assert (hidden["text"], hidden["stop_reason"]) == ("hi", 33)
    assert shown["text"] == "hi!"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_stop_string_ends_the_choice_and_frees_its_place(streams: bool, tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=tuple(b"one two three"))) as at:
        if streams:
            data = await chunks(at, max_tokens=13, stop=["wo t", "zzz"])
            text = "".join(chunk["choices"][0]["text"] for chunk in data[:-1])
            last = data[-2]["choices"][0]
        else:
            (last,) = (await complete(at, max_tokens=13, stop=["wo t", "zzz"]))["choices"]
            text = last["text"]
        assert text == "one t"
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", "wo t")
        assert at.engine.submitted[0].handle.was_aborted
        assert await at.metric('lightwell_request_success_total{finish_reason="stop"}') == 1
        assert await at.metric('lightwell_request_success_total{finish_reason="abort"}') == 0


@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, "a"), (4, "a"), (5, "aSTOPb"), (9, "aSTOPb"), (10, "aSTOPbSTOPc")]
)
async def test_stop_strings_are_not_looked_at_before_min_tokens(min_tokens: int, text: str, tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=tuple(b"aSTOPbSTOPc"))) as at:
        fields = {"max_tokens": 11, "stop": "STOP", "min_tokens": min_tokens}
        (whole,) = (await complete(at, **fields))["choices"]
        data = await chunks(at, **fields)
    assert whole["text"] == text == "".join(chunk["choices"][0]["text"] for chunk in data[:-1])


async def test_echo_puts_the_prompt_before_text_and_logprobs(plain: Site) -> None:
    (choice,) = (await complete(plain, max_tokens=1, logprobs=0, echo=True))["choices"]
    assert choice["text"] == "abh"
    assert choice["logprobs"]["tokens"] == ["a", "b", "h"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    (of_ids,) = (await complete(plain, prompt=[97, 98], max_tokens=1, echo=True))["choices"]
    assert of_ids["text"] == "abh"


async def test_a_prompt_can_be_scored_without_generating(plain: Site) -> None:
    answer = await complete(plain, max_tokens=0, logprobs=1, echo=True)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["a", "b"])
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0


async def test_prompt_logprobs_have_vllms_shape(plain: Site) -> None:
    (choice,) = (await complete(plain, prompt_logprobs=2))["choices"]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert second["98"] == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert second["65"] == {"logprob": -1.5, "rank": 2, "decoded_token": "A"}


@pytest.mark.parametrize(
    ("more", "kept"), [({"max_tokens": 4}, 60), ({}, 48), ({"max_tokens": None}, 48)], ids=["4", "default", "null"]
)
async def test_truncate_drops_the_beginning_of_a_long_prompt_only(more: dict[str, Any], kept: int, plain: Site) -> None:
    body = {"prompt": "a" * 70 + "b" * 10, "truncate": True, **more}
    assert (await plain.post("/v1/completions", body)).status_code == 200
    assert bytes(plain.engine.submitted[0].prompt_token_ids) == b"a" * (kept - 10) + b"b" * 10
    assert sampling(plain).max_tokens == 64 - kept
    await plain.post("/v1/completions", {"prompt": "a" * 60, "truncate": True})
    assert len(plain.engine.submitted[1].prompt_token_ids) == 60


@pytest.mark.parametrize("max_tokens", [64, 100])
async def test_truncate_cannot_make_room_where_the_answer_takes_all_of_it(max_tokens: int, plain: Site) -> None:
    body = {"prompt": "a" * 70, "truncate": True, "max_tokens": max_tokens}
    error = await plain.error("/v1/completions", body, 400)
    assert error["param"] == "max_tokens"
    assert f"{max_tokens} leaves no room for the prompt; 1 to 63" in error["message"]
