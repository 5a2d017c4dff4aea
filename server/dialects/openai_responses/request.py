"""Reads the body of POST /v1/responses as a request for a chat's next message."""

from collections.abc import Mapping
from typing import Any

from lightwell.model.tokenization.chat_formats.for_simple_templates import joined_parts
from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.generation.request import ChatRequest, shared_fields
from lightwell.server.http.error_handlers import translated
from lightwell.server.schemas.base import RequestModel
from lightwell.server.schemas.chat_fields import ChatFields
from lightwell.server.schemas.openai_responses.items import (
    AllowedTools,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    InputMessage,
    InputPart,
    NamedTool,
    ToolChoice,
    name_in_prompt,
    offered_functions,
)
from lightwell.server.schemas.openai_responses.responses import ResponsesRequest
from lightwell.server.schemas.structured_outputs import Constraint

_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
    "tool_choice.allowed_tools": "tool_choice",
}


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """Return the request for the next message. Raises BadRequest, with the names of the body's fields."""
    chat = _Chat(body)
    names = FieldNames(chat.names, cut_advice='Set truncation to "auto" to cut it.')
    with names.in_errors():
        fields = translated(ChatFields, chat.fields)
    return ChatRequest(
        **shared_fields(body),
        names=names,
        chat=fields,
        max_tokens=body.max_output_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.gives_logprobs else None,
        constraint=_constraint(body),
        truncate=body.truncation == "auto",
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        thinking_budget=body.budget,
    )


def _constraint(body: ResponsesRequest) -> Constraint | None:
    wanted = None if body.text is None else body.text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.json_schema is None:
        return Constraint("text.format", "json_object", True)
    return Constraint("text.format.schema", "json", wanted.json_schema)


class _Chat:
    """The messages and tools of a body in OpenAI's form for chats, and the path in the body of each of them."""

    def __init__(self, body: ResponsesRequest) -> None:
        self.names = {**_NAMES, "thinking_budget": body.budget_field}
        self._messages: list[dict[str, Any]] = []
        self._read_conversation(body)
        self.fields = {
            "messages": self._messages,
            "chat_template_kwargs": body.chat_template_kwargs,
            **self._tools(body),
        }

    def _read_conversation(self, body: ResponsesRequest) -> None:
        if body.instructions is not None:
            self._add({"role": "system", "content": body.instructions}, "instructions")
            self.names["messages[0].content"] = "instructions"
        if isinstance(body.input, str):
            self._add({"role": "user", "content": body.input}, "input")
            return
        for i, item in enumerate(body.input):
            self._read_item(item, f"input[{i}]")

    def _add(self, message: dict[str, Any], origin: str) -> dict[str, Any]:
        self.names[f"messages[{len(self._messages)}]"] = origin
        self._messages.append(message)
        return message

    def _assistant(self, origin: str, *lacking: str) -> dict[str, Any]:
        """Return the last message, if it is the assistant's and lacks all of these fields, or a new one."""
        last = self._messages[-1] if self._messages else {"role": None}
        if last["role"] == "assistant" and not any(field in last for field in lacking):
            return last
        return self._add({"role": "assistant"}, origin)

    def _read_item(self, item: InputItem, origin: str) -> None:
        """Add an item. Reasoning, text and calls of one turn of the assistant are one message of a chat."""
        match item:
            case InputMessage(role="assistant"):
                self._assistant(origin, "content", "tool_calls")["content"] = _content(item.content)
            case InputMessage():
                self._add({"role": item.role, "content": _content(item.content)}, origin)
            case FunctionCall():
                calls = self._assistant(origin).setdefault("tool_calls", [])
                self.names[f"messages[{len(self._messages) - 1}].tool_calls[{len(calls)}]"] = origin
                self.names[f"messages[{len(self._messages) - 1}].tool_calls[{len(calls)}].function"] = origin
                function = {"name": name_in_prompt(item.name, item.namespace), "arguments": item.arguments}
                calls.append({"id": item.call_id, "type": "function", "function": function})
            case FunctionCallOutput():
                self.names[f"messages[{len(self._messages)}].tool_call_id"] = f"{origin}.call_id"
                self._add({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)}, origin)
            case _:
                message = self._assistant(origin, "reasoning_content", "content", "tool_calls")
                message["reasoning_content"] = joined_parts(item.content or item.summary or [])

    def _tools(self, body: ResponsesRequest) -> dict[str, Any]:
        if not body.tools and body.tool_choice in (None, "none", "auto"):
            return {}
        functions = list(offered_functions(body.tools or []))
        self.names |= {f"tools[{i}].function": each.place for i, each in enumerate(functions)}
        tools = []
        for each in functions:
            function = {**told(each.tool, without=("type",)), "name": each.name}
            if each.description is not None:
                function["description"] = each.description
            tools.append({"type": "function", "function": function})
        fields = {
            "tools": tools,
            "tool_choice": _choice(body.tool_choice),
            "parallel_tool_calls": body.parallel_tool_calls,
        }
        return {name: value for name, value in fields.items() if value is not None}


def told(model: RequestModel, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a part of a body that have a value, by their names in JSON."""
    fields = type(model).model_fields.items()
    values = {info.alias or name: getattr(model, name) for name, info in fields if name not in without}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return told(value) if isinstance(value, RequestModel) else value


def _choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    if isinstance(choice, AllowedTools):
        allowed = {"mode": choice.mode, "tools": [_choice(tool) for tool in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _content(content: str | list[InputPart]) -> str | list[dict[str, str]]:
    return content if isinstance(content, str) else [{"type": "text", "text": part["text"]} for part in content]
