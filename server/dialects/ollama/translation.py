"""Reads Ollama's bodies as requests for texts."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.generation.request import ChatRequest, PromptRequest, sampling_of, texts_of
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.error_handlers import translated
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.chat_fields import ChatFields
from lightwell.server.schemas.ollama import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaTextFields,
    OllamaToolCall,
)
from lightwell.server.schemas.structured_outputs import Constraint

_TAG = ":latest"
_NAMES = {"max_tokens": "options.num_predict", "thinking_budget": "think", "reasoning_effort": "think"}


def served_name(context: AppContext, name: str | None) -> str | None:
    """Return the served name for a client's name: Ollama's clients add a tag to each."""
    if name is None or not name.endswith(_TAG) or context.models.knows(name):
        return name
    return name.removesuffix(_TAG)


def tagged(name: str) -> str:
    """Return the name as Ollama lists it, with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + _TAG


async def accept_named(
    context: AppContext, body: OllamaTextFields | OllamaEmbedRequest | OllamaEmbeddingsRequest, route: str
) -> ServedModel:
    """Call `accept` with the model that a body names with or without its tag, and let the model be unloaded when it was
    unused for as long as the body says. Raises ApiError.
    """
    model = await accept(context, body.model_copy(update={"model": served_name(context, body.model)}), route)
    if body.keep_alive is not None and context.models.may_unload:
        context.models.keep(context.models.slot(model.id), float(body.keep_alive))
    return model


def only_unloads(context: AppContext, body: OllamaTextFields) -> bool:
    """Return whether a body without a prompt unloads a model that is not loaded. Raises NotFound for an unknown one."""
    name = served_name(context, body.model)
    return body.keep_alive == 0 and name is not None and context.models.slot(name).state in ("unloaded", "failed")


def chat_request(model: ServedModel, body: OllamaChatRequest) -> ChatRequest:
    """Return the request for the next message. Raises BadRequest, with the names of the body's fields."""
    return _chat(model, body, FieldNames(_NAMES), translated_messages(body.messages), body.tools)


def chat_request_of_prompt(model: ServedModel, body: OllamaGenerateRequest) -> ChatRequest:
    """Return the request for an answer to a prompt, the only message to the assistant. Raises BadRequest."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    names = FieldNames({**_NAMES, "messages": "prompt"})
    return _chat(model, body, names, [*system, {"role": "user", "content": body.prompt}])


def prompt_request(model: ServedModel, body: OllamaGenerateRequest) -> PromptRequest:
    """Return the request for a text that continues a prompt. Raises BadRequest for fields of the chat template."""
    if not body.raw:
        taken = {"system": body.system, "think": body.think or None, "chat_template_kwargs": body.chat_template_kwargs}
        for name, value in taken.items():
            if value:
                raise BadRequest(f"{name}: the model {model.id!r} has no chat template; leave it out.", param=name)
    return PromptRequest(**_text_fields(body), names=FieldNames(_NAMES), prompt=body.prompt)


def _chat(
    model: ServedModel,
    body: OllamaTextFields,
    names: FieldNames,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
) -> ChatRequest:
    if body.think and not can_think(model):
        raise BadRequest(
            "think: the chat template of this model does not support thinking; false is accepted.", param="think"
        )
    arguments = body.chat_template_kwargs
    if body.think:
        arguments = {"enable_thinking": True, **(arguments or {})}
    is_continued = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    fields = {"messages": messages, "chat_template_kwargs": arguments, "continue_final_message": is_continued}
    with names.in_errors():
        chat = translated(ChatFields, {**fields, "tools": tools or None})
    return ChatRequest(
        **_text_fields(body),
        names=names,
        chat=chat,
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        thinking_budget=0 if body.think is False else None,
    )


def can_think(model: ServedModel) -> bool:
    """Return whether the model's chat template has thinking, or a switch for it."""
    template = model.chat_template
    if template is None:
        return False
    return bool(template.thought_tags and template.thought_tags.opening) or "enable_thinking" in template.source


def _text_fields(body: OllamaTextFields) -> dict[str, Any]:
    """Return the fields of a `TextRequest` that both bodies have."""
    options = body.options or OllamaOptions.model_validate({})
    sampling = sampling_of(options)
    if options.repeat_penalty is not None:
        sampling["repetition_penalty"] = options.repeat_penalty
    if options.seed == -1:  # Ollama and llama.cpp draw a seed for -1
        del sampling["seed"]
    constraint = None
    if body.format == "json":
        constraint = Constraint("format", "json_object", True)
    elif body.format:
        constraint = Constraint("format", "json", body.format)
    return {
        "sampling": sampling,
        "max_tokens": None if options.num_predict is None or options.num_predict < 0 else options.num_predict,
        "is_stream": body.stream,
        "stop": texts_of(options.stop),
        "num_logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        "constraint": constraint,
        "attention": body.attention,
        "interventions": body.interventions,
        "truncate": body.truncate,
    }


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
    """Return messages in OpenAI's form: each call has an id, and each result the id of its call."""
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
