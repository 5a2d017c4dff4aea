"""Builds every method of the client as a Call: the request, and the parser of its answer. It is pure; both clients
use it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import TypeAdapter, ValidationError

from lightwell_client._arrays import encoded, require_numpy
from lightwell_client._attention import AttentionResult
from lightwell_client._attention_wire import parse_attention
from lightwell_client._embeddings import Embeddings, parse_embeddings
from lightwell_client._exceptions import InvalidResponse
from lightwell_client._options import (
    AttentionOptions,
    ChatOptions,
    DetokenizeOptions,
    EmbeddingOptions,
    GenerateOptions,
    Message,
    ModelOptions,
    Options,
    Prompt,
    TokenizeOptions,
)
from lightwell_client._reasons import ChatReasonsOptions
from lightwell_client._result import Result
from lightwell_client._results import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    Health,
    Model,
    Tokens,
)
from lightwell_client._wire import EVENT_STREAM, JSON, SAFETENSORS, Answer, Call, plain

R = TypeVar("R", bound=Result)
T = TypeVar("T")

HANDLED_HERE = ("timeout", "extra_body", "extra_headers", "include_usage")


def generate(model: str | None, prompt: Prompt, options: Mapping[str, Any]) -> Call[Completion]:
    body = body_of({"model": model, "prompt": prompt}, options, GenerateOptions)
    return Call("POST", "/v1/completions", reader_of(Completion), body, options=options)


def stream(model: str | None, prompt: Prompt, options: Mapping[str, Any]) -> Call[CompletionChunk]:
    body = body_of({"model": model, "prompt": prompt}, options, GenerateOptions) | _streaming(options)
    return Call("POST", "/v1/completions", _event_reader(CompletionChunk), body, EVENT_STREAM, options)


def chat(model: str | None, messages: str | Sequence[Message], options: Mapping[str, Any]) -> Call[ChatCompletion]:
    body = body_of({"model": model, "messages": as_messages(messages)}, options, ChatOptions)
    return Call("POST", "/v1/chat/completions", reader_of(ChatCompletion), body, options=options)


def chat_stream(model: str | None, messages: str | Sequence[Message], options: Mapping[str, Any]) -> Call[ChatChunk]:
    body = body_of({"model": model, "messages": as_messages(messages)}, options, ChatOptions) | _streaming(options)
    return Call("POST", "/v1/chat/completions", _event_reader(ChatChunk), body, EVENT_STREAM, options)


def attention(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[list[AttentionResult]]:
    """Return the call for `attention`. It requests safetensors: exact, and a seventh of JSON's size.

    Raises:
        MissingDependency: numpy is not installed (raised before the request is sent).
    """
    require_numpy("attention()")
    body = body_of({"model": model, "input": input}, options, AttentionOptions)
    kind, count = body.get("kind", "pattern"), num_inputs(body.get("input"))
    return Call(
        "POST",
        "/v1/attention",
        lambda answer: parse_attention(answer, kind, count),
        body,
        f"{SAFETENSORS}, {JSON};q=0.1",
        options,
    )


def embed(model: str | None, input: Prompt, options: Mapping[str, Any]) -> Call[Embeddings]:
    body = body_of({"model": model, "input": input, "encoding_format": "base64"}, options, EmbeddingOptions)
    count = num_inputs(body.get("input"))
    return Call("POST", "/v1/embeddings", lambda answer: parse_embeddings(answer.json(), count), body, options=options)


def tokenize(model: str | None, text: str | Sequence[Message], options: Mapping[str, Any]) -> Call[Tokens]:
    source = {"prompt": text} if isinstance(text, str) else {"messages": text}
    body = body_of({"model": model, "return_token_strs": True, **source}, options, TokenizeOptions)
    return Call("POST", "/tokenize", reader_of(Tokens), body, options=options)


def detokenize(model: str | None, token_ids: Sequence[int], options: Mapping[str, Any]) -> Call[str]:
    body = body_of({"model": model, "tokens": token_ids}, options, DetokenizeOptions)
    return Call("POST", "/detokenize", lambda answer: _text(answer, "prompt"), body, options=options)


def models(options: Mapping[str, Any]) -> Call[list[Model]]:
    check_names(options, Options)
    return Call("GET", "/v1/models", _read_models, options=options)


def load_lora(name: str, path: str, options: Mapping[str, Any]) -> Call[None]:
    check_names(options, ModelOptions)
    body = {"lora_name": name, "lora_path": path}
    if options.get("model") is not None:  # earlier servers have one model, and refuse the field
        body["base_model_name"] = options["model"]
    return Call("POST", "/v1/load_lora_adapter", lambda answer: None, body, options=options)


def unload_lora(name: str, options: Mapping[str, Any]) -> Call[None]:
    check_names(options, Options)
    return Call("POST", "/v1/unload_lora_adapter", lambda answer: None, {"lora_name": name}, options=options)


def capabilities(model: str | None, options: Mapping[str, Any]) -> Call[dict[str, Any]]:
    check_names(options, ModelOptions)
    return Call("GET", capabilities_path(options.get("model", model)), _object, options=options)


def capabilities_path(model: str | None) -> str:
    """Return the path of the capabilities of a model, by default the server's first."""
    return "/v1/capabilities" if model is None else f"/v1/capabilities?{urlencode({'model': model})}"


def version(options: Mapping[str, Any]) -> Call[str]:
    check_names(options, Options)
    return Call("GET", "/version", lambda answer: _text(answer, "version"), options=options)


def health(options: Mapping[str, Any]) -> Call[Health]:
    """Return the call for `health`. Not ready is an answer here, so a 503 is read and not retried."""
    check_names(options, Options)
    return Call("GET", "/health/ready", _read_health, options=options, accepted=frozenset({503}))


_INPUTS = {"prompt", "input", "messages", "tokens"}
"""Fields with the input of the model."""


def is_many(input: Any) -> bool:
    """Return whether an input is several: texts or lists of ids; not one text, ids of one, or messages."""
    if input is None or isinstance(input, str):
        return False
    items = plain(input)
    return bool(items) and isinstance(items[0], str | list)


def one_or_all(input: Any, results: list[T]) -> T | list[T]:
    """Return the one result of a single input, or the list of several."""
    return results if is_many(input) else results[0]


def num_inputs(input: Any) -> int:
    """Return how many answers an input must get."""
    return len(input) if is_many(input) else 1


def as_messages(messages: str | Sequence[Message]) -> Sequence[Message]:
    """Return the messages; a bare text becomes one message of the user."""
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def body_of(fields: Mapping[str, Any], options: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the body: fields, then the caller's options over them, then `extra_body`; None is left out.

    Raises:
        TypeError: an option that the method does not have, or an input that is no text and no token ids.
        ValueError: an intervention's value is no array of real numbers.
    """
    check_names(options, kind)
    if isinstance(options.get("explain"), Mapping):
        check_names(options["explain"], ChatReasonsOptions, "explain has ")
    for name in _INPUTS & fields.keys():
        value = fields[name]
        is_number = getattr(value, "ndim", None) == 0 and not isinstance(value, str)  # numpy's and torch's
        if is_number or isinstance(value, bool | int | float | bytes):
            raise TypeError(f"{name} is {value!r}; a text, texts, token ids or lists of them are accepted")
    named = {name: value for name, value in options.items() if name not in HANDLED_HERE}
    given = {name: value for name, value in (dict(fields) | named).items() if value is not None}
    body = plain(given | dict(options.get("extra_body") or {}))
    assert isinstance(body, dict)
    changes = body.get("interventions")
    if isinstance(changes, dict):  # one of them
        changes = body["interventions"] = [changes]
    for change in changes if isinstance(changes, list) else ():
        if isinstance(change, dict) and "value" in change:
            change["value"] = encoded(change["value"])
    rows = body.get("attention")
    if isinstance(rows, dict):
        # Base64 holds every bit in a third of the space that decimal numbers take.
        rows.setdefault("encoding_format", "base64")
    return body


def check_names(options: Mapping[str, Any], kind: type, place: str = "") -> None:
    known: frozenset[str] = kind.__optional_keys__  # type: ignore[attr-defined]  # every TypedDict has it
    for name in options:
        if name not in known:
            known_names = ", ".join(sorted(known))
            raise TypeError(f"{place}no argument {name!r}; known are {known_names} (others go in extra_body)")


def _streaming(options: Mapping[str, Any]) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if options.get("include_usage") else {}
    return {"stream": True, **usage}


def reader_of(kind: type[R]) -> Any:
    return lambda answer: _validated(kind, answer.json())


def _event_reader(kind: type[R]) -> Any:
    return lambda data: _validated(kind, _event_json(data))


def _event_json(data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InvalidResponse(f"a stream's event is not JSON: {data[:200]!r}") from error


def _validated(kind: type[R], body: Any) -> R:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise InvalidResponse(f"not a {kind.__name__}: {error}") from error


def _object(answer: Answer) -> dict[str, Any]:
    body = answer.json()
    if not isinstance(body, dict):
        raise InvalidResponse(f"expected a JSON object, got {type(body).__name__}")
    return body


def _text(answer: Answer, name: str) -> str:
    value = _object(answer).get(name)
    if not isinstance(value, str):
        raise InvalidResponse(f"expected a text under {name!r}, got {value!r}")
    return value


def _read_models(answer: Answer) -> list[Model]:
    try:
        return TypeAdapter(list[Model]).validate_python(_object(answer).get("data"))
    except ValidationError as error:
        raise InvalidResponse(f"not a list of models: {error}") from error


def _read_health(answer: Answer) -> Health:
    """Read the health. The reason is wherever the server puts it: the error shape, or a field of its own; the body
    may be empty.
    """
    try:
        body = json.loads(answer.content)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    error = body.get("error")
    reason = error.get("message") if isinstance(error, dict) else body.get("reason") or body.get("status")
    models = body.get("models")
    return Health(
        ready=answer.status < 300,
        reason=str(reason or f"status {answer.status}"),
        models=models if isinstance(models, dict) else {},
    )
