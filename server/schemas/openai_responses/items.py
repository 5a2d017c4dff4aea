"""The items of a conversation, and the tools, in the body of POST /v1/responses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NotRequired, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag
from typing_extensions import TypedDict  # of Python 3.12, which pydantic needs

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import JsonDict, RequestModel, Text, wrong
from lightwell.server.schemas.chat_messages import MAX_PARTS
from lightwell.server.schemas.known_fields import Ignored, Refused, RefusedFields

_OF_ANSWERS = "a field of answers; no chat template reads it"
_OF_THE_ITEM: Ignored = {"id": _OF_ANSWERS, "status": _OF_ANSWERS, "phase": _OF_ANSWERS, "attention": _OF_ANSWERS}

MAX_TOOLS = 128

REFUSED_ITEMS: Mapping[str, str] = {"item_reference": "the server stores no items: send the item itself"}
"""Types of items in `input` that are refused for a reason of their own."""
REFUSED_TOOLS: Mapping[str, str] = {"custom": "the arguments of a tool are JSON"}
"""Types of tools that are refused for a reason of their own."""
LeftOut = Literal["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]
LEFT_OUT_TOOLS: tuple[str, ...] = get_args(LeftOut)
"""Types of tools that are left out if there are functions too: see `WebSearch`."""


def _refuse_types(value: Any, accepted: tuple[str, ...], reasons: Mapping[str, str], reason: str) -> Any:
    """Return an object as it is. Raises PydanticCustomError if its `type` is none of these."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is not None and kind not in accepted:
        why = reasons.get(kind, reason) if isinstance(kind, str) else reason
        raise wrong("type", f"{shown(kind)} is not supported: {why}; accepted: {', '.join(accepted)}")
    return value


class InputPart(TypedDict):
    """One part of a message, or of a tool's result."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    type: Annotated[
        Literal["input_text", "output_text"],
        Field(description='"input_text", or in the assistant\'s messages "output_text"; no images and no files.'),
    ]
    text: Annotated[Text, Field(description="The text.")]
    annotations: Annotated[NotRequired[Any], Field(description="Accepted and ignored: no template reads it.")]
    logprobs: Annotated[NotRequired[Any], Field(description="Accepted and ignored: no template reads it.")]
    attention: Annotated[NotRequired[Any], Field(description="Accepted and ignored: no template reads it.")]
    parsed: Annotated[NotRequired[Any], Field(description="Accepted and ignored: the openai package's reading of it.")]
    prompt_cache_breakpoint: Annotated[
        NotRequired[Any], Field(description="Accepted and ignored: the prefix cache needs none.")
    ]


class ReasoningPart(TypedDict):
    """One part of the assistant's reasoning."""

    __pydantic_config__ = RequestModel.model_config  # type: ignore[misc]  # as pydantic reads it
    type: Annotated[Literal["reasoning_text", "summary_text"], Field(description="The text, or a summary of it.")]
    text: Annotated[Text, Field(description="The text.")]
    attention: Annotated[NotRequired[Any], Field(description="Accepted and ignored: no template reads it.")]


Content = Text | Annotated[list[InputPart], Field(max_length=MAX_PARTS, fail_fast=True)]


class InputMessage(RequestModel):
    """One message of the conversation."""

    IGNORED = _OF_THE_ITEM

    type: Literal["message"] = Field("message", description='"message"; it may be left out.')
    role: Literal["user", "assistant", "system", "developer"] = Field(
        description="Who speaks; developer is system for a chat template that does not name it."
    )
    content: Content = Field(description="The text, or a list of text parts.")


class FunctionCall(RequestModel):
    """A call of a tool that the assistant made."""

    IGNORED: ClassVar[Ignored] = {
        **_OF_THE_ITEM,
        "caller": _OF_ANSWERS,
        "parsed_arguments": "a copy of arguments that the openai package makes",
    }
    REFUSED: ClassVar[RefusedFields] = {"async": Refused("a call must be answered before the next turn")}

    type: Literal["function_call"] = Field(description='"function_call".')
    call_id: Text = Field(min_length=1, description="The call's id, which its output repeats.")
    name: Text = Field(min_length=1, description="The tool's name.")
    namespace: Text | None = Field(None, min_length=1, description="The namespace that the tool is in.")
    arguments: Text = Field(description="The arguments, as JSON.")


class FunctionCallOutput(RequestModel):
    """The result of a tool."""

    IGNORED: ClassVar[Ignored] = {
        **_OF_THE_ITEM,
        "caller": _OF_ANSWERS,
        **dict.fromkeys(("name", "namespace"), "the call contains the name of the tool"),
    }

    type: Literal["function_call_output"] = Field(description='"function_call_output".')
    call_id: Text = Field(min_length=1, description="The id of the call that it answers.")
    output: Content = Field(description="The text, or a list of text parts.")


class ReasoningItem(RequestModel):
    """The assistant's reasoning before its answer."""

    IGNORED = _OF_THE_ITEM
    REFUSED: ClassVar[RefusedFields] = {"encrypted_content": Refused("only its own server can decrypt it")}

    type: Literal["reasoning"] = Field(description='"reasoning".')
    content: Annotated[list[ReasoningPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = Field(
        None, description="The text, in parts, for templates that use it."
    )
    summary: Annotated[list[ReasoningPart], Field(max_length=MAX_PARTS, fail_fast=True)] | None = Field(
        None, description="Stands for the text where there is no content."
    )


ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[FunctionCall, Tag("<function_call>")]
    | Annotated[FunctionCallOutput, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    # In brackets, so that an error's path does not take it for a field.
    Discriminator(lambda item: f"<{item.get('type') or 'message'}>" if isinstance(item, dict) else "<message>"),
    BeforeValidator(
        lambda item: _refuse_types(item, ITEM_TYPES, REFUSED_ITEMS, "this server runs no tools and reads only text")
    ),
]


class FunctionTool(RequestModel):
    """A tool that the client runs."""

    IGNORED: ClassVar[Ignored] = {
        "allowed_callers": "only the assistant calls tools",
        "defer_loading": "all tools are written into the prompt",
        "output_schema": "tool results are used unchanged",
        "cache_control": "the prefix cache works without breakpoints",
    }
    REFUSED: ClassVar[RefusedFields] = {"async": Refused("a call must be answered before the next turn")}

    type: Literal["function"] = Field(description='"function".')
    name: Text = Field(min_length=1, max_length=128, description="Name of the tool.")
    description: Text | None = Field(None, description="Description of the tool, for the assistant.")
    parameters: JsonDict | None = Field(None, description="JSON Schema of its arguments.")
    strict: bool | None = Field(None, description="Let arguments keep to the schema; null is false.")


RUNS_NO_TOOLS = "this server runs no tools itself"


class Namespace(RequestModel):
    """Functions under a name of their own, which their calls have as `namespace`."""

    type: Literal["namespace"] = Field(description='"namespace".')
    name: Text = Field(min_length=1, max_length=128, description="Name of the namespace.")
    description: Text | None = Field(None, description="Description of its tools, for the assistant.")
    tools: Annotated[
        list[
            Annotated[
                FunctionTool,
                BeforeValidator(lambda tool: _refuse_types(tool, ("function",), REFUSED_TOOLS, RUNS_NO_TOOLS)),
            ]
        ],
        Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True),
    ] = Field(description="The tools.")


class WebSearch(RequestModel):
    """A search that a server runs, which this one does not.

    Codex always offers it in addition to its own functions. Leaving it out has the effect of an assistant that never
    calls it; the answer's `tools` lists the offered tools. It is refused if there are no functions, and a `tool_choice`
    cannot name it.
    """

    type: LeftOut = Field(description="It is left out where there are functions too.")


_TOOL_TYPES = ("function", "namespace", *LEFT_OUT_TOOLS)


def _known_tool(tool: Any) -> Any:
    """Return a tool as it is, or of one that is left out only the type: how it would search changes nothing."""
    tool = _refuse_types(tool, _TOOL_TYPES, REFUSED_TOOLS, RUNS_NO_TOOLS)
    return {"type": tool["type"]} if isinstance(tool, dict) and tool.get("type") in LEFT_OUT_TOOLS else tool


def _tool_tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "<web_search>" if kind in LEFT_OUT_TOOLS else "<namespace>" if kind == "namespace" else "<function>"


Tool = Annotated[
    Annotated[FunctionTool, Tag("<function>")]
    | Annotated[Namespace, Tag("<namespace>")]
    | Annotated[WebSearch, Tag("<web_search>")],
    Discriminator(_tool_tag),
    BeforeValidator(_known_tool),
]


def name_in_prompt(name: str, namespace: str | None) -> str:
    """Return a function's name in the prompt: with its namespace, since two may have functions of one name."""
    return name if namespace is None else f"{namespace}.{name}"


@dataclass(frozen=True, slots=True)
class OfferedFunction:
    """A function that the assistant may call."""

    tool: FunctionTool
    place: str
    """Its path in the body."""
    namespace: Namespace | None = None

    @property
    def name(self) -> str:
        """Return its name in the prompt."""
        return name_in_prompt(self.tool.name, None if self.namespace is None else self.namespace.name)

    @property
    def description(self) -> str | None:
        """Return its description in the prompt. The first function of a namespace has the namespace's, too."""
        of_all = self.namespace and self.tool is self.namespace.tools[0] and self.namespace.description
        return "\n".join([each for each in (of_all, self.tool.description) if each]) or None


def offered_functions(tools: Sequence[Tool]) -> Iterator[OfferedFunction]:
    """Yield the functions among the tools, and those in namespaces."""
    for i, tool in enumerate(tools):
        if isinstance(tool, FunctionTool):
            yield OfferedFunction(tool, f"tools[{i}]")
        elif isinstance(tool, Namespace):
            for j, function in enumerate(tool.tools):
                yield OfferedFunction(function, f"tools[{i}].tools[{j}]", tool)


class NamedTool(RequestModel):
    """A tool by its name; as tool_choice, the one that must be called."""

    type: Literal["function"] = Field(description='"function".')
    name: Text = Field(min_length=1, description="The tool's name.")


class AllowedTools(RequestModel):
    """The tools that may be called, among all in the prompt."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    mode: Literal["auto", "required"] = Field(description="Whether they may be called, or one of them must be.")
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)] = Field(
        description="The tools."
    )


ToolChoice = Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedTools, Field(discriminator="type")]
