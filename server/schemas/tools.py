"""Defines the tools of a conversation and how they may be chosen, in OpenAI's form."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from lightwell.server.http.errors import shown
from lightwell.server.schemas.base import RequestModel, Text, encodable, wrong
from lightwell.server.schemas.known_fields import IGNORED_IN_TOOLS

MAX_TOOLS = 128
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_VALUES = 4096
"""Most names and values in the schema of one tool."""

ToolName = Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_.\-]{1,128}$", description="Letters, digits, _, . and -.")]


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [schema]
    num_values = depth = 0
    while level:
        inner: list[Any] = []
        for value in level:
            if isinstance(value, str):
                encodable(value)
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, dict):
                inner += [*value, *value.values()]
        num_values += len(inner)
        if num_values > MAX_SCHEMA_VALUES:
            raise ValueError(
                f"the schema has more than {MAX_SCHEMA_VALUES} names and values, the largest accepted number"
            )
        depth += any(isinstance(value, list | dict) for value in inner)
        if depth > MAX_SCHEMA_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels, the largest accepted depth")
        level = inner
    if schema.get("type", "object") != "object":
        raise ValueError('the arguments of a call are an object, so the schema must have "type": "object"')
    return schema


class FunctionDefinition(RequestModel):
    """The name, description and parameters of a tool."""

    name: ToolName
    description: Text | None = Field(None, description="Description of the tool, for the model.")
    parameters: Annotated[dict[str, Any], AfterValidator(_check_schema)] | None = Field(
        None, description="JSON schema of the arguments, an object; null is one that takes none."
    )
    strict: bool | None = Field(
        None,
        description="Refuse the schema if an answer cannot be held to all of it. Otherwise such keywords are only "
        "shown to the model.",
    )


class ToolDefinition(RequestModel):
    """A tool that the model may call."""

    IGNORED = IGNORED_IN_TOOLS

    type: Literal["function"] = Field(description='"function".')
    function: FunctionDefinition = Field(description="The function.")

    def as_template_input(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        function = {
            "name": self.function.name,
            "description": self.function.description or "",
            "parameters": self.function.parameters or {"type": "object", "properties": {}},
        }
        return {"type": "function", "function": function}


def check_names(tools: Iterable[ToolDefinition]) -> None:
    """Raise PydanticCustomError for a name that two tools have."""
    names: set[str] = set()
    for number, tool in enumerate(tools):
        name = tool.function.name
        if name in names:
            raise wrong(
                f"tools[{number}].function.name", f"two tools have the name {name!r}; each name is accepted once"
            )
        names.add(name)


Tools = Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)]
TOOLS = "Tools that the model may call: functions, with JSON schemas of their arguments."


class FunctionName(RequestModel):
    """A function by its name."""

    name: Text = Field(description="Name of one of the tools.")


class NamedTool(RequestModel):
    """A tool by its name; as tool_choice, the tool that must be called."""

    type: Literal["function"] = Field(description='"function".')
    function: FunctionName = Field(description="The function.")


class AllowedTools(RequestModel):
    """Some of the tools."""

    mode: Literal["auto", "required"] = Field(description="Whether they may be called, or one of them must be.")
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)] = Field(description="The tools.")


class AllowedToolChoice(RequestModel):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"] = Field(description='"allowed_tools".')
    allowed_tools: AllowedTools = Field(description="The tools.")


ToolChoice = Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedToolChoice, Field(discriminator="type")]


class ToolFields(RequestModel):
    """The fields of a chat about tools and reasoning."""

    tools: Tools | None = Field(None, description=TOOLS)
    tool_choice: ToolChoice | None = Field(
        None,
        description="auto (also null): the model may call tools; none: it sees no tools; required: it calls at least "
        "one; or the tool to call, or the permitted tools.",
    )
    parallel_tool_calls: bool = Field(True, description="Let an answer call several tools.")
    include_reasoning: bool = Field(True, description="Return the assistant's reasoning before its answer.")

    @model_validator(mode="after")
    def _chosen_tools_are_there(self) -> "ToolFields":
        check_names(self.tools or ())
        there = [tool.function.name for tool in self.tools or ()]
        if self.tool_choice == "required" and not there:
            raise wrong("tool_choice", "tool_choice required needs tools")
        for name in self._chosen_names or ():
            if name not in there:
                raise wrong("tool_choice", f"there is no tool {shown(name)}; tools has {', '.join(there) or 'none'}")
        return self

    @property
    def _chosen_names(self) -> list[str] | None:
        if isinstance(self.tool_choice, NamedTool):
            return [self.tool_choice.function.name]
        if isinstance(self.tool_choice, AllowedToolChoice):
            return [tool.function.name for tool in self.tool_choice.allowed_tools.tools]
        return None

    @property
    def shown_tools(self) -> list[ToolDefinition]:
        """Return the tools that the model sees."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def callable_tools(self) -> dict[int, ToolDefinition]:
        """Return the tools that the answer may call, by their numbers in `tools`."""
        chosen = self._chosen_names
        tools = enumerate(self.shown_tools)
        return {number: tool for number, tool in tools if chosen is None or tool.function.name in chosen}

    @property
    def must_call(self) -> bool:
        """Return whether the answer is one call at least."""
        choice = self.tool_choice
        if isinstance(choice, AllowedToolChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or isinstance(choice, NamedTool)

    @property
    def may_call_several(self) -> bool:
        return self.parallel_tool_calls and not isinstance(self.tool_choice, NamedTool)
