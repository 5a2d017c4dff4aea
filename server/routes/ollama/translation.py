"""Translates Ollama's requests into those of /v1, and what these refuse back into Ollama's names.

It knows names and forms; the bounds and meanings of fields are those of /v1.
"""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from server.http.error_handlers import translated
from server.http.errors import BadRequest
from server.routes.context import AppContext
from server.routes.request_context import accept
from server.schemas.base import RunFields
from server.schemas.generation import ChatCompletionRequest, CompletionRequest
from server.schemas.ollama import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaTextFields,
    OllamaToolCall,
)

_TAG = ":latest"
_OPTIONS = {
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_tokens",
    **{name: name for name in OllamaOptions.model_fields if name not in ("repeat_penalty", "num_predict")},
}
"""Our name of each option."""
NAMES = {
    **{ours: f"options.{theirs}" for theirs, ours in _OPTIONS.items()},
    **dict.fromkeys(("response_format", "response_format.json_schema.schema"), "format"),
    **dict.fromkeys(("thinking_budget", "reasoning_effort"), "think"),
}
"""Ollama's name of each of our fields that it calls otherwise."""


def served_name(context: AppContext, model: str | None) -> str | None:
    """Return the name that is served of what a client wrote: Ollama's put a tag after each."""
    if model is None or not model.endswith(_TAG) or model == context.model_id or context.adapters.find(model):
        return model
    return model.removesuffix(_TAG)


def tagged(name: str) -> str:
    """Return the name as Ollama lists it, with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + _TAG


def accept_named(context: AppContext, body: RunFields, route: str | None = None) -> float:
    """Call `accept` with the model that a body names with or without its tag. Raises ApiError."""
    return accept(context, body.model_copy(update={"model": served_name(context, body.model)}), route)


def chat_of(context: AppContext, body: OllamaChatRequest) -> ChatCompletionRequest:
    """Return a chat in our form. Raises BadRequest."""
    tools = {"tools": body.tools} if body.tools else {}
    return _chat(context, body, translated_messages(body.messages), tools)


def chat_of_prompt(context: AppContext, body: OllamaGenerateRequest) -> ChatCompletionRequest:
    """Return a prompt as the only message to the assistant. Raises BadRequest."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    return _chat(context, body, [*system, {"role": "user", "content": body.prompt}], {})


def completion_of(context: AppContext, body: OllamaGenerateRequest) -> CompletionRequest:
    """Return a prompt that is continued as it is. Raises BadRequest."""
    if not body.raw:
        taken = {"system": body.system, "think": body.think or None, "chat_template_kwargs": body.chat_template_kwargs}
        for name, value in taken.items():
            if value:
                raise BadRequest(
                    f"{name}: the model {context.model_id!r} has no chat template; leave it out.", param=name
                )
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    asked = {"max_tokens": None, **shared_fields(body), "prompt": body.prompt, "logprobs": num_logprobs}
    return translated(CompletionRequest, asked)


def _chat(
    context: AppContext, body: OllamaTextFields, messages: list[dict[str, Any]], tools: dict[str, Any]
) -> ChatCompletionRequest:
    asked = {**shared_fields(body), **tools, "messages": messages}
    asked |= {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        asked |= {"continue_final_message": True}
    if body.think and not can_think(context):
        raise BadRequest("think: this model's chat template has no thinking; false is accepted.", param="think")
    if body.think is False:
        asked |= {"thinking_budget": 0}
    elif body.think is not None:
        asked |= {"reasoning_effort": None if body.think is True else body.think}
        asked |= {"chat_template_kwargs": {"enable_thinking": True, **(body.chat_template_kwargs or {})}}
    return translated(ChatCompletionRequest, {"chat_template_kwargs": body.chat_template_kwargs, **asked})


def can_think(context: AppContext) -> bool:
    """Return whether the model thinks, or can be told to, as far as its chat template says."""
    template = context.chat_template
    if template is None:
        return False
    return bool(template.thought_tags and template.thought_tags.opening) or "enable_thinking" in template.source


def shared_fields(body: OllamaTextFields) -> dict[str, Any]:
    """Return the fields that chats and completions have alike."""
    options = body.options
    values = {} if options is None else {ours: getattr(options, theirs) for theirs, ours in _OPTIONS.items()}
    asked = {name: value for name, value in values.items() if value is not None}
    if asked.get("max_tokens", 1) < 0:
        del asked["max_tokens"]
    if asked.get("seed") == -1:  # Ollama's and llama.cpp's way to have one drawn
        del asked["seed"]
    if body.format == "json":
        asked["response_format"] = {"type": "json_object"}
    elif body.format:
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "format", "schema": body.format}}
    alike = ("stream", "truncate", "attention", "interventions")
    return asked | {name: getattr(body, name) for name in alike if name in body.model_fields_set or name == "stream"}


class _Calls:
    """The tool calls of a conversation that have no result yet."""

    def __init__(self) -> None:
        self._ids: dict[str | None, deque[str]] = {None: deque()}
        """Ids of the calls of each tool, and of all of them, in their order; some have a result."""
        self._answered: set[str] = set()

    def add(self, call_id: str, tool: str) -> None:
        self._answered.discard(call_id)
        for name in (tool, None):
            self._ids.setdefault(name, deque()).append(call_id)

    def next_of(self, tool: str | None) -> str | None:
        """Return the id of the first call of a tool, or of any if it is None."""
        ids = self._ids.get(tool, deque())
        while ids and ids[0] in self._answered:
            ids.popleft()
        return ids[0] if ids else None

    def answer(self, call_id: str) -> None:
        self._answered.add(call_id)


def translated_messages(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Return messages in our form, in which each call has an id, and each result that of its call."""
    written: list[dict[str, Any]] = []
    calls, num_calls = _Calls(), 0
    for message in messages:
        told: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking is not None:
            told["reasoning_content"] = message.thinking
        if message.tool_calls:
            told["tool_calls"] = [_call(call, num_calls + i) for i, call in enumerate(message.tool_calls)]
            num_calls += len(message.tool_calls)
            for call in told["tool_calls"]:
                calls.add(call["id"], call["function"]["name"])
        if message.tool_name is not None:
            told["name"] = message.tool_name
        if message.role == "tool":
            call_id = message.tool_call_id or calls.next_of(message.tool_name)
            if call_id is not None:
                told["tool_call_id"] = call_id
                calls.answer(call_id)
        written.append(told)
    return written


def _call(call: OllamaToolCall, number: int) -> dict[str, Any]:
    # Nine letters and digits: the templates of Mistral's models take no other ids.
    function = {"name": call.function.name, "arguments": json.dumps(call.function.arguments, ensure_ascii=False)}
    return {"id": call.id or f"call{number:05}", "type": "function", "function": function}
