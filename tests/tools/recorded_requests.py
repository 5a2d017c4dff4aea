"""The 2,000 requests of `tests.tools.recorder`: made from templates of every route, the same at every call.

Each request has a random number generator of its own, seeded with its group and number, so that a change of one group
leaves the others as they are. A text is sampled with a seed or at temperature 0. A quarter of the requests are invalid:
one field of a valid body is replaced, removed or misspelt (`spoiled`), fields contradict each other (`WRONG` of
`tests.tools.recorded_errors`), or the body is no JSON object.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.tools import recorded_texts as texts
from tests.tools.recorded_errors import DIALECTS, WRONG
from tests.tools.recorded_texts import TIME, Body, Draw, attention, ids, intervention, some, text

KEPT = ("seed", "do_sample")
"""Fields that `spoiled` does not change: without a seed an answer is different each time."""


@dataclass(frozen=True)
class Request:
    """One request to one application."""

    site: str
    path: str
    content: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def posted(site: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Request:
    content_type = {"content-type": "application/json"}
    return Request(site, path, json.dumps(body).encode(), headers=content_type | (headers or {}))


def embedding(draw: Draw) -> Body:
    inputs = draw.choice([text(draw), ids(draw), [text(draw, 1), text(draw, 1)], [ids(draw), ids(draw)]])
    more = {"encoding_format": "base64", "dimensions": 6, "layer": 0, "normalize": False, "truncate": True, "user": "u"}
    more |= {"pooling": draw.choice(["mean", "last", "cls", "none"]), "truncate_prompt_tokens": 5, "priority": 1}
    return {"input": inputs, **some(draw, more, 0.2)}


def prompted_embedding(draw: Draw) -> Body:
    return embedding(draw) | {"input": text(draw, 1), "prompt_name": draw.choice(["query", "document"])}


def ollama_embed(draw: Draw) -> Body:
    return {"model": "org/tiny", "input": draw.choice([text(draw), [text(draw), "a"]]), **some(draw, {"dimensions": 4})}


def tei(draw: Draw) -> Body:
    more = {"truncate": True, "truncation_direction": draw.choice(["Left", "right"]), "normalize": False}
    return {"inputs": draw.choice([text(draw), [text(draw), "a"], ids(draw)]), **some(draw, more)}


def tei_all(draw: Draw) -> Body:
    return {name: value for name, value in tei(draw).items() if name != "normalize"}


def similarity(draw: Draw) -> Body:
    texts = {"source_sentence": text(draw), "sentences": [text(draw) for _ in range(3)]}
    return {"inputs": texts, **some(draw, {"parameters": {"truncate": True}})}


def rerank(draw: Draw) -> Body:
    documents: list[Any] = [text(draw) for _ in range(draw.randint(1, 4))]
    if draw.random() < 0.3:
        documents = [{"text": document} for document in documents]
    more = {"top_n": 2, "return_documents": True, "truncate": True, "max_tokens_per_doc": 9, "use_activation": False}
    return {"query": text(draw, 1), "documents": documents, **some(draw, more)}


def tei_rerank(draw: Draw) -> Body:
    more = {"raw_scores": True, "return_text": True, "truncate": True, "truncation_direction": "left"}
    return {"query": text(draw, 1), "texts": [text(draw) for _ in range(3)], **some(draw, more)}


def score(draw: Draw) -> Body:
    first, second = draw.choice([("text_1", "text_2"), ("queries", "documents"), ("queries", "items")])
    more = {"use_activation": False, "truncate": True, "truncate_prompt_tokens": 20}
    return {first: text(draw, 1), second: [text(draw), text(draw, 1)], **some(draw, more)}


def classify(draw: Draw) -> Body:
    more = {"use_activation": False, "truncate": True, "add_special_tokens": False, "explain": True}
    return {"input": draw.choice([text(draw), [text(draw), "a"], ids(draw)]), **some(draw, more, 0.25)}


def predict(draw: Draw) -> Body:
    inputs = draw.choice([text(draw), [[text(draw)], ["a", "b"]], [[text(draw, 1)], [text(draw, 1)]]])
    parameters = {"parameters": {"function_to_apply": draw.choice(["sigmoid", "none"]), "top_k": 2}}
    return {"inputs": inputs, **some(draw, {"raw_scores": True, "truncate": True, **parameters})}


def decisions(draw: Draw) -> Body:
    choices = [{"value": "x", "description": "d"}, {"value": True}]
    questions = [
        {"type": "predicate", "instructions": text(draw, 1), "name": "first"},
        {"type": "choice", "instructions": [{"type": "input_text", "text": "Which?"}], "choices": choices},
        {"type": "score", "instructions": "How cold?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    said = [{"role": "user", "content": [{"type": "input_json", "data": {"a": [1, None]}}]}]
    asked = draw.sample(questions, draw.randint(1, 3))
    return {"input": draw.choice([text(draw), said]), "questions": asked, **some(draw, {"explain": True}, 0.2)}


def systemone(draw: Draw) -> Body:
    questions = {
        "cold": {"type": "noul", "instructions": "Is it cold?", "criteria": {"true": "below 5", "false": "else"}},
        "kind": {"type": "choice", "criteria": {"a": "first", "b": {"x": 1}}},
        "rank": {"type": "score", "criteria": ["low", "mid", "high"]},
    }
    asked = dict(draw.sample(sorted(questions.items()), draw.randint(1, 3)))
    return {"state": draw.choice([text(draw), {"a": 1}]), "questions": asked, **some(draw, {"instructions": "Judge."})}


def tokenize(draw: Draw) -> Body:
    told = some(draw, {"return_token_strs": True, "return_offsets": True})
    if draw.random() < 0.5:
        return {"prompt": text(draw), **told, **some(draw, {"add_special_tokens": False})}
    tool = {"tools": [{"type": "function", "function": TIME}]}
    return {"messages": texts.turns(draw), **told, **some(draw, {**tool, "add_generation_prompt": False})}


def detokenize(draw: Draw) -> Body:
    return {"tokens": ids(draw, 20), **some(draw, {"skip_special_tokens": False})}


def count_tokens(draw: Draw) -> Body:
    return texts.anthropic_asked(draw)


def read(draw: Draw) -> Body:
    """Return the input of an inspection request."""
    body = {"input": draw.choice([text(draw, 1), ids(draw)])}
    more = {"completion": "Yes.", "interventions": [intervention(draw)], "encoding_format": "base64"}
    return body | some(draw, more, 0.15)


def inspected(*drawn: Callable[[Draw], Body]) -> Callable[[Draw], Body]:
    """Return a maker of inspection requests with fields that one of these functions draws."""
    return lambda draw: read(draw) | draw.choice(drawn)(draw)


ATTENTION = inspected(
    attention,
    lambda draw: {"layers": 0, "reduce": "mean", "query_positions": "-2:", "dtype": "uint8"},
    lambda draw: {"key_positions": [0, 1], "orientation": "columns"},
    lambda draw: {"resize": 4, "layers": [1]},
)
TRACE = inspected(
    lambda draw: {"points": ["blocks.0.hook_resid_pre", "logits"], "positions": [-1]},
    lambda draw: {"points": ["attn.hook_pattern", "attn.hook_z"], "layers": 1, "heads": [0], "dtype": "float16"},
    lambda draw: {"points": draw.sample(["hook_embed", "ln_final.hook_out", "blocks.1.hook_mlp_out"], 2)},
)
NEXT = inspected(
    lambda draw: {"temperatures": [0, 0.5, 2], "top_k": 3},
    lambda draw: {"num_tokens": 3, "top_k": 2},
    lambda draw: {"position": -1, "full": True, "encoding_format": "base64"},
    lambda draw: {"explain": {"by": "word", "versus": "a"}, "top_k": 1},
)
LENS = inspected(lambda draw: {"top_k": 2, "positions": [-1], **some(draw, {"target": 9, "layers": [0, 1]})})
EXPLAIN = inspected(lambda draw: {"layer": draw.randint(0, 1), "head": draw.randint(0, 3), "query_position": -1})
CONTRIBUTIONS = inspected(
    lambda draw: {"layers": 0, "heads": [0], "query_positions": [-1], "vectors": True},
    lambda draw: {"target": 9, **some(draw, {"versus": 12}), "query_positions": [-1]},
    lambda draw: {"vectors": True, "sum_over": ["key"], "query_positions": [-1]},
)
TRAJECTORY = inspected(lambda draw: some(draw, {"positions": [-1], "compare_positions": [0, 1]}))
ROLLOUT = inspected(lambda draw: {"method": draw.choice(["rollout", "flow"]), "query_positions": [-1]})
GEOMETRY = inspected(lambda draw: {"point": "hook_resid_post", "layer": 0, **some(draw, {"num_strongest": 3})})


def heads(draw: Draw) -> Body:
    if draw.random() < 0.3:
        return {"repeat_length": 6, "num_sequences": 2}
    return read(draw) | some(draw, {"layers": [0], "heads": [1, 2]})


def circuits(draw: Draw) -> Body:
    return some(draw, {"layers": "all", "heads": [0, 1], "compose": True, "encoding_format": "base64"}, 0.5)


VALID: tuple[tuple[int, str, str, Callable[[Draw], Body]], ...] = (
    (100, "chat", "/v1/completions", texts.completion),
    (25, "exact", "/v1/completions", texts.completion),
    (30, "bart", "/v1/completions", texts.two_texts),
    (20, "writer", "/v1/completions", texts.completion),
    (95, "chat", "/v1/chat/completions", texts.chat),
    (30, "exact", "/v1/chat/completions", texts.chat),
    (60, "chat", "/v1/chat/completions", texts.chat_with_tools),
    (40, "caller", "/v1/chat/completions", texts.chat_with_tools),
    (20, "writer", "/v1/chat/completions", texts.scripted_chat),
    (40, "thinker", "/v1/chat/completions", texts.thinking),
    (60, "chat", "/v1/responses", texts.responses),
    (25, "caller", "/v1/responses", texts.responses),
    (20, "writer", "/v1/responses", texts.responses),
    (60, "chat", "/v1/messages", texts.messages),
    (25, "caller", "/v1/messages", texts.messages),
    (20, "writer", "/v1/messages", texts.messages),
    (20, "chat", "/v1/messages/count_tokens", count_tokens),
    (45, "chat", "/api/chat", texts.ollama_chat),
    (20, "caller", "/api/chat", texts.ollama_chat),
    (40, "chat", "/api/generate", texts.ollama_generate),
    (10, "writer", "/api/generate", texts.ollama_generate),
    (25, "exact", "/generate", texts.tgi_whole),
    (15, "exact", "/generate_stream", texts.tgi),
    (8, "bare", "/", texts.tgi_whole),
    (25, "chat", "/v1/embeddings", embedding),
    (25, "bert", "/v1/embeddings", embedding),
    (10, "embed", "/v1/embeddings", prompted_embedding),
    (8, "embed", "/api/embed", ollama_embed),
    (12, "embed", "/embed", tei),
    (8, "bert", "/embed_all", tei_all),
    (8, "bert", "/embed_sparse", tei_all),
    (8, "embed", "/similarity", similarity),
    (6, "embed", "/", tei),
    (20, "ranks", "/v1/rerank", rerank),
    (8, "ranks", "/v2/rerank", rerank),
    (10, "ranks", "/rerank", tei_rerank),
    (6, "embed", "/rerank", rerank),
    (12, "ranks", "/v1/score", score),
    (6, "embed", "/score", score),
    (14, "labels", "/v1/classify", classify),
    (6, "labels", "/classify", classify),
    (12, "labels", "/predict", predict),
    (20, "exact", "/v1/decisions", decisions),
    (14, "chat", "/v1/systemone", systemone),
    (20, "chat", "/tokenize", tokenize),
    (10, "bert", "/tokenize", tokenize),
    (12, "chat", "/detokenize", detokenize),
    (30, "exact", "/v1/attention", ATTENTION),
    (10, "chat", "/v1/attention", ATTENTION),
    (20, "exact", "/v1/trace", TRACE),
    (20, "exact", "/v1/next", NEXT),
    (12, "exact", "/v1/lens", LENS),
    (10, "exact", "/v1/explain", EXPLAIN),
    (16, "exact", "/v1/contributions", CONTRIBUTIONS),
    (8, "exact", "/v1/trajectory", TRAJECTORY),
    (10, "exact", "/v1/heads", heads),
    (10, "exact", "/v1/rollout", ROLLOUT),
    (8, "exact", "/v1/geometry", GEOMETRY),
    (5, "exact", "/v1/circuits", circuits),
)
"""Groups of valid requests: their number, the application, the path and the maker of bodies."""
SEEN = (
    "/health", "/health/live", "/health/ready", "/version", "/api/version", "/v1/models", "/v1/models/org/tiny",
    "/v1/models/other", "/v1/capabilities", "/api/tags", "/api/ps", "/info", "/v1/models/org/tiny/parameters",
    "/v1/models/org/tiny/weights", "/v1/models/org/tiny/weights/blocks.0.attn.W_Q?head=0&rows=0:3",
    "/v1/models/org/tiny/weights/W_E?rows=0:2&columns=0:4", "/v1/models/org/tiny/weights/nothing",
    "/v1/models/org/tiny/geometry?matrix=W_E&pairs=8&seed=1", "/v1/models/org/tiny/geometry?matrix=x&pairs=-1",
    "/nowhere", "/v1/chat/completions",
)  # fmt: skip
"""Paths that are read with GET, of three applications."""


def paths_of(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside an object, except the fields that make answers repeatable."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        if key not in KEPT:
            yield (*above, key)
            yield from paths_of(inner, (*above, key))


def wrong_values(value: Any) -> list[Any]:
    """Return values that a field with this value hardly accepts."""
    if isinstance(value, bool):
        return ["true", 1, [], None]
    if isinstance(value, int | float):
        return ["7", -7, 0, 10**10, 2.5, True, None, [1], {}]
    if isinstance(value, str):
        return [5, "", None, ["x"], {"a": 1}, "\ud800", "x" * 1100, True]
    if isinstance(value, list):
        return ["x", [], {}, [None], [{}], [[]], 7, value * 20]
    return ["x", [], {}, 7, None]


def spoiled(draw: Draw, body: Body) -> Body:
    """Return the body with one field replaced, removed, misspelt or added."""
    path = draw.choice(list(paths_of(body)))
    copy: Body = json.loads(json.dumps(body))
    holder: Any = copy
    for key in path[:-1]:
        holder = holder[key]
    last, kind = path[-1], draw.random()
    if kind < 0.65:
        holder[last] = draw.choice(wrong_values(holder[last]))
    elif kind < 0.8:
        del holder[last]
    elif isinstance(holder, dict):
        holder[draw.choice([f"{last}s", "unknown_field", "x" * 300])] = holder.pop(last) if kind < 0.9 else 1
    else:
        holder.append(draw.choice([None, {}, "x", -1]))
    return copy


def group(name: str, count: int, make: Callable[[Draw, int], Request]) -> list[Request]:
    """Return `count` requests, each made with a generator of its own."""
    return [make(random.Random(f"{name} {number}"), number) for number in range(count)]


def valid_requests() -> list[Request]:
    """Return the requests of `VALID`."""

    def body_of(site: str, path: str, make: Callable[[Draw], Body]) -> Callable[[Draw, int], Request]:
        return lambda draw, _: posted(site, path, make(draw))

    return [
        request
        for count, site, path, make in VALID
        for request in group(f"{site} {path} {make.__name__}", count, body_of(site, path, make))
    ]


def spoiled_requests(count: int) -> list[Request]:
    """Return bodies of all groups of `VALID` in turn, each with one wrong field."""

    def make(draw: Draw, number: int) -> Request:
        _, site, path, body = VALID[number % len(VALID)]
        return posted(site, path, spoiled(draw, body(draw)))

    return group("spoiled", count, make)


def wrong_requests() -> list[Request]:
    """Return the requests of `WRONG`: fields that contradict each other, or the model."""
    return [posted(site, path, base | change) for site, path, base, *changes in WRONG for change in changes]


def unreadable_requests() -> list[Request]:
    """Return bodies that are no JSON objects, unknown models, wrong keys and wrong methods, for each dialect."""
    made = []
    json_header = {"content-type": "application/json"}
    for path in DIALECTS:
        for content in (b"", b"[]", b'{"a": 1', b'{"a": NaN}'):
            made.append(Request("writer", path, content, headers=json_header))
        made.append(posted("writer", path, {**DIALECTS[path], "model": "other"}))
        made.append(posted("guarded", path, DIALECTS[path]))
        made.append(posted("guarded", path, DIALECTS[path], {"authorization": "Bearer wrong"}))
        made.append(posted("guarded", path, DIALECTS[path], {"x-api-key": "secret"}))
        made.append(Request("writer", path, method="PUT"))
    return made


def all_requests(total: int = 2000) -> list[Request]:
    """Return the requests: valid ones, GET requests, and invalid ones."""
    seen = [Request(site, path, method="GET") for site in ("chat", "embed", "bart") for path in SEEN]
    made = [*valid_requests(), *seen, *wrong_requests(), *unreadable_requests()]
    made += spoiled_requests(total - len(made))
    random.Random(0).shuffle(made)
    return made
