"""What request bodies accept, and what their refusals say."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from server.errors import BadRequest, validation_error
from server.schemas import (
    AttentionRequest,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    EncodedArray,
    InterventionField,
    InterventionSource,
    TokenizeRequest,
    TraceRequest,
)

REQUESTS = (
    CompletionRequest,
    ChatCompletionRequest,
    AttentionRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
    TraceRequest,
    InterventionField,
    InterventionSource,
    EncodedArray,
)
MESSAGES = [{"role": "user", "content": "hi"}]


def refusal(model: type[BaseModel], body: dict[str, Any]) -> BadRequest:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return validation_error([{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()])


@pytest.mark.parametrize(
    "prompt",
    ["text", ["a", "b"], [1, 2], [[1], [2, 3]], ""],
    ids=["text", "texts", "ids", "many ids", "empty text"],
)
def test_a_prompt_may_have_any_of_openais_forms(prompt: Any) -> None:
    assert CompletionRequest.model_validate({"prompt": prompt}).prompt == prompt


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
        ("stop", [""], "''"),
        ("stop_token_ids", [-1], "-1"),
        ("logit_bias", {"5": 101}, "101"),
        ("logit_bias", {"word": 1}, "'word' is no token id"),
        ("logit_bias", {"5": 1, "05": 2}, "'05' is no token id"),
        ("logit_bias", {"9" * 5000: 1}, "is no token id"),
        ("stop", "", "at least 1 character"),
        ("stream_options", {"include_usage": True}, "stream true"),
        ("echo", "yes", "'yes'"),
        ("best_of", 3, "best_of 3"),
        ("suffix", "end", "not supported"),
        ("no_such_field", 1, "no such field"),
        ("prompt", "\ud800", "surrogate"),
        ("prompt", {}, "string"),
        ("prompt", [1, "a"], "'a'"),
        ("prompt", [-1], "-1"),
        ("model", 5, "5"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_what_is_accepted(field: str, value: Any, said: str) -> None:
    error = refusal(CompletionRequest, {"prompt": "x", field: value})
    assert error.param == field
    assert said in error.message


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (
            CompletionRequest,
            {"prompt": [-1]},
            "prompt: input should be greater than or equal to 0, got -1 (at index 0).",
        ),
        (
            AttentionRequest,
            {"input": [{"role": "user", "content": "x", "mood": 1}]},
            "input.mood: no such field; GET /openapi.json lists those that are accepted.",
        ),
        (AttentionRequest, {"input": [{"content": "x"}]}, "input.role: this field is required."),
    ],
)
def test_of_the_forms_of_a_field_the_one_that_was_meant_tells_what_is_wrong(
    model: type[BaseModel], body: dict[str, Any], message: str
) -> None:
    assert refusal(model, body).message == message


def test_nested_fields_are_named_with_their_path() -> None:
    error = refusal(CompletionRequest, {"prompt": "x", "attention": {"layers": "none"}})
    assert error.param == "attention.layers"
    assert "'none'" in error.message


def test_a_missing_field_is_named() -> None:
    assert refusal(CompletionRequest, {}).message == "prompt: this field is required."


@pytest.mark.parametrize("field", ["user", "store", "metadata", "service_tier", "safety_identifier"])
def test_openai_fields_that_cannot_change_the_answer_are_accepted(field: str) -> None:
    CompletionRequest.model_validate({"prompt": "x", field: "anything"})
    ChatCompletionRequest.model_validate({"messages": MESSAGES, field: {"a": 1}})


@pytest.mark.parametrize("field", ["tools", "functions", "function_call", "audio", "web_search_options"])
def test_openai_fields_that_would_change_the_answer_are_refused(field: str) -> None:
    error = refusal(ChatCompletionRequest, {"messages": MESSAGES, field: [{}]})
    assert error.param == field
    assert "not supported" in error.message


def test_only_text_can_be_asked_for_as_response_format() -> None:
    ChatCompletionRequest.model_validate({"messages": MESSAGES, "response_format": {"type": "text"}})
    error = refusal(ChatCompletionRequest, {"messages": MESSAGES, "response_format": {"type": "json_object"}})
    assert error.param == "response_format.type"


def test_content_may_be_a_list_of_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": parts}]})
    assert body.messages[0].as_template_input() == {"role": "user", "content": "ab"}


def test_images_are_refused() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]
    assert "image_url" in refusal(ChatCompletionRequest, {"messages": [{"role": "user", "content": parts}]}).message


def test_top_logprobs_needs_logprobs() -> None:
    assert refusal(ChatCompletionRequest, {"messages": MESSAGES, "top_logprobs": 2}).param == "top_logprobs"


def test_max_tokens_may_have_either_name_but_not_two_values() -> None:
    ChatCompletionRequest.model_validate({"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 3})
    error = refusal(ChatCompletionRequest, {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 4})
    assert error.param == "max_tokens"


def test_nothing_can_be_generated_only_with_echo() -> None:
    CompletionRequest.model_validate({"prompt": "x", "max_tokens": 0, "echo": True})
    assert refusal(CompletionRequest, {"prompt": "x", "max_tokens": 0}).param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"pairs": [[0, 0]], "layers": 1}, "pairs"),
        ({"pairs": [[0]]}, "pairs"),
        ({"dtype": "uint8", "kind": "scores"}, "dtype"),
        ({"top_k": 2, "orientation": "columns"}, "top_k"),
        ({"top_k": 2, "resize": 4}, "top_k"),
        ({"resize": 4, "kind": "scores"}, "resize"),
        ({"layers": []}, "layers"),
        ({"kind": "weights"}, "kind"),
    ],
)
def test_contradictory_attention_fields_are_refused(fields: dict[str, Any], param: str) -> None:
    assert refusal(AttentionRequest, {"input": "x", **fields}).param == param


def test_tokenize_takes_a_prompt_or_messages_but_not_both() -> None:
    assert refusal(TokenizeRequest, {}).param == "prompt"
    assert refusal(TokenizeRequest, {"prompt": "x", "messages": MESSAGES}).param == "prompt"


@pytest.mark.parametrize("model", REQUESTS, ids=lambda model: model.__name__)
def test_every_field_is_described(model: type[BaseModel]) -> None:
    for name, schema in model.model_json_schema()["properties"].items():
        assert schema.get("description"), f"{model.__name__}.{name} has no description"
