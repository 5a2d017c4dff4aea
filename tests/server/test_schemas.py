"""Schemas of request bodies: the accepted values and the error messages."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from lightwell.server.http.error_handlers import validation_error
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.base import RequestModel
from lightwell.server.schemas.chat_messages import ChatMessage
from lightwell.server.schemas.embeddings import EmbeddingRequest
from lightwell.server.schemas.generation import ChatCompletionRequest, CompletionRequest, StreamOptions
from lightwell.server.schemas.inspect.attention import AttentionRequest
from lightwell.server.schemas.inspect.interventions import EncodedArray, InterventionField, InterventionSource
from lightwell.server.schemas.ollama import (
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from lightwell.server.schemas.tokens import TokenizeRequest

MESSAGES = [{"role": "user", "content": "hi"}]


def refusal(model: type[BaseModel], body: dict[str, Any]) -> BadRequest:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return validation_error([{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", -0.1, "-0.1"),
        ("temperature", float("nan"), "nan"),
        ("temperature", "1", "'1'"),
        ("top_p", 0, "greater than 0"),
        ("top_k", -2, "-2"),
        ("min_p", 1.5, "1.5"),
        ("n", 0, "greater than or equal to 1"),
        ("n", True, "True"),
        ("max_tokens", "16", "'16'"),
        ("max_tokens", 1.5, "1.5"),
        ("logprobs", 21, "20"),
        ("prompt_logprobs", 21, "20"),
        ("presence_penalty", 2.1, "2.1"),
        ("repetition_penalty", 0, "greater than 0"),
        ("seed", 2**63, str(2**63)),
        ("stop", ["x"] * 17, "16"),
        ("stop[0]", [""], "''"),
        ("stop_token_ids[1]", [3, -1], "-1"),
        ("logit_bias", {"5": 101}, "101"),
        ("logit_bias", {"word": 1}, "'word' is not a token id"),
        ("logit_bias", {"5": 1, "05": 2}, "'05' is not a token id"),
        ("logit_bias", {"9" * 5000: 1}, "is not a token id"),
        ("stop", "", "at least 1 character"),
        ("stream_options", {"include_usage": True}, "stream true"),
        ("echo", "yes", "'yes'"),
        ("best_of", 3, "best_of 3"),
        ("suffix", "end", "not supported"),
        ("no_such_field", 1, "no such field"),
        ("prompt", "\ud800", "surrogate"),
        ("prompt", {}, "string"),
        ("prompt", [1, "a"], "'a'"),
        ("prompt[1]", [5, -1], "-1"),
        ("prompt[1][2]", [[1], [1, 2, 2**31]], str(2**31)),
        ("model", 5, "5"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_what_is_accepted(field: str, value: Any, said: str) -> None:
    error = refusal(CompletionRequest, {"prompt": "x", field.partition("[")[0]: value})
    assert error.param == field
    assert said in error.message


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (
            CompletionRequest,
            {"prompt": [-1]},
            "prompt[0]: input should be greater than or equal to 0, got -1.",
        ),
        (
            AttentionRequest,
            {"input": [{"role": "user", "content": "x", "mood": 1}]},
            "input[0].mood: no such field; GET /openapi.json lists the accepted fields.",
        ),
        (AttentionRequest, {"input": [{"content": "x"}]}, "input[0].role: this field is required."),
        (CompletionRequest, {}, "prompt: this field is required."),
    ],
)
def test_of_the_forms_of_a_field_the_one_that_was_meant_tells_what_is_wrong(
    model: type[BaseModel], body: dict[str, Any], message: str
) -> None:
    assert refusal(model, body).message == message


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (CompletionRequest, {"prompt": "x", "attention": {"layers": "none"}}, "attention.layers"),
        (CompletionRequest, {"prompt": "x", "max_tokens": 0}, "max_tokens"),  # without echo
        (ChatCompletionRequest, {"messages": []}, "messages"),
        (ChatCompletionRequest, {"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs"),  # without logprobs
        (ChatCompletionRequest, {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        *[
            (ChatCompletionRequest, {"messages": MESSAGES, "chat_template_kwargs": {taken: 1}}, "chat_template_kwargs")
            for taken in ("messages", "tools", "add_generation_prompt")
        ],
        *[
            (ChatCompletionRequest, {"messages": [*MESSAGES, message]}, f"messages[1].{param}")
            for message, param in (
                ({"role": "user", "content": 5}, "content"),
                ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}, "content[1].text"),
                ({"content": "x"}, "role"),
                ({"role": "user", "content": "x", "mood": 1}, "mood"),
                ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "tool_calls[0].id"),
            )
        ],
        *[
            (AttentionRequest, {"input": "x", **fields}, param)
            for fields, param in (
                ({"pairs": [[0, 0]], "layers": 1}, "pairs"),
                ({"pairs": [[0, 0], [0]]}, "pairs[1]"),
                ({"dtype": "uint8", "kind": "scores"}, "dtype"),
                ({"top_k": 2, "orientation": "columns"}, "top_k"),
                ({"top_k": 2, "resize": 4}, "top_k"),
                ({"resize": 4, "kind": "scores"}, "resize"),
                ({"layers": []}, "layers"),
                ({"kind": "weights"}, "kind"),
            )
        ],
        (TokenizeRequest, {}, "prompt"),
        (TokenizeRequest, {"prompt": "x", "messages": MESSAGES}, "prompt"),
    ],
)
def test_the_field_that_is_wrong_or_contradicts_another_is_named(
    model: type[BaseModel], body: dict[str, Any], param: str
) -> None:
    error = refusal(model, body)
    assert error.param == param
    assert param.rpartition(".")[2].partition("[")[0] in error.message


BODIES: list[tuple[type[RequestModel], Callable[[dict[str, Any]], dict[str, Any]]]] = [
    (CompletionRequest, lambda fields: {"prompt": "x", **fields}),
    (ChatCompletionRequest, lambda fields: {"messages": MESSAGES, **fields}),
    (EmbeddingRequest, lambda fields: {"input": "x", **fields}),
    (TokenizeRequest, lambda fields: {"prompt": "x", **fields}),
    (OllamaChatRequest, lambda fields: {"messages": MESSAGES, **fields}),
    (OllamaGenerateRequest, lambda fields: {"prompt": "x", **fields}),
    (OllamaEmbedRequest, lambda fields: {"input": "x", **fields}),
]
"""Each request type, and a function that adds further fields to its body."""
INNER: list[tuple[type[RequestModel], Callable[[dict[str, Any]], dict[str, Any]]]] = [
    (ChatMessage, lambda fields: {"role": "user", "content": "x", **fields}),
    (StreamOptions, lambda fields: fields),
    (OllamaMessage, lambda fields: {"role": "user", "content": "x", **fields}),
    (OllamaOptions, lambda fields: fields),
]


@pytest.mark.parametrize(("model", "body"), [*BODIES, *INNER], ids=lambda value: getattr(value, "__name__", ""))
def test_what_other_servers_requests_hold_is_known_by_name(
    model: type[RequestModel], body: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Send fields that change nothing, and nulls; an old version rejected unmodified clients because of them."""
    plain = model.model_validate(body({}))
    for name in model.IGNORED:
        assert model.model_validate(body({name: [{"a": 1}]})) == plain
    for name, refused in model.REFUSED.items():
        is_on = any(one is True for one in refused.neutral)
        nothing: list[Any] = [None, is_on, "", [], {}, *refused.neutral]
        for value in nothing:
            assert model.model_validate(body({name: value})) == plain, f"{name}={value!r} asks for nothing"
        error = refusal(model, body({name: "asked for"}))
        assert error.param == name
        assert f"not supported: {refused.why}; leave it out" in error.message
    not_ours = {*model.IGNORED, *model.REFUSED}
    assert not not_ours & model.model_fields.keys()
    nulls = {name: None for name in [*not_ours, *model.model_fields] if name not in body({})}
    assert model.model_validate(body(nulls)).model_dump() == plain.model_dump() | {
        name: None for name in nulls if name in model._NULLABLE
    }


@pytest.mark.parametrize("value", [None, [], 1])
def test_a_field_that_nobody_knows_is_a_typing_error_even_when_it_is_null(value: Any) -> None:
    error = refusal(ChatCompletionRequest, {"messages": MESSAGES, "temprature": value})
    assert (error.param, error.code) == ("temprature", "unknown_field")


def test_values_that_ask_for_nothing_or_do_not_contradict_each_other_are_accepted() -> None:
    empty = {"logit_bias": {}, "stop": [], "tools": [], "top_logprobs": 0, "stream_options": {"include_usage": False}}
    ChatCompletionRequest.model_validate({"messages": MESSAGES, **empty})
    ChatCompletionRequest.model_validate({"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 3})
    CompletionRequest.model_validate({"prompt": "x", "max_tokens": 0, "echo": True})


def test_an_embedding_takes_no_notice_of_how_text_would_be_sampled() -> None:
    """Accept the body of `vllm bench serve --backend openai-embeddings --ignore-eos`."""
    sampling = {"ignore_eos": True, "temperature": 0.5, "max_tokens": 32, "stop": ["."], "seed": 1}
    without = EmbeddingRequest.model_validate({"input": "x"})
    assert EmbeddingRequest.model_validate({"input": "x", **sampling}) == without
    assert "stream" in refusal(EmbeddingRequest, {"input": "x", "stream": True}).message


def test_content_may_be_a_list_of_text_parts() -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "x"}}, {"type": "text", "text": "b"}]
    body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": parts}]})
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert body.messages[0].as_template_input() == {"role": "user", "content": content}


def test_images_are_refused() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert "image_url" in refusal(ChatCompletionRequest, {"messages": [{"role": "user", "content": parts}]}).message


@pytest.mark.parametrize("model", [EncodedArray, InterventionField, InterventionSource])
def test_every_field_of_an_intervention_is_described(model: type[BaseModel]) -> None:
    for name, schema in model.model_json_schema()["properties"].items():
        assert schema.get("description"), f"{model.__name__}.{name} has no description"


def request_models(base: type[RequestModel] = RequestModel) -> Iterator[type[RequestModel]]:
    for model in base.__subclasses__():
        yield model
        yield from request_models(model)


def num_errors(model: type[RequestModel], body: dict[str, Any]) -> int:
    try:
        model.model_validate(body)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("model", list(request_models()), ids=lambda model: model.__name__)
def test_a_long_list_is_left_at_its_first_wrong_item(model: type[RequestModel]) -> None:
    """Check against an old failure: each of 16,384 wrong lists in `heads` got its own error, which blocked every stream
    for half a second.
    """
    for item in ([1], "a", {}, None, 0.5):
        assert max(num_errors(model, {field: [item] * 5000}) for field in {**model.model_fields, "other": None}) < 100
