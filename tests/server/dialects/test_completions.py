"""POST /v1/completions."""

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from model.checkpoint.generation_defaults import SamplingDefaults
from server.engine.request import GenerateTask
from server.http.errors import EngineError, QueueFull, WorkerLost
from tests.server.fake_client import FakeEngine
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
    limit = plain.context.context_limit - 1
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
