"""The default model is stopped in the middle of 32 streams: each of them ends with its complete text."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx

from tests.server.running import running_server, wait_for

NUM_STREAMS = 32
PROMPTS = [
    f"{name}, who was {i} years old, went into the" for i, name in enumerate(["Anna", "Hans"] * (NUM_STREAMS // 2))
]


def body(prompt: str | list[str], *, stream: bool) -> dict[str, object]:
    return {"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": stream}


def texts(lines: Iterator[str]) -> Iterator[str]:
    """Return the pieces of a stream, which must end well."""
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        else:
            assert line in ("", "data: [DONE]"), line


def test_every_stream_that_runs_when_the_server_is_told_to_end_is_finished_unchanged() -> None:
    with (
        running_server("--shutdown-grace", "600", module="tests.server.lightwell_command") as server,
        httpx.Client(timeout=120, limits=httpx.Limits(max_connections=None)) as http,
        ThreadPoolExecutor(NUM_STREAMS) as pool,
        ExitStack() as streams,
    ):
        wait_for(lambda: server.status("/health/ready") == 200, "the server is ready", 120)
        url = server.url + "/v1/completions"
        quiet = [choice["text"] for choice in http.post(url, json=body(PROMPTS, stream=False)).json()["choices"]]
        answers = [streams.enter_context(http.stream("POST", url, json=body(p, stream=True))) for p in PROMPTS]
        pieces = [texts(answer.iter_lines()) for answer in answers]
        begun = [next(each) for each in pieces]
        server.signal(signal.SIGTERM)
        wait_for(lambda: server.status("/health/ready") == 503, "readiness is gone")
        refused = http.post(url, json=body(PROMPTS[0], stream=False))
        whole = list(pool.map(lambda first, rest: first + "".join(rest), begun, pieces))
        assert whole == quiet
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert refused.headers["retry-after"]
        assert server.wait_exit() == 0
        server.wait_all_gone()
        assert list(server.tmp.glob("lightwell-*")) == []
