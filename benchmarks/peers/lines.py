"""Both ends of a peer in a separate process, which waits when it has nothing to do: one line of JSON in, one out."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.engines import Absent
from tests.support.processes import ROOT

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Returns the answer to one line."""


@contextmanager
def asked(module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> Iterator[Ask]:
    """Run a module of benchmarks.peers. Raises Absent if it ends before it is ready."""
    command = [sys.executable, "-m", f"benchmarks.peers.{module}", *map(str, arguments)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, cwd=ROOT, env=variables, text=True, **pipes) as process:
        asks, answers = process.stdin, process.stdout
        assert asks is not None
        assert answers is not None
        while (line := answers.readline()) != "{}\n":
            if not line:
                raise Absent(f"its process ended with status {process.wait()}")

        def ask(body: Mapping[str, Any]) -> dict[str, Any]:
            asks.write(json.dumps(body) + "\n")
            asks.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield ask
        asks.close()


def answer_all(answer: Callable[[dict[str, Any]], object]) -> None:
    """Say that the peer is ready, and answer each line of the input with its seconds and what `answer` returns."""
    print("{}", flush=True)
    for line in sys.stdin:
        body = json.loads(line)
        started = time.perf_counter()
        found = answer(body)
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "found": found}), flush=True)
