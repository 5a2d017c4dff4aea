"""A view of the server's page as one file, with its answers: for display in a notebook, and for saving.

It is pure: `steps` yields the calls to send and is sent their answers. The server lists the requests of a view; this
module fills in the text and the chosen places.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from lightwell_client._calls import capabilities_path, check_names
from lightwell_client._exceptions import ApiError
from lightwell_client._options import ModelOptions
from lightwell_client._signatures import Argument
from lightwell_client._wire import JSON, SAFETENSORS, Call

_PLACE, _EMPTY = 'id="saved">', "null"
"""The mark in the server's file after which the answers are written, and its original content."""
_MOST_POSITIONS = 32
"""Positions that the lens shows at once."""
_SANDBOX = "allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"


class ShowOptions(ModelOptions, total=False):
    """The options of `show`."""

    layer: Annotated[int | Sequence[int], Argument("The layer, or several: the first is shown, all can be chosen.", 0)]
    head: Annotated[int | Sequence[int], Argument("The head, or several, as layers.", 0)]
    query: Annotated[int, Argument("The position of the token that looks; negative from the end.", -1)]
    key: Annotated[int, Argument("The position of the token that is looked at; negative from the end.", 0)]
    height: Annotated[int, Argument("The height of the frame in a notebook, in CSS pixels.", 720)]


@dataclass(frozen=True, slots=True)
class PageView:
    """A view of the page with its answers. A notebook shows it, without a server and without a network; `save` writes
    it as a file, which any browser opens.
    """

    view: str
    """The view's name, as in the page's address."""
    html: str
    """The whole file."""
    height: int
    """The height of the frame in a notebook, in CSS pixels."""

    def save(self, path: str | Path) -> None:
        """Write the file."""
        Path(path).write_text(self.html, encoding="utf-8", newline="\n")

    def __repr__(self) -> str:
        return f"PageView({self.view!r}, {len(self.html) // 1000} kB)"

    def _repr_html_(self) -> str:
        """Return a frame that holds the file itself: the browser may be far from the server, and the page around it is
        kept apart from the file's script.
        """
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="{_SANDBOX}" '
            f'title="Lightwell: {html.escape(self.view)}" '
            f'style="width:100%;height:{self.height}px;border:1px solid #8884"></iframe>'
        )


def steps(
    root: str, model: str | None, view: str, text: str, options: Mapping[str, Any]
) -> Generator[Call[bytes] | PageView, bytes, None]:
    """Yield the calls that fill the file, each to be sent its answer or thrown its ApiError, and then the file.

    Raises:
        ApiError: the server rejects a required request of the view.
        TypeError: an option that `show` does not have, or an input that is no text.
        ValueError: the model is an encoder-decoder; its views need two texts.
    """
    check_names(options, ShowOptions)
    if not isinstance(text, str):
        raise TypeError(f"input is {text!r}; a text is accepted")
    sent = {name: options[name] for name in ("timeout", "extra_headers") if name in options}
    model = options.get("model", model)

    def ask(route: str, body: Any = None, accept: str = JSON) -> Call[bytes]:
        path = capabilities_path(model) if route == "v1/capabilities" else f"/{route}"
        if body and model is not None:  # the file's own requests name no model
            body = {**body, "model": model}
        return Call("POST" if body else "GET", path, lambda answer: answer.content, body, accept, sent)

    answers: list[dict[str, Any]] = []

    def keep(route: str, body: Any, accept: str, content: bytes) -> None:
        is_binary = accept == SAFETENSORS
        held = {"data": base64.b64encode(content).decode()} if is_binary else {"text": content.decode()}
        answers.append({"route": route, "body": body, "accept": accept, **held})

    wanted = json.loads((yield ask(f"web/saved/{view}.json")))["requests"]
    page = (yield ask(f"web/saved/{view}.html", accept="text/html")).decode()
    known = []
    for route, body in (
        ("v1/capabilities", None),
        ("tokenize", {"prompt": text, "return_token_strs": True, "return_offsets": True}),
    ):
        known.append((yield ask(route, body)))
        keep(route, body, JSON, known[-1])
    capabilities, tokens = map(json.loads, known)
    if capabilities["kind"] == "encoder-decoder":
        raise ValueError("show() takes one text; of an encoder-decoder, save a view on the page itself")
    guess = None
    for place in _places(capabilities, len(tokens["tokens"]), options):
        for request in wanted:
            body = _filled(request["body"], {**place, "text": text, "guess": guess})
            accept = JSON if request.get("accept") == "json" else SAFETENSORS
            if any(body == kept["body"] and request["route"] == kept["route"] for kept in answers):
                continue
            try:
                content = yield ask(request["route"], body, accept)
            except ApiError:
                if not request.get("optional"):
                    raise
                continue
            keep(request["route"], body, accept, content)
            if request["route"] == "v1/next" and accept == JSON:
                guess = json.loads(content)["data"][0]["temperatures"][0]["tokens"][0]["token_id"]
    first = {name: _listed(options.get(name, 0))[0] for name in ("layer", "head")}
    chosen = {"view": view, "text": text, **first, "query": options.get("query", -1), "key": options.get("key", 0)}
    shown = {"root": f"{root}/", "hash": f"#{urlencode(chosen)}", "at": datetime.now(UTC).isoformat()}
    filling = json.dumps({**shown, "answers": answers, "states": {}}).replace("<", "\\u003c")
    yield PageView(view, page.replace(_PLACE + _EMPTY, _PLACE + filling), options.get("height", 720))


def _places(capabilities: Mapping[str, Any], count: int, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what `$` and a name stand for in a request, for each chosen layer and head."""
    part = capabilities["attention"]["parts"][0]
    stack = capabilities["stacks"][part]
    query, key = options.get("query", -1), options.get("key", 0)
    position = _within(query, count)
    window = range(max(0, position + 1 - _MOST_POSITIONS), position + 1) if count > _MOST_POSITIONS else range(count)
    for layer, head in product(_listed(options.get("layer", 0)), _listed(options.get("head", 0))):
        asked = _within(layer, stack["num_layers"])
        yield {
            "part": part,
            "layer": min(stack["attention_layers"], key=lambda own: (abs(own - asked), own)),
            "head": _within(head, stack["num_heads"]),
            "query": query if query == -1 else max(query, -count) if query < 0 else min(query, count - 1),
            "position": position,
            "key": _within(key, count),
            "pair": list(dict.fromkeys((position, _within(key, count)))),
            "window": list(window),
        }


def _listed(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else [int(one) for one in value]


def _within(place: int, count: int) -> int:
    """Return a position that exists, of one that may count from the end or be too large."""
    return max(0, min(count - 1, count + place if place < 0 else place))


def _filled(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a request's field with the values for what `$` marks."""
    if isinstance(part, dict):
        return {name: _filled(inner, values) for name, inner in part.items()}
    if isinstance(part, list):
        return [_filled(inner, values) for inner in part]
    return values[part[1:]] if isinstance(part, str) and part.startswith("$") else part
