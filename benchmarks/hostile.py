"""Measures the cost of hostile bodies within the limits for other clients: the longest gap of a stream, and the memory
of the API process.

Each body is sent to a server of the default model while a stream runs. The stream waits at most 150 ms longer than
without the body. The API process grows by at most 64 MiB and twelve times the body, and is within 10 % of its size
before a second after the answer. The first request of a kind also fills caches, so an expensive body is sent a
second time. The exit status is 1 if a body exceeds the limits twice.

    python -m benchmarks.hostile [--only NAME] [--in-process] [-- MODEL --flag ...]

`--in-process` measures the routes around an engine without a network: the longest time between two turns of the event
loop, in CPU time, which other work on the machine disturbs less than a stream.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from lightwell.server.engine.memory.process_memory import freeze_garbage
from tests.server.fake_client import FakeEngine
from tests.server.serving import build_site, listening
from tests.support.processes import Server, serve
from tests.support.wire import JSON_HEADERS, Wire

ALLOWED_GAP = 0.150
ALLOWED_TURN = 0.050
ALLOWED_BYTES, ALLOWED_TIMES = 64 << 20, 12
STAYING = 0.10
MODEL = ["fables", "--kv-cache-memory", "256MiB"]
LIMITS = ["--max-num-queued-requests", "4096"]
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    path: str
    body: Callable[[], Any]
    together: int = 1
    """Number of connections that send it at once."""


def _floats(count: int) -> list[float]:
    return [i + 0.123456789 for i in range(count)]


def _choice_of(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"enum": list(range(count))}}}


def _tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}


def _calling(arguments: str, number: int = 1) -> list[dict[str, Any]]:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}] * number
    result = {"role": "tool", "tool_call_id": "1", "content": "x"}
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": calls}, result]


def _next(inputs: int) -> dict[str, Any]:
    return {"input": ["a"] * inputs, "temperatures": [0.1 * i for i in range(1, 17)], "num_tokens": 1000}


def _tokens(count: int) -> dict[str, Any]:
    return {"prompt": "\U0001f600" * count, "return_token_strs": True, "return_offsets": True}


def _tool_use(given: dict[str, Any]) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": "1", "name": "f", "input": given}
    return [{"role": "user", "content": "a"}, {"role": "assistant", "content": [use]}]


def _trace(given: Any, interventions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"input": given, "points": ["ln_final.hook_scale"], "interventions": interventions}


def _input_json(parts: int) -> list[dict[str, Any]]:
    return [{"type": "input_json", "data": {"a": _floats(9000)}} for _ in range(parts)]


_ZERO = {"point": "attn.hook_z", "layer": "all", "op": "zero"}
_SCORE = {"type": "score", "instructions": "?"}
COMPLETIONS, CHAT, TRACE = "/v1/completions", "/v1/chat/completions", "/v1/trace"
CASES: dict[str, Case] = {
    "inputs x interventions": Case(TRACE, lambda: _trace(["a"] * 2048, [_ZERO] * 64)),
    "prompts x interventions": Case(
        COMPLETIONS, lambda: {"prompt": ["a"] * 1000, "max_tokens": 1, "interventions": [_ZERO] * 64}
    ),
    "inputs of unlike length x interventions": Case(
        TRACE, lambda: _trace([[1] * (1 + i % 60) for i in range(2048)], [_ZERO] * 64)
    ),
    "64 means of 200 inputs": Case(
        TRACE, lambda: _trace("a", [{**_ZERO, "op": "mean", "from": {"input": ["a"] * 200}}] * 64)
    ),
    "lists of heads": Case(TRACE, lambda: _trace("a", [{**_ZERO, "head": list(range(30_000))}] * 64)),
    "thirty long prompts, truncate": Case(
        COMPLETIONS, lambda: {"prompt": ["1" * 999_999] * 30, "truncate": True, "max_tokens": 1}
    ),
    "thirty long prompts": Case(COMPLETIONS, lambda: {"prompt": ["1" * 999_999] * 30, "max_tokens": 1}),
    "thirty long inputs": Case("/v1/embeddings", lambda: {"input": ["1" * 999_999] * 30, "truncate": True}),
    "700 inputs of two tokens a word": Case("/v1/embeddings", lambda: {"input": ["a b " * 4095] * 700}),
    "2,048 inputs, truncate": Case("/v1/embeddings", lambda: {"input": ["a b c " * 100] * 2048, "truncate": True}),
    "long query, 30 documents": Case(
        "/v1/rerank", lambda: {"query": "1 " * 450_000, "documents": ["a"] * 30, "truncate": True}
    ),
    "10,000 documents": Case("/v1/rerank", lambda: {"query": "1 ", "documents": ["a"] * 10_000, "truncate": True}),
    "systemone criteria": Case(
        "/v1/systemone",
        lambda: {"state": "x", "questions": {f"q{i}": {**_SCORE, "criteria": [_floats(9000)] * 10} for i in range(20)}},
    ),
    "220 input_json parts": Case(
        "/v1/decisions",
        lambda: {
            "input": [{"role": "user", "content": _input_json(220)}],
            "questions": [{"type": "predicate", "instructions": "x"}],
        },
    ),
    "tool_use of floats": Case("/v1/messages/count_tokens", lambda: {"messages": _tool_use({"a": _floats(1_500_000)})}),
    "chat_template_kwargs": Case(CHAT, lambda: _chat(chat_template_kwargs={"a": _floats(1_500_000)})),
    "n 128 with logprobs": Case(CHAT, lambda: _chat(max_tokens=40, n=128, logprobs=True, top_logprobs=20)),
    "completions n 128 with logprobs": Case(
        COMPLETIONS, lambda: {"prompt": "a", "max_tokens": 40, "n": 128, "logprobs": 5}
    ),
    "responses user": Case(
        "/v1/responses", lambda: {"input": "a", "user": "u" * (30 << 20), "stream": True, "max_output_tokens": 16}
    ),
    "next at 16 temperatures": Case("/v1/next", lambda: _next(128)),
    "next, as much as is named": Case("/v1/next", lambda: _next(16)),
    "tokenize emoji": Case("/tokenize", lambda: _tokens(900_000)),
    "tokenize, as much as is read": Case("/tokenize", lambda: _tokens(32_000)),
    "tokenize inline emoji": Case("/tokenize", lambda: {"prompt": "\U0001f600" * 19_999}),
    "128 tools": Case(CHAT, lambda: _chat(tools=[_tool(f"t{i}", _choice_of(4000)) for i in range(128)])),
    "tools of messages": Case(
        "/v1/messages",
        lambda: _chat(tools=[{"name": f"t{i}", "input_schema": _choice_of(4000)} for i in range(128)]),
    ),
    "tool with 120,000 keys": Case(CHAT, lambda: _chat(tools=[_tool("t", {f"k{i}": 0 for i in range(120_000)})])),
    "1,088 prompts": Case(COMPLETIONS, lambda: {"prompt": ["a"] * 1088, "max_tokens": 1}),
    "attention of 2,048 inputs": Case("/v1/attention", lambda: {"input": ["a"] * 2048, "layers": 0, "heads": 0}),
    "api/chat format": Case(
        "/api/chat", lambda: {"model": "x", "messages": _chat()["messages"], "format": {"enum": list(range(2_000_000))}}
    ),
    "arguments of a call": Case(CHAT, lambda: _chat(messages=_calling(json.dumps({"a": list(range(1_000_000))})))),
    "arguments of 128 calls": Case(
        CHAT, lambda: _chat(messages=_calling(json.dumps({"a": list(range(9000))}), number=128))
    ),
    "large chats at once": Case(
        CHAT, lambda: {"messages": [{"role": "user", "content": "x " * 100_000} for _ in range(30)]}, together=8
    ),
}


def content_of(case: Case) -> bytes:
    return json.dumps(case.body()).encode()


def memory_of(pid: int | str, name: str = "VmRSS") -> int:
    """Return the resident bytes of a process; VmHWM is the name of its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def reset_peak(pid: int | str) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def send(port: int, case: Case, content: bytes) -> str:
    """Return status and beginning of the answer to a body, sent by a separate process."""
    code = (
        "import http.client, sys; connection = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=240);"
        "connection.request('POST', sys.argv[2], sys.stdin.buffer.read(), {'Content-Type': 'application/json'});"
        "answer = connection.getresponse(); body = answer.read().decode('utf-8', 'replace').replace(chr(10), ' ');"
        "print(answer.status, len(body), body[:100])"
    )
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(port), case.path, **pipes)
    said, _ = await process.communicate(content)
    return said.decode().strip()


async def send_all(port: int, case: Case, content: bytes) -> str:
    return (await asyncio.gather(*(send(port, case, content) for _ in range(case.together))))[0]


# ---- in process


async def longest_turns(until: asyncio.Event) -> tuple[float, float]:
    """Return the longest time between two turns of the event loop, and the most CPU time of the process between two,
    in seconds.
    """
    longest, last = (0.0, 0.0), (time.perf_counter(), time.process_time())
    while not until.is_set():
        await asyncio.sleep(0.001)
        now = time.perf_counter(), time.process_time()
        longest, last = (max(longest[0], now[0] - last[0]), max(longest[1], now[1] - last[1])), now
    return longest


async def in_process(names: list[str]) -> int:
    """Print the longest time without a turn of the event loop for each body; return how many are too long."""
    num_wrong = 0
    with TemporaryDirectory() as folder:
        at = build_site(Path(folder), FakeEngine(), max_num_queued_requests=4096, max_body_bytes=64 << 20)
        async with listening(at) as url:
            freeze_garbage()  # as a server does: a look through all imported objects takes 0.1 s
            for name in names:
                content, over = content_of(CASES[name]), asyncio.Event()
                turns = asyncio.create_task(longest_turns(over))
                said = await send_all(int(url.rpartition(":")[2]), CASES[name], content)
                over.set()
                wall, cpu = await turns
                is_wrong = cpu > ALLOWED_TURN
                num_wrong += is_wrong
                print(
                    f"{name:40}{len(content) / 1e6:7.2f} MB{wall * 1000:8.0f} ms{cpu * 1000:8.0f} ms of CPU"
                    f"{'  <<<' if is_wrong else ''}  {said}",
                    flush=True,
                )
    return num_wrong


# ---- over HTTP


async def stream_gap(port: int, until: asyncio.Event) -> float:
    """Return the longest time between two tokens of streams that follow each other, in seconds."""
    body = json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    longest = 0.0
    while not until.is_set():
        wire = await Wire.open("127.0.0.1", port)
        try:
            await wire.send("POST", COMPLETIONS, body, JSON_HEADERS)
            head, last = await wire.read_head(), time.perf_counter()
            async for _ in wire.pieces(head):
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
                if until.is_set():
                    break
        finally:
            wire.reset()
    return longest


async def beside_a_stream(port: int, work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Return the result of `work`, and the longest gap of the stream next to it."""
    over = asyncio.Event()
    gap = asyncio.create_task(stream_gap(port, over))
    await asyncio.sleep(0.5)
    result = await work
    over.set()
    return result, await gap


async def over_http(server: Server, names: list[str]) -> int:
    """Print gap and memory for each body; return how many cost too much."""
    print(f"{'':40}{'body':>10}{'gap':>11}{'alone':>9}{'grown':>8}{'allowed':>9}{'stays':>7}")
    return sum([await costs_too_much(server, name) and await costs_too_much(server, name) for name in names])


async def costs_too_much(server: Server, name: str) -> bool:
    """Send a body, print its gap and memory, and return whether they are over the limits."""
    content = content_of(CASES[name])
    _, alone = await beside_a_stream(server.port, asyncio.sleep(2))
    before = memory_of(server.pid)
    reset_peak(server.pid)
    said, gap = await beside_a_stream(server.port, send_all(server.port, CASES[name], content))
    peak = memory_of(server.pid, "VmHWM")
    await asyncio.sleep(1)
    stays = memory_of(server.pid) / before - 1
    allowed = ALLOWED_BYTES + ALLOWED_TIMES * len(content) * CASES[name].together
    is_wrong = gap - alone > ALLOWED_GAP or peak - before > allowed or stays > STAYING
    print(
        f"{name:40}{len(content) / 1e6:7.2f} MB{gap * 1000:8.0f} ms{alone * 1000:6.0f} ms"
        f"{(peak - before) >> 20:5} MB{allowed >> 20:6} MB{stays:7.0%}{'  <<<' if is_wrong else ''}  {said}",
        flush=True,
    )
    return is_wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", action="append", help="part of the names of the bodies that are sent")
    parser.add_argument("--in-process", action="store_true", help="the event loop around an engine without a network")
    parser.add_argument("serve", nargs="*", help="arguments of `lightwell serve`")
    options = parser.parse_args()
    names = [name for name in CASES if not options.only or any(each in name for each in options.only)]
    if options.in_process:
        return int(asyncio.run(in_process(names)) > 0)
    with serve([*(options.serve or MODEL), *LIMITS]) as server:
        return int(asyncio.run(over_http(server, names)) > 0)


if __name__ == "__main__":
    sys.exit(main())
