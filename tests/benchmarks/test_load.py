"""The load that benchmarks send: when requests are sent, and which numbers are counted from the answers."""

import asyncio
import json
import statistics
from collections.abc import Awaitable, Callable
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.load import Load, Timeline, closed_loop, open_loop, percentile, poisson_arrivals
from benchmarks.long_prompt import SETTLED_TOKENS, one_among_streams

ANSWER = [
    b'data: {"choices": [{"text": "a"}]}\n\n',
    b'data: {"choices": [{"text": "b"}]}\n\n',
    b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\n\n',
    b"data: [DONE]\n\n",
]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def stream(writer: asyncio.StreamWriter, events: list[bytes]) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for event in events:
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
    writer.write(b"0\r\n\r\n")
    writer.close()


async def loaded(answer: Serve, load: Callable[[str, int], Awaitable[Load]]) -> Load:
    """Return what `load` saw of a server that answers with `answer`."""
    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        host, port = server.sockets[0].getsockname()
        return await load(host, port)


def test_arrivals_are_a_poisson_process_the_same_for_a_seed() -> None:
    first, again, other = (poisson_arrivals(5000, 10.0, seed) for seed in (3, 3, 4))
    assert first == again != other
    assert other[-1] == pytest.approx(500)
    arrivals = [0.0, *first]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.1, rel=0.1)  # as large as the mean
    assert sum(gap > 0.1 for gap in gaps) / len(gaps) == pytest.approx(np.exp(-1), abs=0.03)


def test_an_open_loop_does_not_wait_for_answers() -> None:
    num_requests = 6

    async def run() -> Load:
        all_here = asyncio.Barrier(num_requests)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await all_here.wait()  # answers begin after all requests have arrived
            stream(writer, ANSWER)

        arrivals = [0.001 * i for i in range(num_requests)]
        return await loaded(answer, lambda host, port: open_loop(host, port, [{}] * num_requests, arrivals))

    load = asyncio.run(asyncio.wait_for(run(), 300))
    assert [line.completion_tokens for line in load.timelines] == [2] * num_requests
    assert load.unanswered == []


def test_an_open_loop_counts_refusals_and_broken_streams_apart() -> None:
    answers = iter([b"refuse", b"break", b"whole"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        kind = next(answers)
        if kind == b"refuse":
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\n\r\nthe queue is full")
            writer.close()
        else:
            stream(writer, ANSWER if kind == b"whole" else ANSWER[:1])

    load = asyncio.run(loaded(answer, lambda host, port: open_loop(host, port, [{}] * 3, [0, 0, 0])))
    assert len(load.timelines) == 1
    assert sorted(load.unanswered) == [
        "HTTP/1.1 429 Too Many Requests: the queue is full",
        "the stream ended without [DONE]",
    ]


def test_a_closed_loop_has_no_more_requests_under_way_than_clients() -> None:
    async def run() -> tuple[Load, int]:
        under_way = most = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await reader.readuntil(b"\r\n\r\n")
            under_way -= 1
            stream(writer, ANSWER)

        return await loaded(answer, lambda host, port: closed_loop(host, port, [{}] * 10, 3)), most

    load, most = asyncio.run(run())
    assert len(load.timelines) == 10
    assert most <= 3


def test_times_of_an_answer_are_those_of_vllm_bench_serve() -> None:
    # Four tokens in three events: one was held back.
    line = Timeline(started=10.0, tokens_at=[10.5, 10.6, 11.1], completion_tokens=4)
    assert line.time_to_first_token == pytest.approx(0.5)
    assert line.gaps == pytest.approx([0.1, 0.5])
    assert line.latency == pytest.approx(1.1)
    assert line.time_per_output_token == pytest.approx((1.1 - 0.5) / 3)
    assert Timeline(started=0.0, tokens_at=[0.5], completion_tokens=1).time_per_output_token == 0


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_percentiles_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    for fraction in (0.0, 0.5, 0.9, 0.99, 1.0):
        assert percentile([*values], fraction) == pytest.approx(np.percentile(values, 100 * fraction))
    assert np.isnan(percentile([], 0.5))


def test_the_long_prompt_is_sent_once_every_stream_has_settled() -> None:
    async def run() -> tuple[Load, int]:
        one_waits = asyncio.Event()
        least_sent = 0
        num_sent: dict[int, int] = {}

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal least_sent
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"Content-Length: ")[2].split()[0])
            index = json.loads(await reader.readexactly(length))["index"]
            if index == 2:
                least_sent = min(num_sent.values())
                stream(writer, ANSWER)
                one_waits.set()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(SETTLED_TOKENS + index):
                writer.write(b"%x\r\n%s\r\n" % (len(ANSWER[0]), ANSWER[0]))
                num_sent[index] = i + 1
                await writer.drain()
            await one_waits.wait()
            for event in ANSWER:
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            writer.close()

        bodies = [{"index": index} for index in range(3)]
        return await loaded(answer, lambda host, port: one_among_streams(host, port, bodies)), least_sent

    load, least_sent = asyncio.run(asyncio.wait_for(run(), 300))
    assert least_sent == SETTLED_TOKENS
    assert [len(line.tokens_at) for line in load.timelines] == [2, SETTLED_TOKENS + 2, SETTLED_TOKENS + 3]
