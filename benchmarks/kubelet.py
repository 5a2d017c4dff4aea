"""Plays the kubelet, and a Service, for real server processes, as the rendered Deployment says.

Probes, hook, grace period and variables are read from deploy/kubernetes/plain/deployment.yaml. The process is probed,
started again when its liveness probe fails, and ended as a pod is: removed from the endpoints, hook, SIGTERM, and
SIGKILL after the grace period. Clients send requests through the endpoints all the while; what they saw is printed.

    python -m benchmarks.kubelet              one pod: starts, loses its worker, stops answering, is drained
    python -m benchmarks.kubelet --rollout    two pods, replaced one at a time as by a rollout

It does not play containers, networks or other nodes. An endpoint goes at once, where a cluster's may take a second.
"""

import argparse
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.comparison import table
from benchmarks.pod import Pod, Spec, read_spec
from benchmarks.service_load import Service, ServiceLoad
from tests.support.processes import ROOT, descendants, is_worker

DEPLOYMENT = ROOT / "deploy" / "kubernetes" / "plain" / "deployment.yaml"
PATIENCE = 240.0
CLIENTS = 8


class DidNotHappen(RuntimeError):
    """An event that the kubelet waits for did not come; the message says which."""


def wait_for(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> float:
    """Wait until the condition is true and return the seconds until then. Raises DidNotHappen."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > patience:
            raise DidNotHappen(f"not within {patience:.0f} s: {what}")
        time.sleep(0.02)
    return time.monotonic() - begun


def workers_of(pod: Pod) -> list[int]:
    return [pid for pid in descendants(pod.pid) if is_worker(pid)]


class Play:
    """Pods behind one Service, with clients; `rows` is what is printed."""

    def __init__(self, spec: Spec, folder: Path, model: str | None) -> None:
        self.spec = spec
        self.service = Service()
        self.rows: list[list[str]] = []
        self._folder = folder
        self._model = model
        self._num_pods = 0

    def start_pod(self) -> Pod:
        """Start a pod. Raises DidNotHappen when it does not become ready."""
        self._num_pods += 1
        pod = Pod(self.spec, self._folder / f"pod-{self._num_pods}.log", self._model)
        self.service.add(pod)
        wait_for(lambda: pod.is_ready, f"pod {self._num_pods} is ready")
        return pod

    def note(self, what: str, seconds: float, load: ServiceLoad, pod: Pod) -> None:
        """Add one line: what clients saw since the last one."""
        seen = ", ".join(f"{count} {outcome}" for outcome, count in load.take().items())
        self.rows.append([what, f"{seconds:.1f}", str(pod.num_restarts), seen])

    def one_pod(self) -> None:
        """Play a pod's whole life."""
        begun = time.monotonic()
        pod = self.start_pod()
        started = time.monotonic() - begun
        with ServiceLoad(self.service, CLIENTS) as load:
            load.wait_for_answers()
            self.note("started, ready", started, load, pod)
            (worker,) = workers_of(pod)
            os.kill(worker, signal.SIGKILL)
            begun = time.monotonic()
            wait_for(lambda: any(pid != worker for pid in workers_of(pod)), "another worker is started")
            load.wait_for_answers(PATIENCE)  # of the new one; it may be there before the probe has missed the old one
            self.note("worker killed, answering again", time.monotonic() - begun, load, pod)
            wait_for(lambda: pod.is_ready, "the probe sees it ready")
            os.kill(pod.pid, signal.SIGSTOP)
            hung = wait_for(lambda: pod.num_restarts == 1, "the container is restarted")
            hung += wait_for(lambda: pod.is_ready, "ready again")
            load.wait_for_answers()
            self.note("API process stopped, container restarted", hung, load, pod)
            self.drain(pod, load)

    def drain(self, pod: Pod, load: ServiceLoad) -> None:
        """Drain a pod; what was in flight must be answered."""
        begun = time.monotonic()
        status = pod.delete()
        self.note(f"deleted, exit status {status}", time.monotonic() - begun, load, pod)

    def rollout(self) -> None:
        """Replace each of two pods by a new one as `maxSurge: 1` and `maxUnavailable: 0` require."""
        old = [self.start_pod(), self.start_pod()]
        with ServiceLoad(self.service, CLIENTS) as load:
            load.wait_for_answers()
            for number, pod in enumerate(old, start=1):
                begun = time.monotonic()
                self.start_pod()
                status = pod.delete()
                load.wait_for_answers()
                self.note(f"pod {number} replaced, exit status {status}", time.monotonic() - begun, load, pod)

    def end(self) -> None:
        """End whatever is left."""
        for pod in self.service.pods:
            pod.kill()


def play(model: str | None, *, is_rollout: bool, speed: float) -> list[list[str]]:
    """Play and return the rows of the table: what was done, seconds, restarts of the container, what clients saw.

    `speed` divides the kubelet's times, not the server's own. Raises DidNotHappen.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        acted = Play(read_spec(DEPLOYMENT, speed), folder, model)
        stack.callback(acted.end)
        try:
            acted.rollout() if is_rollout else acted.one_pod()
        except DidNotHappen as error:
            logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("*.log")))
            raise DidNotHappen(f"{error}; the logs end:\n{logs}") from None
        return acted.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a model folder [default: the built-in model]")
    parser.add_argument("--rollout", action="store_true", help="replace two pods one at a time")
    parser.add_argument("--speed", type=float, default=1.0, help="divides the kubelet's times")
    options = parser.parse_args()
    rows = play(options.model, is_rollout=options.rollout, speed=options.speed)
    print(table([["what", "seconds", "container restarts", "what clients saw"], *rows]))


if __name__ == "__main__":
    main()
