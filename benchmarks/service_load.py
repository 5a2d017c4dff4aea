"""Runs clients of pods behind a Service: each request goes to a ready pod by a connection of its own."""

import itertools
import json
import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

import httpx

from benchmarks.pod import Pod

_PAUSE = 0.05
_TIMEOUT = 120.0
_BODY = {"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
_DATA = "data: "
_DONE = "[DONE]"
ANSWERED = "answered"


class Service:
    """The endpoints: pods that are ready, in round robin."""

    def __init__(self) -> None:
        self.pods: list[Pod] = []
        self._turn = itertools.count()

    def add(self, pod: Pod) -> None:
        self.pods.append(pod)

    def endpoint(self) -> str | None:
        """Return the address of a pod that is ready, or None if there is none."""
        ready = [pod for pod in self.pods if pod.is_ready]
        return ready[next(self._turn) % len(ready)].url if ready else None


class ServiceLoad:
    """Clients that send one request after the other, every second one as a stream, until the block ends."""

    def __init__(self, service: Service, clients: int) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()
        self._num_answered = 0
        self._expected: str | None = None
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def take(self) -> Counter[str]:
        """Return what clients saw since the last call, and how often: "answered", an error's status and code, or how
        a connection ended. While no pod is ready they wait.
        """
        with self._lock:
            seen, self._seen = self._seen, Counter()
        return seen

    def wait_for_answers(self, patience: float = 60.0) -> None:
        """Wait until each client may have had two more answers. Raises TimeoutError."""
        wanted = self._num_answered + 2 * len(self._threads)
        end = time.monotonic() + patience
        while self._num_answered < wanted:
            if time.monotonic() > end:
                raise TimeoutError(f"no {2 * len(self._threads)} answers came in {patience} s")
            time.sleep(_PAUSE)

    def _run(self, number: int) -> None:
        for turn in itertools.count(number):
            if self._is_over.is_set():
                return
            url = self._service.endpoint()
            if url is None:
                self._is_over.wait(_PAUSE)
                continue
            outcome = self._ask(url, is_stream=turn % 2 == 1)
            with self._lock:
                self._seen[outcome] += 1
                self._num_answered += outcome == ANSWERED
            if outcome != ANSWERED:
                self._is_over.wait(_PAUSE)

    def _ask(self, url: str, *, is_stream: bool) -> str:
        try:
            # Certificates, which no request here needs, would be read for each: 30 ms of the servers' cores.
            answer = httpx.post(
                f"{url}/v1/completions", json={**_BODY, "stream": is_stream}, timeout=_TIMEOUT, verify=False
            )
        except httpx.HTTPError as error:
            return type(error).__name__
        if not answer.is_success:
            return f"{answer.status_code} {answer.json()['error']['code']}"
        if not is_stream:
            return self._judged([json.loads(answer.text)], is_whole=True)
        data = [line.removeprefix(_DATA) for line in answer.text.splitlines() if line.startswith(_DATA)]
        return self._judged([json.loads(each) for each in data if each != _DONE], is_whole=data[-1:] == [_DONE])

    def _judged(self, events: list[dict[str, object]], *, is_whole: bool) -> str:
        """Return the outcome: all answers must be the first one's text, from the same pod or another, as a stream or
        not.
        """
        text = ""
        for event in events:
            match event:
                case {"error": {"code": code}}:
                    return f"a stream that ended with {code}"
                case {"choices": [{"text": str(piece)}]}:
                    text += piece
        if not is_whole:
            return "a stream without its end"
        with self._lock:
            self._expected = self._expected or text
        return ANSWERED if text == self._expected else "another text"
