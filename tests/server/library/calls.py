"""A call of every method of the client, to compare `LLM` with a server, and a comparison to the last bit."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from lightwell_client import Client, LightwellError, PageView

TEXT = "The fox and the crow met in a wood."
GREEDY = {"temperature": 0, "max_tokens": 6}
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "attention": ((TEXT,), {"layers": 0}),
    "capabilities": ((), {}),
    "classify": ((TEXT,), {}),
    "circuits": ((), {"layers": 0}),
    "contributions": ((TEXT,), {"target": " a"}),
    "correlations": ((TEXT, "blocks.1.mlp.hook_post"), {"units": [0, 1, 2]}),
    "decisions": ((TEXT, [{"type": "predicate", "name": "fox", "instructions": "It is a fox."}]), {}),
    "detokenize": (([5, 6, 7],), {}),
    "embed": (([TEXT, "A wolf."],), {}),
    "explain": ((TEXT, 0, 1), {}),
    "geometry": (("W_E",), {}),
    "heads": ((TEXT,), {}),
    "health": ((), {}),
    "load_lora": (("tuned", "tuned"), {}),
    "lens": ((TEXT,), {"target": " a"}),
    "models": ((), {}),
    "next": ((TEXT,), {"temperatures": [0.5, 1.0]}),
    "parameters": ((), {}),
    "rerank": ((TEXT, ["A fox.", "A wolf.", "A crow."]), {}),
    "rollout": ((TEXT,), {}),
    "score": ((TEXT, ["A fox.", "A wolf."]), {}),
    "tokenize": ((TEXT,), {}),
    "trace": ((TEXT, ["hook_resid_post", "logits"]), {}),
    "trajectory": ((TEXT,), {}),
    "unload_lora": (("tuned",), {}),
    "version": ((), {}),
    "weight_names": ((), {}),
    "weights": (("W_Q",), {"layer": 0, "head": 1}),
}
"""Arguments for each method with an answer that is compared as it is."""


def one_answer(found: Any) -> Any:
    """Return the only answer of `generate` or `chat`, without the prompt's text, which a server's answer lacks."""
    (answer,) = found if isinstance(found, list) else [found]
    return answer.model_copy(update={"prompt": None})


def answers_of(view: PageView) -> Any:
    """Return the routes' answers in the file of a view of the page."""
    _, _, filling = view.html.partition('{"root":')
    return json.JSONDecoder().raw_decode('{"root":' + filling)[0]["answers"]


MESSAGES = [{"role": "user", "content": "Tell a tale."}]
SAMPLED = {"temperature": 1.0, "seed": 7, "max_tokens": 6, "prompt_logprobs": 1, "return_token_ids": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
ASKED: dict[str, Callable[[Client], Any]] = {
    "generate": lambda asked: one_answer(asked.generate(TEXT, logprobs=2, **SAMPLED)),
    "stream": lambda asked: list(asked.stream(TEXT, logprobs=2, **SAMPLED)),
    "chat": lambda asked: one_answer(asked.chat(MESSAGES, logprobs=True, top_logprobs=2, **SAMPLED)),
    "chat_stream": lambda asked: list(asked.chat_stream(MESSAGES, logprobs=True, top_logprobs=2, **SAMPLED)),
    "parse": lambda asked: asked.parse(MESSAGES, SCHEMA, temperature=0, max_tokens=20),
    "show": lambda asked: answers_of(asked.show("attention", TEXT)),
}
"""Calls of the methods that differ between `LLM` and the client; they return the part to compare."""


def outcome(asked: Client, method: str) -> Any:
    """Return the answer of a method, or the error with which the model's kind refuses it."""
    try:
        if method in ASKED:
            return ASKED[method](asked)
        positional, named = CALLS[method]
        return getattr(asked, method)(*positional, **named)
    except (LightwellError, ValueError) as error:
        return type(error).__name__, getattr(error, "status", None), getattr(error, "message", str(error))


def same(one: Any, other: Any) -> bool:
    """Return whether two answers are equal to the last bit, times and ids aside."""
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        names = one.keys() - {"id", "created", "request_id"}
        return names == other.keys() - {"id", "created", "request_id"} and all(same(one[k], other[k]) for k in names)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dict__") or hasattr(type(one), "__slots__"):
        return type(one) is type(other) and same(fields_of(one), fields_of(other))
    return bool(one == other)


def fields_of(value: Any) -> dict[str, Any]:
    named = dict(getattr(value, "__dict__", {})) | dict(getattr(value, "model_extra", None) or {})
    return named | {name: getattr(value, name) for name in getattr(type(value), "__slots__", ()) if name[0] != "_"}
