"""Answers as a server writes them, in JSON and safetensors, for a client to read."""

import json
from typing import Any

import numpy as np
from safetensors.numpy import save

from tests.client.wire_server import Reply

Array = np.ndarray[Any, Any]

TOKENS = ["<s>", "The", " fox"]

Arrays = dict[str, tuple[tuple[str, ...], Array]]


def fields_of(index: int, **more: Any) -> dict[str, Any]:
    return {"object": "look", "index": index, "tokens": TOKENS, "token_ids": [0, 7, 8], "offsets": None, **more}


def described(name: str, axes: tuple[str, ...], array: Array) -> dict[str, Any]:
    about = {"axes": axes, "shape": array.shape, "dtype": array.dtype.name}
    return about | ({"positions": [0, 1, 2], "layer": 0} if name.startswith("blocks.") else {})


def as_safetensors(holder: str, *answers: tuple[dict[str, Any], Arrays]) -> Reply:
    metadata = {"object": "list", "model": "toy", "usage": json.dumps({"prompt_tokens": 3, "total_tokens": 3})}
    tensors: dict[str, Array] = {}
    for fields, arrays in answers:
        about = {name: described(name, *pair) for name, pair in arrays.items()}
        metadata[f"look.{fields['index']}"] = json.dumps({**fields, holder: about})
        tensors |= {f"{fields['index']}/{name}": array for name, (_, array) in arrays.items()}
    return Reply(body=save(tensors, metadata=metadata), headers={"Content-Type": "application/vnd.safetensors"})


def as_json(holder: str, *answers: tuple[dict[str, Any], Arrays]) -> Reply:
    data = [
        {**fields, holder: {name: described(name, *pair) | {"data": listed(pair[1])} for name, pair in arrays.items()}}
        for fields, arrays in answers
    ]
    return Reply(body={"object": "list", "model": "toy", "usage": {"prompt_tokens": 3}, "data": data})


def listed(array: Array) -> Any:
    """Return nested lists with null for each number that is not finite."""
    return json.loads(json.dumps(array.tolist()).replace("-Infinity", "null"))


def draw(*shape: int) -> Array:
    return np.random.default_rng().normal(size=shape).astype(np.float32)


def check_nothing_is_cut(figure: Any) -> None:
    """Assert that all that is drawn is within the picture: savefig cut labels of the parameters."""
    figure.canvas.draw()
    (left, bottom), (right, top) = figure.get_tightbbox().get_points()
    width, height = figure.get_size_inches()
    assert min(left, bottom) >= 0
    assert (right <= width, top <= height) == (True, True)
