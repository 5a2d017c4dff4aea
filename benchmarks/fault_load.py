"""Clients that send requests without pause and record every outcome, for `benchmarks.faults`.

Answers are compared with the server's answers before the fault. `benchmarks.fault_judge` decides which outcomes are
right.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.questions import Question, meaning
from tests.support.breakable_server import ALLOCATES, POISONS, RAISES, STUCK

_OUTCOME_WITHIN = 60.0
"""Seconds after which a client counts as having had no answer."""
_PROMPT = tuple(range(10, 40))
_LONG = tuple(range(5, 485))


@dataclass(frozen=True)
class Outcome:
    """The outcome of one request, as its client got it."""

    seen: str
    """A status, or how the connection ended."""
    code: str = ""
    """The code of the error, if there was one."""

    def __str__(self) -> str:
        return f"{self.seen} {self.code}".strip()


RIGHT = Outcome("200")
DIFFERENT = Outcome("200 but another answer")
SILENCE = Outcome("nothing")
REFUSED = Outcome("connection refused")
ENDED = Outcome("connection ended")
"""The connection ended before an answer began."""
CUT = Outcome("answer cut short")
_EVENT = "200 with error event"


def error(status: int, code: str) -> frozenset[Outcome]:
    """Return the two outcomes of an error: the answer's status, or the last event of a stream that has begun."""
    return frozenset({Outcome(str(status), code), Outcome(_EVENT, code)})


def _ask(path: str, **body: Any) -> Question:
    return Question(path, path, body)


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
PICTURES = _ask("/v1/attention", input=list(_LONG), layers="all", heads="all", encoding_format="base64")
"""A request with an answer larger than a socket's buffer."""
CULPRIT = {
    "raises": _write((*_PROMPT, RAISES), 4),
    "allocates": _write((*_PROMPT, ALLOCATES), 4),
    "poisons": _write((*_PROMPT, POISONS), 4),
    "sticks": _write((*_PROMPT, STUCK), 4),
    "looks": _ask(
        "/v1/trace",
        input=[list(_LONG), list(_LONG)],
        points=["attn.hook_pattern", "attn.hook_attn_scores"],
        encoding_format="base64",
    ),
}


class Load:
    """Some clients, each asking its questions in turn, forever."""

    def __init__(self, url: str, clients: int, questions: Sequence[Question]) -> None:
        self._url = url
        self._questions = questions
        self._right: list[object] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(clients)]
        self.outcomes: Counter[Outcome] = Counter()

    def learn(self) -> None:
        """Record the server's answers without a fault. Raises AssertionError if one is an error."""
        with httpx.Client(timeout=_OUTCOME_WITHIN) as client:
            for question in self._questions:
                end = time.monotonic() + _OUTCOME_WITHIN
                while (found := self._once(client, question))[0] != RIGHT:  # a busy machine may take a step for a hang
                    assert time.monotonic() < end, f"{question}: {found[0]}"
                self._right.append(found[1])

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask nothing more; each last question gets its time."""
        self._is_over.set()
        end = time.monotonic() + _OUTCOME_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self.outcomes[SILENCE] += sum(thread.is_alive() for thread in self._threads)

    def ask_apart(self, question: Question) -> Outcome:
        """Return the outcome of one question from another client."""
        with httpx.Client(timeout=_OUTCOME_WITHIN) as client:
            return self._once(client, question)[0]

    def ask_once_more(self) -> list[str]:
        """Send each question again after the fault. Return the questions with another answer than before."""
        with httpx.Client(timeout=_OUTCOME_WITHIN) as client:
            after = [(each.path, self._compared(client, index)) for index, each in enumerate(self._questions)]
        return [f"after it all, {path} was told: {outcome}" for path, outcome in after if outcome != RIGHT]

    def _run(self, first: int) -> None:
        turn = first
        with httpx.Client(timeout=_OUTCOME_WITHIN) as client:
            while not self._is_over.is_set():
                outcome = self._compared(client, turn % len(self._questions))
                with self._lock:
                    self.outcomes[outcome] += 1
                turn += 1
                if outcome != RIGHT:
                    self._is_over.wait(0.25)  # as a client that backs off a little

    def _compared(self, client: httpx.Client, index: int) -> Outcome:
        outcome, answer = self._once(client, self._questions[index])
        return DIFFERENT if outcome == RIGHT and answer != self._right[index] else outcome

    def _once(self, client: httpx.Client, question: Question) -> tuple[Outcome, object]:
        """Return the client's outcome and the part of a right answer that is always equal."""
        request = client.build_request("POST", self._url + question.path, json=question.body)
        try:
            response = client.send(request, stream=True)
        except httpx.TimeoutException:
            return SILENCE, None
        except httpx.ConnectError:
            return REFUSED, None
        except httpx.TransportError:
            return ENDED, None
        with closing(response):
            try:
                response.read()
            except httpx.TimeoutException:
                return SILENCE, None
            except httpx.TransportError:
                return CUT, None
        if response.status_code != 200:
            return _of_error(response), None
        if question.body.get("stream") and not response.text.endswith("data: [DONE]\n\n"):
            events = [line.removeprefix("data: ") for line in response.text.splitlines() if '"error"' in line]
            return (Outcome(_EVENT, json.loads(events[-1])["error"]["code"]) if events else CUT), None
        return RIGHT, meaning(question, response.content)


def _of_error(response: httpx.Response) -> Outcome:
    seen = str(response.status_code)
    if response.status_code in (429, 503) and "retry-after" not in response.headers:
        seen += " without Retry-After"
    return Outcome(seen, response.json()["error"]["code"])
