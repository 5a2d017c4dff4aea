"""A Ray cluster of processes on this machine, with our application."""

import os
import queue
import signal
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path
from threading import Semaphore, Thread

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.server.running import wait_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own, on import

ROOT = Path(__file__).parents[2]

PATIENCE = 240.0
"""Seconds to wait. While two processes were busy, two cores took 100 s to start the cluster and over 120 s to start
another replica.
"""

PAUSE = 0.1

PROMPT = "Once upon a time"

RUNNING = "lightwell_num_requests_running"


class RayCluster:
    """The cluster's process, and its address."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self._process = process
        self._log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        Thread(target=self._read, daemon=True).start()
        self.http = httpx.Client(base_url=url, timeout=PATIENCE)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.strip())
        self._lines.put(None)

    def expect(self, word: str) -> None:
        """Wait until the cluster has written the word; fail at once if it has ended."""
        with suppress(queue.Empty):
            while (line := self._lines.get(timeout=PATIENCE)) is not None:
                if line == word:
                    return
        raise AssertionError(f"the cluster did not write {word!r}: {self._log.read_text()[-4000:]}")

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """End the whole cluster, also if it does not end by itself."""
        self.http.close()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def engine_processes(self) -> list[int]:
        """Return the processes of the engine replicas of this cluster."""
        parents, engines = process_parents(), []
        for pid in parents:
            with suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/cmdline").read_text().startswith("ray::ServeReplica:lightwell:Engine"):
                    engines.append(pid)

        def is_ours(pid: int) -> bool:
            return pid == self._process.pid or (pid in parents and is_ours(parents[pid]))

        return [pid for pid in engines if is_ours(pid)]

    def samples(self, name: str) -> list[Sample]:
        def page() -> str:
            answer = self.http.get("/metrics")
            return answer.text if answer.status_code == 200 else ""

        families = text_string_to_metric_families(wait_for(page, "a replica tells its metrics", PATIENCE, PAUSE))
        return [sample for family in families for sample in family.samples if sample.name == name]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples over all replicas; 0 where there are none."""
        return sum(each.value for each in self.samples(name) if labels.items() <= each.labels.items())

    def replicas(self) -> set[str]:
        return {sample.labels["replica"] for sample in self.samples("lightwell_generation_tokens_total")}

    def num_running(self) -> dict[str, float]:
        """Return, for each replica with stopped workers, the number of its requests that cannot end."""
        looks: list[tuple[dict[str, float], float]] = []

        def is_settled() -> bool:  # replicas may still be reading earlier output of their workers
            running = {each.labels["replica"]: each.value for each in self.samples(RUNNING)}
            looks.append((running, self.total("lightwell_generation_tokens_total")))
            return looks[-1] in looks[-2:-1]

        wait_for(is_settled, "the replicas have read what was sent", PATIENCE, PAUSE)
        return looks[-1][0]

    def stream(self, begun: Semaphore) -> tuple[int, str]:
        """Return a long streamed answer; `begun` is released with its first event."""
        body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "stream": True, "temperature": 0}
        with self.http.stream("POST", "/v1/completions", json=body) as answer:
            text = ""
            for piece in answer.iter_text():
                if not text:
                    begun.release()
                text += piece
            return answer.status_code, text


def process_parents() -> dict[int, int]:
    """Return the parent of every process of the machine."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return parents
