"""Runs one container as its kubelet does: started, probed, restarted, ended, as a Deployment's manifest says.

What the fields mean: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle. It knows nothing of clients.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.processes import LOOPBACK, ROOT, descendants, free_port

_LEAST_TIMEOUT, _LEAST_PRE_STOP, _LEAST_GRACE = 1.0, 3.0, 20.0
"""Seconds that a probe waits for an answer, that a request which has its endpoint already takes to arrive, and that a
server has from the hook on to finish what runs.
"""


@dataclass(frozen=True)
class Probe:
    """A probe of a manifest. Times are seconds."""

    path: str
    period: float
    timeout: float
    failure_threshold: int


@dataclass(frozen=True)
class Spec:
    """What a manifest says of its one container."""

    startup: Probe
    liveness: Probe
    readiness: Probe
    pre_stop: float
    """Seconds of the hook's sleep."""
    grace: float
    """terminationGracePeriodSeconds: seconds from the hook's beginning to SIGKILL."""
    environment: dict[str, str]


def read_spec(manifest: Path, speed: float = 1.0) -> Spec:
    """Read the spec of a Deployment. `speed` divides all times, down to what a busy machine needs."""
    pod = yaml.safe_load(manifest.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    def probe(name: str) -> Probe:
        told: dict[str, Any] = container[name]
        return Probe(
            told["httpGet"]["path"],
            told.get("periodSeconds", 10) / speed,
            max(_LEAST_TIMEOUT, told.get("timeoutSeconds", 1) / speed),
            told.get("failureThreshold", 3),
        )

    return Spec(
        startup=probe("startupProbe"),
        liveness=probe("livenessProbe"),
        readiness=probe("readinessProbe"),
        pre_stop=max(_LEAST_PRE_STOP, container["lifecycle"]["preStop"]["sleep"]["seconds"] / speed),
        grace=max(_LEAST_GRACE, pod["terminationGracePeriodSeconds"] / speed),
        environment={each["name"]: str(each["value"]) for each in container["env"] if "value" in each},
    )


_OURS = ("LIGHTWELL_HOST", "LIGHTWELL_PORT", "HF_HOME", "TRITON_CACHE_DIR")
"""Variables of a container's own network and volumes."""


class Pod:
    """One pod, started at once; a thread probes it until it is deleted or killed."""

    def __init__(self, spec: Spec, log: Path, model: str | None = None) -> None:
        self.is_ready = False
        """Whether it is among the endpoints."""
        self.num_restarts = 0
        self.port = free_port()
        self._spec = spec
        self._log = log
        self._command = [sys.executable, "-m", "server", "serve", *([] if model is None else [model])]
        self._process = self._start()
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"kubelet-{self.port}")
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def delete(self) -> int:
        """End it as `kubectl delete pod` does. Return the exit status, -9 when the grace period was not enough."""
        self.is_ready = False
        self._is_ending.set()
        self._thread.join()
        end = time.monotonic() + self._spec.grace
        time.sleep(self._spec.pre_stop)
        return self._terminate(end - time.monotonic())

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._is_ending.set()
        self._thread.join()
        self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        told = {name: value for name, value in self._spec.environment.items() if name not in _OURS}
        environment = {**os.environ, **told, "LIGHTWELL_HOST": LOOPBACK, "LIGHTWELL_PORT": str(self.port)}
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log, cwd=ROOT, env=environment)

    def _terminate(self, grace: float) -> int:
        self._process.terminate()
        try:
            return self._process.wait(max(grace, 0.0))
        except subprocess.TimeoutExpired:
            self._kill()
            return self._process.wait()

    def _kill(self) -> None:
        """Kill the container with all of its processes."""
        for pid in descendants(self._process.pid) if self._process.poll() is None else ():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def _keep(self) -> None:
        """Keep the container as the kubelet does: start it again whenever it ended or its probes failed."""
        while not self._is_ending.is_set():
            self._watch()
            if self._is_ending.is_set():
                return
            self.is_ready = False
            self._terminate(self._spec.grace)
            self._process = self._start()
            self.num_restarts += 1

    def _watch(self) -> None:
        """Watch until its container must be restarted, or the pod ends."""
        if not self._started():
            return
        next_liveness = next_readiness = time.monotonic()
        dead = unready = 0
        while not self._is_ending.is_set() and self._process.poll() is None:
            now = time.monotonic()
            if now >= next_readiness:
                unready = 0 if self._ask(self._spec.readiness) else unready + 1
                next_readiness = now + self._spec.readiness.period
                if unready == 0:
                    self.is_ready = not self._is_ending.is_set()
                elif unready >= self._spec.readiness.failure_threshold:
                    self.is_ready = False
            if now >= next_liveness:
                dead = 0 if self._ask(self._spec.liveness) else dead + 1
                next_liveness = now + self._spec.liveness.period
                if dead >= self._spec.liveness.failure_threshold:
                    return
            self._is_ending.wait(max(0.0, min(next_liveness, next_readiness) - time.monotonic()))

    def _started(self) -> bool:
        """Return whether the startup probe succeeded before its threshold: nothing else is probed until then."""
        for _ in range(self._spec.startup.failure_threshold):
            if self._process.poll() is not None or self._is_ending.is_set():
                return False
            if self._ask(self._spec.startup):
                return True
            self._is_ending.wait(self._spec.startup.period)
        return False

    def _ask(self, probe: Probe) -> bool:
        try:
            return httpx.get(
                self.url + probe.path, timeout=probe.timeout, verify=False
            ).is_success  # nor read certificates
        except httpx.HTTPError:
            return False
