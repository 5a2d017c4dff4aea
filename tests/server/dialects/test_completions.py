"""POST /v1/completions: choices, streams, stop strings, scores, truncation, and attention rows with each token."""

import base64
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightwell.model.checkpoint.generation_defaults import SamplingDefaults
from lightwell.server.engine.messages.request import GenerateTask
from lightwell.server.http.errors import EngineError, QueueFull, WorkerLost
from tests.server.dialects.routes import refuses
from tests.server.fake_client import FakeEngine, number
from tests.server.serving import END_OF_TEXT, Site, events_of, site

SCRIPT = tuple("Grüße, 世界! ".encode())


def sampling(at: Site, index: int = 0) -> Any:
    task = at.engine.submitted[index].task
    assert isinstance(task, GenerateTask)
    return task.sampling


async def complete(at: Site, **body: Any) -> dict[str, Any]:
    answer = await at.post("/v1/completions", {"prompt": "ab", "max_tokens": 4, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def chunks(at: Site, **body: Any) -> list[Any]:
    return events_of(await at.post("/v1/completions", {"prompt": "ab", "max_tokens": 4, "stream": True, **body}))


async def test_a_completion_has_openais_shape(plain: Site) -> None:
    answer = await complete(plain)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "org/tiny"
    assert answer["choices"] == [
        {"index": 0, "text": "hihi", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 4)
    assert answer["usage"]["total_tokens"] == 6


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [(97, 98)]),
        (["a", "bc"], [(97,), (98, 99)]),
        ([5, 6], [(5, 6)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
    ],
)
async def test_every_form_of_prompt_reaches_the_engine_as_ids(prompt: Any, ids: Any, plain: Site) -> None:
    answer = await complete(plain, prompt=prompt)
    assert [each.prompt_token_ids for each in plain.engine.submitted] == ids
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(ids)))


async def test_choices_are_numbered_prompt_by_prompt_and_draw_their_own_numbers(plain: Site) -> None:
    answer = await complete(plain, prompt=["a", "b"], n=3, seed=7, echo=True)
    seeds = [sampling(plain, i).seed for i in range(6)]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in answer["choices"]] == ["ahihi"] * 3 + ["bhihi"] * 3
    assert seeds[:3] == seeds[3:], "prompts do not change each other's answers"
    assert seeds[0] == 7, "the first choice is that of n = 1"
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 24


async def test_the_usage_so_far_comes_with_every_chunk_that_was_asked_for_it(plain: Site) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *found, last = await chunks(plain, stream=True, stream_options=options)
    assert last == "[DONE]"
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 4)
    assert {chunk["usage"]["prompt_tokens"] for chunk in found} == {2}
    assert found[-1]["choices"] == []


@pytest.mark.parametrize(
    ("prompt", "number", "ids"),
    [
        ("abc", 2, [(98, 99)]),
        (["abc", "d"], 1, [(99,), (100,)]),
        ([1, 2, 3, 4], 3, [(2, 3, 4)]),
        ([1, 2], 3, [(1, 2)]),
    ],
)
async def test_of_a_prompt_the_last_tokens_are_kept(prompt: Any, number: int, ids: Any, plain: Site) -> None:
    answer = await complete(plain, prompt=prompt, truncate_prompt_tokens=number, echo=True)
    assert [each.prompt_token_ids for each in plain.engine.submitted] == ids
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    limit = plain.model.context_limit - 1
    longest = await complete(plain, prompt=[7] * (limit + 50), truncate_prompt_tokens=-1, max_tokens=1)
    assert longest["usage"]["prompt_tokens"] == limit


async def test_what_a_request_does_not_say_is_the_models(tmp_path: Path) -> None:
    """Apply the defaults of generation_config.json as vLLM does; fields of the request override them."""
    own = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)
    said = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    async with site(tmp_path, sampling_defaults=own) as at:
        for body in ({}, dict.fromkeys(said), said):
            await complete(at, **body)
        assert (await at.http.get("/v1/capabilities")).json()["default_sampling_params"] == asdict(own)
        found = [{name: getattr(sampling(at, i), name) for name in said} for i in range(3)]
    assert found == [{name: getattr(own, name) for name in said}] * 2 + [said]


async def test_the_log_has_the_sampling_parameters_of_a_text_at_level_debug(
    plain: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await complete(plain)
    assert "is sampled with" not in caplog.text
    with caplog.at_level("DEBUG", "lightwell.server.generation.sampling"):
        await complete(plain, top_p=0.5)
    assert "the text is sampled with temperature=1, top_p=0.5, top_k=0, min_p=0" in caplog.text


async def test_requests_with_neighbouring_seeds_share_no_choice(plain: Site) -> None:
    """Check against an old failure: choice k of one seed equalled choice 0 of seed + k."""
    first = random.randrange(2**63 - 16)
    for seed in range(first, first + 8):
        await complete(plain, prompt="a", n=8, seed=seed)
    seeds = [sampling(plain, i).seed for i in range(64)]
    assert seeds[::8] == list(range(first, first + 8))
    assert len(set(seeds)) == 64


async def test_sampling_fields_arrive_as_they_were_sent(plain: Site) -> None:
    fields = {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": 3, "logit_bias": {"9": -5}}
    await complete(plain, **fields, min_tokens=2, ignore_eos=True, stop_token_ids=[65])
    got = sampling(plain)
    assert (got.temperature, got.top_p, got.top_k, got.min_p, got.seed) == (0, 0.5, 0, 0.1, 3)
    assert (got.logit_bias, got.min_tokens, got.ignore_eos, got.stop_token_ids) == ({9: -5}, 2, True, (65,))
    assert got.eos_token_ids == (END_OF_TEXT,)


async def test_the_default_max_tokens_is_16_or_the_room_left(plain: Site) -> None:
    await plain.post("/v1/completions", {"prompt": "a"})
    await plain.post("/v1/completions", {"prompt": "a" * 60})
    assert [sampling(plain, i).max_tokens for i in range(2)] == [16, 4]


async def test_an_end_of_text_token_ends_without_a_trace_in_the_text(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(eos_after=2)) as at:
        (choice,) = (await complete(at, skip_special_tokens=False))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("hi", "stop", None)


async def test_a_stream_joined_is_the_answer_in_one_piece_wherever_it_ends(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=SCRIPT)) as at:
        for max_tokens in range(1, 20):
            (whole,) = (await complete(at, max_tokens=max_tokens))["choices"]
            data = await chunks(at, max_tokens=max_tokens)
            assert "".join(chunk["choices"][0]["text"] for chunk in data[:-1]) == whole["text"]
            expected = bytes(SCRIPT[i % len(SCRIPT)] for i in range(max_tokens))
            assert whole["text"] == expected.decode(errors="replace")


async def test_a_stream_has_one_event_a_token_and_ends_with_done(plain: Site) -> None:
    data = await chunks(plain)
    assert data[-1] == "[DONE]"
    assert [chunk["choices"][0]["finish_reason"] for chunk in data[:-1]] == [None, None, None, "length"]
    assert len({chunk["id"] for chunk in data[:-1]}) == 1
    assert all("usage" not in chunk for chunk in data[:-1])
    data = await chunks(plain, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in data[:-2]] == [None] * 4
    assert data[-2]["choices"] == []
    assert data[-2]["usage"]["completion_tokens"] == 4
    assert data[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_cached_tokens_count_each_prompt_once(plain: Site) -> None:
    answer = await complete(plain, prompt=["ab", "cd", "ef"], n=2)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}


async def test_logprobs_have_the_legacy_shape(plain: Site) -> None:
    (choice,) = (await complete(plain, max_tokens=2, logprobs=2))["choices"]
    assert choice["logprobs"] == {
        "tokens": ["h", "i"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"h": -0.5, "A": -1.5}, {"i": -0.5, "A": -1.5}],
        "text_offset": [0, 1],
    }


async def test_streamed_logprobs_joined_are_those_of_one_piece(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=SCRIPT)) as at:
        (whole,) = (await complete(at, max_tokens=9, logprobs=1, echo=True))["choices"]
        data = await chunks(at, max_tokens=9, logprobs=1, echo=True)
    for name, values in whole["logprobs"].items():
        joined = [value for chunk in data[:-1] for value in chunk["choices"][0]["logprobs"][name]]
        assert joined == values


@pytest.mark.parametrize("echo", [False, True])
async def test_the_offset_of_a_token_is_where_its_character_begins(echo: bool, tmp_path: Path) -> None:
    """Check against an old failure: a character of several tokens was counted as several characters, so that later
    offsets were too large.
    """
    prompt, answer = ("".join(random.choices("aü世🎉 ", k=10)) for _ in range(2))
    num_bytes = len(answer.encode())
    async with site(tmp_path, FakeEngine(script=tuple(answer.encode()))) as at:
        max_tokens = min(num_bytes, 64 - len(prompt.encode()))
        (choice,) = (await complete(at, prompt=prompt, max_tokens=max_tokens, logprobs=1, echo=echo))["choices"]
    logprobs, text = choice["logprobs"], (prompt if echo else "") + answer
    begins = [i for i, character in enumerate(text) for _ in character.encode()]
    assert logprobs["text_offset"] == begins[: len(logprobs["tokens"])]
    assert len(logprobs["tokens"]) >= max_tokens


@pytest.mark.parametrize("wish", [{"prompt_logprobs": 20}, {"logprobs": 20, "echo": True}])
async def test_too_many_alternatives_of_prompts_are_refused_before_anything_runs(
    wish: dict[str, Any], tmp_path: Path
) -> None:
    async with site(tmp_path, max_response_bytes=25_000) as at:
        fits = {"prompt": ["abcd"] * 3, "max_tokens": 1, **wish}
        assert (await at.post("/v1/completions", fits)).status_code == 200
        num_before = len(at.engine.submitted)
        error = await at.error("/v1/completions", {**fits, "n": 2}, 413)
        assert len(at.engine.submitted) == num_before
    assert error["code"] == "answer_too_large"
    assert f"about {2 * 3 * (4 + ('logprobs' in wish)) * 21 * 75} bytes" in error["message"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a"] * 5, "logprobs": 20, "ignore_eos": True}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20},
        ),
    ],
)
async def test_too_many_alternatives_of_generated_tokens_are_refused_before_anything_runs(
    path: str, body: dict[str, Any], streams: bool, tmp_path: Path
) -> None:
    async with site(tmp_path, max_response_bytes=5 * 40 * 21 * 75) as at:
        fits = {**body, "n": 2, "max_tokens": 20, "stream": streams}
        assert (await at.post(path, fits)).status_code == 200
        num_before = len(at.engine.submitted)
        error = await at.error(path, {**fits, "n": 128}, 413)
        assert len(at.engine.submitted) == num_before
    assert f"about {128 * len(body.get('prompt', 'a')) * 20 * 21 * 75} bytes" in error["message"]


async def test_without_max_tokens_an_answer_has_as_many_tokens_as_its_log_probabilities_allow(tmp_path: Path) -> None:
    async with site(tmp_path, max_response_bytes=2 * 5 * 21 * 75) as at:
        body = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20, "n": 2}
        assert (await at.post("/v1/chat/completions", body)).status_code == 200
        assert [sampling(at, i).max_tokens for i in (0, 1)] == [5, 5]
        body = {"prompt": ["a", "bc"], "max_tokens": None, "logprobs": 4}
        assert (await at.post("/v1/completions", body)).status_code == 200
        assert [sampling(at, i).max_tokens for i in (2, 3)] == [21, 21]


async def test_an_error_before_the_first_token_keeps_its_status(tmp_path: Path) -> None:
    engine = FakeEngine(fail_after=0, failure=WorkerLost("gone", retry_after=1))
    async with site(tmp_path, engine) as at:
        answer = await at.post("/v1/completions", {"prompt": "a", "stream": True})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["message"] == "gone"


async def test_a_stream_that_fails_ends_with_an_error_event_and_not_with_done(tmp_path: Path) -> None:
    engine = FakeEngine(fail_after=2, failure=EngineError("boom", code="engine_error"))
    async with site(tmp_path, engine) as at:
        answer = await at.post("/v1/completions", {"prompt": "a", "stream": True})
        assert await at.metric('lightwell_request_success_total{finish_reason="abort"}') == 0
    assert answer.status_code == 200
    data = events_of(answer)
    assert data[-1]["error"]["message"] == "boom"
    assert "event: error\ndata: " in answer.text
    assert "[DONE]" not in answer.text


async def test_when_one_choice_is_refused_the_others_are_aborted(tmp_path: Path) -> None:
    engine = FakeEngine(refuse=QueueFull("full", retry_after=2), refuse_from=2)
    async with site(tmp_path, engine) as at:
        answer = await at.post("/v1/completions", {"prompt": "a", "n": 3})
        assert [each.handle.was_aborted for each in engine.submitted] == [True, True]
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "2"


async def test_the_latencies_of_a_request_are_observed_once_per_token(plain: Site) -> None:
    await complete(plain, n=2)
    assert await plain.metric("lightwell_time_to_first_token_seconds_count") == 2
    assert await plain.metric("lightwell_inter_token_latency_seconds_count") == 6
    assert await plain.metric('lightwell_e2e_request_latency_seconds_count{route="/v1/completions"}') == 2
    assert await plain.metric("lightwell_request_generation_tokens_count") == 2
    assert await plain.metric('lightwell_request_success_total{finish_reason="length"}') == 2


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
    assert f"{max_tokens} leaves no tokens of the context for the prompt; 1 to 63" in error["message"]


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
