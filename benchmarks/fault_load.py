"""Clients that ask a server without pause and note every outcome, for `benchmarks.faults`.

An outcome is what a client was told: a status with the error's code, a stream's error event, or a connection that
ended. Answers are compared with those that the server gave before anything happened.
"""

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.breakable_server import ALLOCATES, POISONS, RAISES

_OUTCOME_WITHIN = 60.0
"""Seconds after which a client counts as told nothing."""
_JSON = {"content-type": "application/json"}
_PROMPT = tuple(range(10, 40))
_LONG = tuple(range(5, 485))


@dataclass(frozen=True)
class Question:
    """One request."""

    path: str
    body: str
    """JSON."""
    is_streamed: bool


def _ask(path: str, **body: Any) -> Question:
    return Question(path, json.dumps(body), bool(body.get("stream")))


def _write(prompt: Sequence[int], max_tokens: int, **options: Any) -> Question:
    options |= {"temperature": 0, "ignore_eos": True}
    return _ask("/v1/completions", prompt=list(prompt), max_tokens=max_tokens, **options)


DECODE = (_write(_PROMPT, 80, stream=True), _write(_PROMPT[3:], 60, logprobs=2))
PREFILL = (_write(_LONG, 1), _write(_LONG[7:], 2, prompt_logprobs=1))
LOOK = (
    _ask("/v1/attention", input=list(_LONG[:200]), layers=[0, 5], heads="all", dtype="uint8", encoding_format="base64"),
    _ask("/v1/trace", input=list(_PROMPT), points=["hook_resid_post", "attn.hook_z"], encoding_format="base64"),
    _ask("/v1/embeddings", input=list(_LONG[:100])),
)
EVERYTHING = DECODE + PREFILL + LOOK
CULPRIT = {
    "raises": _write((*_PROMPT, RAISES), 4),
    "allocates": _write((*_PROMPT, ALLOCATES), 4),
    "poisons": _write((*_PROMPT, POISONS), 4),
    "looks": _ask("/v1/attention", input=[list(_LONG)] * 4, layers="all", heads="all", dtype="uint8"),
}


class Load:
    """Some clients, each asking its questions in turn, forever."""

    def __init__(self, url: str, clients: int, questions: Sequence[Question]) -> None:
        self._url = url
        self._questions = questions
        self._right: dict[Question, str] = {}
        self._outcomes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(clients if questions else 0)
        ]
        self.num_without_outcome = 0

    def learn(self) -> None:
        """What the server answers while nothing is wrong. Raises AssertionError when it does not answer well."""
        with httpx.Client(timeout=_OUTCOME_WITHIN) as client:
            for question in self._questions:
                end = time.monotonic() + _OUTCOME_WITHIN
                outcome = ""
                while outcome != "200":  # a busy machine may take a first step for a hung worker
                    assert time.monotonic() < end, f"{question}: {outcome}"
                    outcome, self._right[question] = self._once(client, question)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask nothing more; each last question gets its time."""
        self._is_over.set()
        end = time.monotonic() + _OUTCOME_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self.num_without_outcome = sum(thread.is_alive() for thread in self._threads) + self._outcomes["nothing"]

    def ask_apart(self, question: Question) -> str:
        """The outcome of one question of another client."""
        with httpx.Client(timeout=_OUTCOME_WITHIN) as client:
            return self._once(client, question)[0]

    def seen(self) -> str:
        """Every outcome with its number, the most frequent first."""
        return ", ".join(f"{count} x {outcome}" for outcome, count in self._outcomes.most_common() if count)

    def problems(self) -> list[str]:
        return ["an answer was not what it is without the fault"] if self._outcomes["200 but another answer"] else []

    def _run(self, first: int) -> None:
        turn = first
        with httpx.Client(timeout=_OUTCOME_WITHIN) as client:
            while not self._is_over.is_set():
                question = self._questions[turn % len(self._questions)]
                outcome, answer = self._once(client, question)
                if outcome == "200" and answer != self._right[question]:
                    outcome = "200 but another answer"
                with self._lock:
                    self._outcomes[outcome] += 1
                turn += 1
                if outcome != "200":
                    self._is_over.wait(0.25)  # as a client that backs off a little

    def _once(self, client: httpx.Client, question: Question) -> tuple[str, str]:
        """What the client was told, and a digest of the answer."""
        try:
            response = client.post(self._url + question.path, content=question.body, headers=_JSON)
        except httpx.TimeoutException:
            return "nothing", ""
        except httpx.TransportError:
            return "connection ended", ""
        if response.status_code != 200:
            return f"{response.status_code} {response.json()['error']['code']}", ""
        return _of_stream(response.text) if question.is_streamed else ("200", _digest(response.json()))


def _of_stream(text: str) -> tuple[str, str]:
    """A stream that was begun ends with [DONE], or with an error event that says why not."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if events and events[-1] == "[DONE]":
        return "200", _digest({"choices": [json.loads(event)["choices"] for event in events[:-1]]})
    with_error = [json.loads(event)["error"]["code"] for event in events if '"error"' in event]
    return (f"200 with error event {with_error[-1]}" if with_error else "stream cut short"), ""


def _digest(body: dict[str, Any]) -> str:
    kept = body.get("choices", body.get("data"))
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Books:
    """What the server has counted, once nothing is in flight."""

    num_unaccounted: int
    num_restarts: int


def books(url: str) -> Books:
    """Of an idle server. Ends may take a moment to be counted: it is asked until the sums agree, for a few seconds."""
    end = time.monotonic() + 5.0
    while True:
        counted = _counters(httpx.get(f"{url}/metrics").text)
        ended = counted["lightwell_request_success_total"] + counted["lightwell_request_failed_total"]
        missing = int(counted["lightwell_requests_submitted_total"] - ended)
        if not missing or time.monotonic() > end:
            return Books(abs(missing), int(counted["lightwell_worker_restarts_total"]))
        time.sleep(0.05)


def _counters(text: str) -> Counter[str]:
    """Each metric's values over all its labels, added up."""
    sums: Counter[str] = Counter()
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
            sums[name] += value  # type: ignore[assignment]  # typeshed counts in integers
    return sums
