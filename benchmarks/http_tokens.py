"""The CPU time of the server's processes per token over HTTP, with an engine that plays recorded tokens.

Of the streams, every fourth has a stop string and every sixteenth has log-probabilities; the text has characters of
several tokens. Each step of the engine has one token of every stream.

    python -m benchmarks.http_tokens --streams 256
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.comparison import machine, table
from benchmarks.load import closed_loop, run
from lightwell.server.cli import build_parser
from lightwell.server.config.command_line import from_arguments
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.messages.outputs import (
    EngineInfo,
    EngineStats,
    RequestOutput,
    StepOutput,
    Timing,
    TokenLogprobs,
)
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask
from lightwell.server.lifecycle.app import serve
from tests.support.processes import ROOT, descendants, free_port, running

TEXT = 'The quick brown fox — 狐は速い 🦊 — jumps over 12 lazy dogs; naïve façade, "quoted" words.\n'
STEP_MS = "RECORDED_STEP_MS"
"""Environment variable: least milliseconds of a step."""


class RecordedEngine:
    """An engine without a network, in the worker's real process: each answer is the recorded text."""

    info = EngineInfo(max_model_len=4096, num_blocks=1 << 20, block_size=32, dtype="float32", device="cpu")

    def __init__(self, config: EngineConfig, progress: Callable[[int, int], None]) -> None:
        from lightwell.model.tokenization.tokenizer import Tokenizer

        self._ids = Tokenizer.from_folder(Path(config.model)).encode(TEXT).ids
        self._least_seconds = float(os.environ[STEP_MS]) / 1e3
        self._sent: dict[int, int] = {}
        self._requests: dict[int, EngineRequest] = {}
        self._began = 0.0
        progress(1, 1)

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def _nothing(self, argument: object = None) -> None:
        """Do nothing: short steps need no grammars, no early outputs and no memory."""

    call_when_ready = prepare_grammars = send_early = call_when_short = watch_aborts = watch_requests = _nothing
    check_integrity = close = _nothing

    def add_request(self, request: EngineRequest) -> None:
        self._requests[request.uid], self._sent[request.uid] = request, 0

    def abort(self, uid: int) -> None:
        self._requests.pop(uid, None)

    def state(self) -> dict[str, Any]:
        return {}

    def stats(self) -> EngineStats:
        return EngineStats(num_requests_running=len(self._requests))

    def step(self) -> StepOutput:
        time.sleep(max(0.0, self._began + self._least_seconds - time.monotonic()))
        self._began = time.monotonic()
        outputs = [self._next(request) for request in self._requests.values()]
        for output in outputs:
            if output.finish_reason is not None:
                del self._requests[output.uid]
        return StepOutput(others=tuple(outputs), stats=self.stats())

    def _next(self, request: EngineRequest) -> RequestOutput:
        assert isinstance(request.task, GenerateTask)
        sampling, count = request.task.sampling, self._sent[request.uid]
        self._sent[request.uid] = count + 1
        token = self._ids[count % len(self._ids)]
        output = RequestOutput(uid=request.uid, token_id=token)
        if sampling.logprobs is not None:
            top = [(token + i, -0.1 - i) for i in range(sampling.logprobs)]
            output.logprobs = TokenLogprobs.of(token, -0.1, 1, top)
        is_last = count + 1 == sampling.max_tokens
        if is_last or not count:
            now = time.monotonic()
            output.timing = Timing(request.arrival_time, now, now, now if is_last else None)
        if is_last:
            output.finish_reason = "length"
        return output


@dataclass(frozen=True)
class Times:
    """CPU seconds of a process."""

    user: float
    system: float

    @classmethod
    def of(cls, pid: int) -> "Times":
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(int(fields[11]) / ticks, int(fields[12]) / ticks)


def bodies(streams: int, tokens: int) -> list[dict[str, Any]]:
    """Return one request of each stream."""
    forms = [{"stop": ["\n\n\n"]} if i % 4 == 3 else {"logprobs": 2} if i % 16 == 0 else {} for i in range(16)]
    plain = {"model": "smollm2", "prompt": "Once", "max_tokens": tokens, "temperature": 0}
    return [plain | form for form in islice(cycle(forms), streams)]


def is_worker(pid: int) -> bool:
    """Return whether a process is a worker: it has its file of stacks open."""
    return any(link.readlink().name.endswith(".stacks") for link in Path(f"/proc/{pid}/fd").iterdir())


def measure(streams: int, tokens: int, step_ms: float, api_processes: int) -> list[str]:
    """Return a row of the table."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.http_tokens", "--serve", "--port", str(port)]
    environment = {STEP_MS: str(step_ms), "LIGHTWELL_API_PROCESSES": str(api_processes)}
    with running(command, port, "/health/ready", 60, environment=environment, folder=ROOT) as server:
        run(closed_loop(server.host, server.port, bodies(streams, 8), streams))  # warm
        pids = descendants(server.pid)
        workers = {pid for pid in pids if is_worker(pid)}
        before = {pid: Times.of(pid) for pid in pids}
        load = run(closed_loop(server.host, server.port, bodies(streams, tokens), streams))
        spent = {pid: Times.of(pid) for pid in pids}
    total = streams * tokens
    seconds = {pid: (spent[pid].user - before[pid].user, spent[pid].system - before[pid].system) for pid in pids}
    api = [sum(times) for times in zip(*(seconds[pid] for pid in pids if pid not in workers), strict=True)]
    both = sum(map(sum, seconds.values()))
    per_token = [f"{part / total * 1e6:.1f}" for part in api]
    return [str(streams), f"{total / load.seconds:,.0f}", *per_token, f"{2 * total / both:,.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each answer")
    parser.add_argument("--api-processes", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=20.0, help="least milliseconds of a step of the engine")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        arguments = ["serve", "smollm2", "--port", options.port, "--host", "127.0.0.1", "--max-num-seqs", "512"]
        settings = from_arguments(build_parser().parse_args(arguments), os.environ)
        serve(settings, engine_factory="benchmarks.http_tokens:RecordedEngine")
        return 0
    print(machine(), flush=True)
    head = ["streams", "tokens/s", "API user us/token", "API system us/token", "tokens/s of 2 whole cores"]
    settings = options.tokens, options.step_ms, options.api_processes
    print(table([head, *(measure(streams, *settings) for streams in options.streams)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
