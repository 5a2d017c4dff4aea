"""Requests of mixed routes with one right answer each, and the part of an answer that must equal the idle server's."""

import json
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import httpx

STORIES = (
    "Once upon a time there was a",
    "The king had three daughters, and the youngest was",
    "In a deep forest, far from any road, lived an old woman who",
    "“What will you give me,” said the fox, “if I carry you across the river?”",
    "The wind blew all night, and in the morning the ship",
    "A poor tailor sat by his window and",
)
PER_ANSWER = {"id", "created"}
"""Fields that are new in every answer."""


@dataclass(frozen=True)
class Question:
    kind: str
    path: str
    body: dict[str, Any]
    accept: str = "application/json"
    method: str = "POST"


def questions() -> list[Question]:
    """Return the pool: every kind with every story, lengths and seeds drawn once."""
    draw = random.Random(7)
    pool: list[Question] = []
    for index, story in enumerate(STORIES):
        length = draw.randrange(20, 80)
        greedy = {"prompt": story, "max_tokens": length, "temperature": 0, "logprobs": 3}
        seeded = {"prompt": story, "max_tokens": length, "temperature": 0.9, "top_p": 0.9, "seed": index}
        watched = {**seeded, "attention": {"layers": [0, 5], "heads": "all", "encoding_format": "base64"}}
        chat = {"messages": [{"role": "user", "content": story}], "max_tokens": length, "seed": index}
        heads = {"layers": [index % 6], "heads": "all"}
        pool += [
            Question("completion, greedy", "/v1/completions", greedy),
            Question("completion, seeded", "/v1/completions", seeded),
            Question("completion, streamed", "/v1/completions", {**seeded, "stream": True}),
            Question("completion, attention", "/v1/completions", watched),
            Question("chat", "/v1/chat/completions", chat),
            Question("attention, binary", "/v1/attention", {"input": story, **heads}, "application/vnd.safetensors"),
            Question("attention, JSON", "/v1/attention", {"input": [story, story[::-1]], **heads, "reduce": "mean"}),
            Question("embeddings", "/v1/embeddings", {"input": [story, story.upper()]}),
            Question("tokenize", "/tokenize", {"prompt": story}),
            *looks(story, index),
        ]
    long = " ".join(STORIES)
    pool.append(
        Question("completion, long", "/v1/completions", {"prompt": long * 2, "max_tokens": 40, "temperature": 0})
    )
    pool.append(Question("attention, long", "/v1/attention", {"input": long * 2, "layers": "all", "heads": 0}))
    return pool


def looks(story: str, index: int) -> list[Question]:
    """Return requests that inspect a pass, two of them with an intervention."""
    binary = "application/vnd.safetensors"
    points = ["hook_resid_post", "attn.hook_z", "mlp.hook_post", "attn.hook_pattern"]
    ablation = [{"point": "attn.hook_z", "layer": index % 6, "head": [0, 3], "op": "zero"}]
    changed = {"prompt": story, "max_tokens": 20, "temperature": 0, "interventions": ablation}
    return [
        Question("trace", "/v1/trace", {"input": story, "points": points, "layers": index % 6}, binary),
        Question("next, changed", "/v1/next", {"input": story, "full": True, "interventions": ablation}, binary),
        Question("lens", "/v1/lens", {"input": story, "target": " king"}, binary),
        Question("contributions", "/v1/contributions", {"input": story, "target": " king", "layers": 2}, binary),
        Question("heads", "/v1/heads", {"input": story}, binary),
        Question("completion, changed", "/v1/completions", changed),
    ]


async def ask(client: httpx.AsyncClient, question: Question) -> object:
    """Return the answer without ids, times and other fields that differ between equal requests.

    Raises:
        RuntimeError: a status other than 200, or an incomplete stream.
    """
    headers = {"Accept": question.accept}
    answer = await client.request(question.method, question.path, json=question.body, headers=headers)
    if answer.status_code != 200:
        raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
    return meaning(question, answer.content)


def meaning(question: Question, content: bytes) -> object:
    """Return the part of an answer that must be equal for equal questions: all except ids, times and such fields.

    Raises RuntimeError for an incomplete stream.
    """
    if question.body.get("stream"):
        return joined_streams(content.decode())
    if question.accept != "application/json":
        return content
    body = {key: value for key, value in json.loads(content).items() if key not in PER_ANSWER}
    body.get("usage", {}).pop("prompt_tokens_details", None)  # how much came from the prefix cache
    return body


def joined_streams(text: str) -> dict[int, tuple[str, str | None]]:
    """Return the whole text of each choice and the reason it ended: how they were cut into events, and mixed, may
    differ.
    """
    if not text.rstrip().endswith("data: [DONE]"):
        raise RuntimeError(f"the stream does not end with [DONE] but with {text[-200:]!r}")
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    by_index: dict[int, list[Any]] = defaultdict(list)
    for choice in choices:
        by_index[choice["index"]].append(choice)
    return {
        index: ("".join(choice["text"] for choice in mine), mine[-1]["finish_reason"])
        for index, mine in by_index.items()
    }


def first_difference(expected: object, got: object, path: str = "answer") -> str:
    """Return the path of the first difference between two answers, and both values."""
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        parts = [(f"{path}.{key}", expected[key], got[key]) for key in expected if expected[key] != got[key]]
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        pairs = enumerate(zip(expected, got, strict=True))
        parts = [(f"{path}[{index}]", one, other) for index, (one, other) in pairs if one != other]
    else:
        return f"{path}: expected {expected!r:.200}, got {got!r:.200}"
    where, one, other = parts[0]
    return first_difference(one, other, where)
