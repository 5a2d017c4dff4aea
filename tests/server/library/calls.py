"""A call of every method of the client, for the comparison of `LLM` with a server, and the comparison to the last bit."""

from typing import Any

import numpy as np

TEXT = "The fox and the crow met in a wood."
GREEDY = {"temperature": 0, "max_tokens": 6}
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "attention": ((TEXT,), {"layers": 0}),
    "capabilities": ((), {}),
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
    "lens": ((TEXT,), {"target": " a"}),
    "models": ((), {}),
    "next": ((TEXT,), {"temperatures": [0.5, 1.0]}),
    "parameters": ((), {}),
    "rollout": ((TEXT,), {}),
    "tokenize": ((TEXT,), {}),
    "trace": ((TEXT, ["hook_resid_post", "logits"]), {}),
    "trajectory": ((TEXT,), {}),
    "version": ((), {}),
    "weight_names": ((), {}),
    "weights": (("W_Q",), {"layer": 0, "head": 1}),
}
"""Arguments for each method with an answer that is compared as it is."""
COMPARED_APART = {"generate", "stream", "chat", "chat_stream", "parse"}
OF_OTHER_MODELS = {"classify", "rerank", "score", "load_lora", "unload_lora"}
ABOUT_ITSELF = {"close", "show"}


def same(one: Any, other: Any) -> bool:
    """Return whether two answers are equal to the last bit, times and ids aside."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
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
