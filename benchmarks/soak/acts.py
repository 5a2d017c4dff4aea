"""Actions of the soak's clients: a pool of questions with one right answer each, invalid requests, and behaviours.

Everything is drawn from seeds: two soaks with the same seed send the same requests; only their timing differs.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.questions import STORIES, Question, questions
from tests.support.wire import JSON_HEADERS, json_content

MODEL = "soak"
"""The model's name in requests."""
_BINARY = "application/vnd.safetensors"
Behaviour = Literal["patient", "slow", "leaves early", "leaves midway", "leaves unsent", "wrong"]
WEIGHTS: dict[Behaviour, int] = {
    "patient": 54, "slow": 8, "leaves early": 12, "leaves midway": 8, "leaves unsent": 4, "wrong": 14,
}  # fmt: skip


@dataclass(frozen=True)
class Wrong:
    """A request that must be refused with this status."""

    name: str
    content: bytes
    status: int
    path: str = "/v1/completions"
    method: str = "POST"
    content_type: str = "application/json"
    accept: str = "*/*"

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": self.content_type, "Accept": self.accept}


@dataclass(frozen=True)
class Act:
    """One request and how its client behaves."""

    behaviour: Behaviour
    index: int
    """Index of the question in the pool; or of the wrong request in `wrong_requests`."""
    patience: float
    """From 0 to 1: how late the client disconnects."""
    is_rude: bool
    """True if the client disconnects with a TCP reset."""


def pool() -> list[Question]:
    """Return the questions of the mixed load and of every other route that computes, several choices at once, and a
    tensor large enough for a slow reader to be waited for.
    """
    large = {"input": " ".join(STORIES) * 3, "layers": "all", "heads": "all"}
    more = [one for index, story in enumerate(STORIES) for one in (*_several(story, index), *_inside(story, index))]
    return [*questions(), *more, *_long(), Question("attention, large", "/v1/attention", large, _BINARY)]


def _long() -> list[Question]:
    """Return questions with long answers that fill the cache, so that some sequences are preempted."""
    drawn = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.9, "n": 4}
    bodies = [{**drawn, "prompt": story, "seed": index} for index, story in enumerate(STORIES[:2])]
    return [Question("completion, n, long", "/v1/completions", body) for body in bodies]


def _several(story: str, index: int) -> list[Question]:
    """Return HTTP requests that are several requests of the engine each."""
    drawn = {"max_tokens": 12 + index, "temperature": 0.9, "n": 2, "seed": index, "stop": ","}
    two = {**drawn, "prompt": [story, story[::-1]]}
    chat = {**drawn, "messages": [{"role": "user", "content": story}]}
    return [
        Question("completion, n and prompts", "/v1/completions", two),
        Question("completion, n, streamed", "/v1/completions", {**two, "n": 3, "prompt": story, "stream": True}),
        Question("chat, n", "/v1/chat/completions", chat),
    ]


def _inside(story: str, index: int) -> list[Question]:
    """Return questions about the internals of a pass and about the weights."""
    layer, model = index % 6, f"/v1/models/{MODEL}"
    matrix = ("W_Q", "W_K", "W_V", "W_O", "mlp.W_in", "mlp.W_out")[index]
    return [
        Question("rollout", "/v1/rollout", {"input": [story, story[::-1]], "layers": "all"}, _BINARY),
        Question("flow", "/v1/rollout", {"input": story, "method": "flow"}),
        Question("explain", "/v1/explain", {"input": story, "layer": layer, "head": index}),
        Question("trajectory", "/v1/trajectory", {"input": story}, _BINARY),
        Question("correlations", "/v1/geometry", {"input": story, "point": "hook_resid_post", "layer": layer}),
        Question("circuits", "/v1/circuits", {"layers": layer, "heads": [index, 7]}),
        Question("weights, geometry", f"{model}/geometry?matrix={matrix}&layer={layer}", {}, method="GET"),
        Question("weights, parameters", f"{model}/parameters", {}, method="GET"),
    ]


def acts(seed: int, number: int, num_questions: int) -> Iterator[Act]:
    draw = random.Random(f"{seed}/{number}")
    behaviours, weights = list(WEIGHTS), list(WEIGHTS.values())
    num_wrong = len(wrong_requests())
    while True:
        behaviour = draw.choices(behaviours, weights)[0]
        index = draw.randrange(num_wrong if behaviour == "wrong" else num_questions)
        yield Act(behaviour, index, draw.random() ** 2, draw.random() < 0.5)


def wrong_requests() -> list[Wrong]:
    """Return malformed bodies, wrong fields, over-long prompts, wrong routes, methods and types."""
    prompt = {"prompt": "Once upon a time"}
    looks = Wrong("", b"", 400, "/v1/attention")
    return [
        Wrong("no JSON", b'{"prompt": "Once', 400),
        Wrong("empty body", b"", 400),
        Wrong("a list", b"[1, 2]", 400),
        Wrong("no UTF-8", b'{"prompt": "\xff\xfe"}', 400),
        Wrong("deep nesting", b'{"prompt": ' + b"[" * 10_000, 400),
        Wrong("very many lists", b'{"prompt": [' + b"[]," * 100_000, 413),
        Wrong("NaN", b'{"prompt": "x", "temperature": NaN}', 400),
        Wrong("huge number", b'{"prompt": "x", "max_tokens": 1e400}', 400),
        Wrong("unknown field", json_content({**prompt, "max_token": 5}), 400),
        Wrong("text for a number", json_content({**prompt, "max_tokens": "many"}), 400),
        Wrong("negative temperature", json_content({**prompt, "temperature": -1}), 400),
        Wrong("over-long prompt", json_content({"prompt": "Once upon a time " * 400}), 400),
        Wrong("over-long answer", json_content({**prompt, "max_tokens": 100_000}), 400),
        Wrong("no such token", json_content({"prompt": [1, 10**9]}), 400),
        Wrong("no prompt", b"{}", 400),
        Wrong("no such model", json_content({**prompt, "model": "gpt-17"}), 404),
        Wrong("no such route", json_content(prompt), 404, "/v1/complete"),
        Wrong("wrong method", b"", 405, method="GET"),
        Wrong("text/plain", json_content(prompt), 415, content_type="text/plain"),
        replace(looks, name="no such layer", content=json_content({"input": "x", "layers": 99})),
        replace(looks, name="no such format", content=json_content({"input": "x"}), status=406, accept="image/png"),
        replace(looks, name="no such head", content=json_content({"input": "x", "heads": [0, "one"]})),
    ]


def content_of(question: Question) -> bytes:
    return json_content(question.body) if question.method == "POST" else b""


def headers_of(question: Question) -> dict[str, str]:
    return {**JSON_HEADERS, "Accept": question.accept}
