"""Generation and attention of encoder-decoders and encoders: the input of each stack, and the keys of each row."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightwell.server.engine.messages.request import AttentionTask, GenerateTask
from tests.server.dialects.routes import refuses
from tests.server.fake_client import number
from tests.server.serving import START, Site, events_of, site, tiny_encoder, tiny_encoder_decoder

COMPLETIONS, ATTENTION = "/v1/completions", "/v1/attention"


def both(tmp_path: Path, **options: Any) -> Any:
    return site(tmp_path, config=tiny_encoder_decoder(), **options)


async def entry(at: Site, **body: Any) -> Any:
    answer = await at.post(ATTENTION, {"input": "abcde", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"][0]


async def test_the_encoder_reads_the_prompt_and_the_decoder_begins_with_its_start_token(tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        answer = (await at.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 2})).json()
        (submitted,) = at.engine.submitted
    assert (submitted.encoder_token_ids, submitted.prompt_token_ids) == ((97, 98, 99), (START,))
    assert answer["choices"][0]["text"] == "hi"
    assert answer["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(("value", "ids"), [("xy", (START, 120, 121)), ([5, 120], (5, 120)), ("", (START,))])
async def test_the_decoder_can_be_given_a_beginning(value: Any, ids: tuple[int, ...], tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        answer = await at.post(COMPLETIONS, {"prompt": "abc", "decoder_input": value, "max_tokens": 1})
        assert answer.status_code == 200
        assert at.engine.submitted[0].prompt_token_ids == ids


async def test_what_the_models_files_force_and_forbid_is_forced_and_forbidden(tmp_path: Path) -> None:
    config = replace(tiny_encoder_decoder(), forced_bos_token_id=7, suppressed_token_ids=(8, 10**6))
    async with site(tmp_path, config=config) as at:
        for given in ({}, {"decoder_input": "x", "logit_bias": {"8": 5, "9": 1}}, {"decoder_input": [5]}):
            answer = await at.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 1, **given})
            assert answer.status_code == 200
        forced, continued, as_given = at.engine.submitted
        tasks = [submitted.task for submitted in at.engine.submitted]
    assert forced.prompt_token_ids == (START, 7)
    assert continued.prompt_token_ids == (START, 7, 120)
    assert as_given.prompt_token_ids == (5,)
    biases = [task.sampling.logit_bias for task in tasks if isinstance(task, GenerateTask)]
    assert biases == [{8: -math.inf}, {8: -math.inf, 9: 1}, {8: -math.inf}]


async def test_each_prompt_may_have_its_own_beginning(tmp_path: Path) -> None:
    body = {"prompt": ["abc", "d"], "decoder_input": ["x", "yz"], "max_tokens": 1}
    async with both(tmp_path) as at:
        await at.post(COMPLETIONS, body)
        await refuses(at, COMPLETIONS, {**body, "decoder_input": "x"}, "1 entries for 2 inputs")
        assert [s.prompt_token_ids[1:] for s in at.engine.submitted] == [(120,), (121, 122)]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"prompt": "a" * 41}, "prompt", "at most 40 are accepted"),
        ({"prompt": "a", "decoder_input": "b" * 64}, "decoder_input", "at most 63 are accepted"),
        ({"prompt": "a", "max_tokens": 64}, "max_tokens", "at most 63 are accepted"),
        ({"prompt": "a", "decoder_input": [999]}, "decoder_input", "the token id 999 is out of range"),
        ({"prompt": "a", "decoder_input": []}, "decoder_input", "empty"),
        ({"prompt": "a", "attention": {"part": "encoder"}}, "attention.part", "'decoder' or 'cross'"),
    ],
)
async def test_what_does_not_fit_is_refused(body: Any, param: str, said: str, tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        await refuses(at, COMPLETIONS, body, said, param=param)
        assert at.engine.submitted == []


async def test_truncate_cuts_the_end_of_what_the_encoder_reads(tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        answer = await at.post(COMPLETIONS, {"prompt": "a" + "b" * 60, "truncate": True, "max_tokens": 1})
        assert answer.status_code == 200
        assert bytes(at.engine.submitted[0].encoder_token_ids) == b"a" + b"b" * 39


async def test_a_model_without_a_start_token_needs_ids(tmp_path: Path) -> None:
    async with site(tmp_path, config=replace(tiny_encoder_decoder(), decoder_start_token_id=None)) as at:
        await refuses(at, COMPLETIONS, {"prompt": "a"}, param="decoder_input")
        assert (await at.post(COMPLETIONS, {"prompt": "a", "decoder_input": [2]})).status_code == 200


async def test_a_conversation_goes_to_the_encoder(tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        assert (await at.post("/v1/chat/completions", body)).status_code == 200
        (submitted,) = at.engine.submitted
    assert bytes(submitted.encoder_token_ids) == b"<user>x<A>"
    assert submitted.prompt_token_ids == (START,)


async def test_rows_of_cross_attention_come_with_tokens_over_the_encoders_keys(tmp_path: Path) -> None:
    attention = {"part": "cross", "layers": 0, "heads": [1], "prompt": True}
    body = {"prompt": "abcd", "max_tokens": 3, "attention": attention}
    async with both(tmp_path) as at:
        whole = (await at.post(COMPLETIONS, body)).json()["choices"][0]["attention"]
        streamed = events_of(await at.post(COMPLETIONS, {**body, "stream": True}))
        task = at.engine.submitted[0].task
        assert isinstance(task, GenerateTask)
        assert task.attention is not None
        assert task.attention.part == "cross"
        assert at.engine.submitted[0].capture_bytes == (1 * 1 * 4 + 3 * 4) * 4
    assert (whole["part"], whole["shape"], whole["query_positions"]) == ("cross", [1, 1, 3, 4], [0, 1, 2])
    assert whole["prompt"]["shape"] == [1, 1, 1, 4]
    rows = [event["choices"][0]["attention"]["attention"][0][0][0] for event in streamed[:3]]
    assert np.array_equal(rows, whole["attention"][0][0])


@pytest.mark.parametrize(
    ("part", "shape", "tokens"),
    [
        (None, [3, 4, 3, 3], 3),
        ("decoder", [3, 4, 3, 3], 3),
        ("encoder", [2, 2, 5, 5], 5),
        ("cross", [3, 4, 3, 5], 3),
    ],
)
async def test_each_part_has_its_own_rows_and_columns(part: Any, shape: list[int], tokens: int, tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        found = await entry(at, part=part, decoder_input="xy")
        task = at.engine.submitted[0].task
    assert isinstance(task, AttentionTask)
    assert task.capture.part == found["part"] == (part or "decoder")
    assert found["shape"] == shape
    assert len(found["tokens"]) == tokens
    assert ("key_tokens" in found) == (part == "cross")


async def test_the_keys_of_cross_attention_are_named(tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        found = await entry(
            at, part="cross", completion="z", query_positions=-1, key_positions=[-1, 0], layers=1, heads=2
        )
    assert found["token_ids"] == [START, 122]
    assert (found["key_tokens"], found["key_token_ids"]) == (list("abcde"), [97, 98, 99, 100, 101])
    assert found["key_offsets"][4] == [4, 5]
    assert (found["query_positions"], found["key_positions"]) == ([1], [4, 0])
    assert found["attention"] == [[[[number(1, 2, 1, 4), number(1, 2, 1, 0)]]]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"part": "cross", "key_positions": 5}, "key_positions"),
        ({"part": "cross", "query_positions": 1}, "query_positions"),
        ({"part": "encoder", "layers": 2}, "layers"),
        ({"part": "encoder", "heads": 2}, "heads"),
    ],
)
async def test_selectors_are_checked_against_the_part(body: Any, param: str, tmp_path: Path) -> None:
    async with both(tmp_path) as at:
        await refuses(at, ATTENTION, {"input": "abcde", **body}, param=param)


async def test_an_encoder_shows_its_own_attention_and_has_no_other(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder()) as at:
        found = await entry(at)
        for part in ("decoder", "cross"):
            error = await at.error(ATTENTION, {"input": "abc", "part": part}, 400)
            assert error["param"] == "part"
            assert "its kind is 'encoder' (BertModel); accepted: 'encoder'" in error["message"]
        await refuses(at, ATTENTION, {"input": "abc", "completion": "d"}, param="completion")
    assert (found["part"], found["shape"]) == ("encoder", [3, 4, 5, 5])


async def test_a_decoder_alone_generates_no_cross_attention(plain: Site) -> None:
    generated = await plain.error(COMPLETIONS, {"prompt": "abc", "attention": {"part": "cross"}}, 400)
    begun = await plain.error(COMPLETIONS, {"prompt": "abc", "decoder_input": "x"}, 400)
    assert plain.engine.submitted == []
    assert (generated["param"], begun["param"]) == ("attention.part", "decoder_input")
    assert "accepted: 'decoder'" in generated["message"]
