"""Defines the body of POST /v1/responses, and its answer."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from lightwell.server.schemas.base import AnswerModel, JsonDict, RequestModel, Text, in_groups, wrong
from lightwell.server.schemas.chat_messages import MAX_MESSAGES
from lightwell.server.schemas.chat_templates import TEMPLATE_ARGUMENTS, TemplateArguments
from lightwell.server.schemas.known_fields import (
    IGNORED_BY_GENERATION,
    IGNORED_IN_STREAM_OPTIONS,
    REFUSED_BY_CHAT,
    Ignored,
    Refused,
    RefusedFields,
)
from lightwell.server.schemas.openai_responses.items import (
    MAX_TOOLS,
    RUNS_NO_TOOLS,
    InputItem,
    Tool,
    ToolChoice,
    WebSearch,
)
from lightwell.server.schemas.sampling import MAX_LOGPROBS, MAX_TOKENS, SamplingFields
from lightwell.server.schemas.thinking import EFFORT, Effort, ThinkingFields

MAX_INCLUDED = 32
_Label = Annotated[Text, Field(max_length=512)]
"""A text that each event repeats which holds the response."""
MAX_REPEATED = 1 << 20
"""Maximum total length of `instructions`, `text` and `tools`, which the events repeat."""
LOGPROBS = "message.output_text.logprobs"
"""The entry of `include` for log-probabilities."""

_OWN = (
    "tools", "tool_choice", "parallel_tool_calls", "reasoning", "metadata", "user", "safety_identifier",
    "prompt_cache_key",
)  # fmt: skip
"""Fields that mean more here than in a chat."""

IGNORED_BY_RESPONSES: Ignored = {
    **{name: why for name, why in IGNORED_BY_GENERATION.items() if name not in _OWN},
    "access_programs": "the server has no access programs",
    "prediction": "it changes only the speed, and only in chat completions",
    "image": "the server accepts only text",
    "client_metadata": "a label for the client's own use",
}

REFUSED_BY_RESPONSES: RefusedFields = {
    **{name: refused for name, refused in REFUSED_BY_CHAT.items() if name not in _OWN},
    **dict.fromkeys(
        ("previous_response_id", "conversation"),
        Refused("no conversations are stored: send the whole conversation as input"),
    ),
    "background": Refused("the server stores no responses"),
    "prompt": Refused("the server stores no prompts"),
    "context_management": Refused('use truncation "auto" to shorten a conversation'),
    "messages": Refused("use input instead"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), Refused("use max_output_tokens instead")),
    "response_format": Refused("use text.format instead", ({"type": "text"},)),
    "logprobs": Refused(f'include ["{LOGPROBS}"] returns them'),
    "truncate": Refused('use truncation "auto" instead'),
    **dict.fromkeys(
        ("truncate_prompt_tokens", "prompt_logprobs", "return_token_ids"), Refused("use POST /v1/chat/completions")
    ),
    "n": Refused("a response has one answer; use POST /v1/chat/completions for several", (1,)),
    "add_generation_prompt": Refused("an answer is always a new message", (True,)),
    "continue_final_message": Refused("an answer is always a new message; POST /v1/chat/completions can continue one"),
    "reasoning_effort": Refused("use reasoning.effort instead"),
}


class TextFormat(RequestModel):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"] = Field(
        description="text: anything; json_object: JSON; json_schema: JSON of this schema."
    )
    name: Text | None = Field(None, description="Name of the schema.")
    description: Text | None = Field(None, description="Description of the schema.")
    json_schema: JsonDict | None = Field(None, alias="schema", description="The JSON Schema.")
    strict: bool | None = Field(None, description="Keep to it exactly.")

    @model_validator(mode="after")
    def _schema_if_told(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            needed = "needs" if self.type == "json_schema" else "takes no"
            raise wrong("schema", f"the type {self.type!r} {needed} schema")
        return self


class TextConfig(RequestModel):
    """Format of the generated text."""

    REFUSED: ClassVar[RefusedFields] = {"verbosity": REFUSED_BY_CHAT["verbosity"]}

    format: TextFormat | None = Field(None, description="null is text, of any kind.")


class Reasoning(RequestModel):
    """How the assistant thinks."""

    REFUSED: ClassVar[RefusedFields] = {
        "summary": Refused("reasoning is not summarised", ("auto",)),
        "generate_summary": Refused("reasoning is not summarised"),
        "context": Refused("the chat template selects the reasoning that it includes", ("auto",)),
        "mode": Refused("there is only one mode", ("standard",)),
    }

    effort: Effort | None = Field(None, description=EFFORT)


class ResponseStreamOptions(RequestModel):
    """Options of a stream. There is nothing that can be set here."""

    IGNORED: ClassVar[Ignored] = {
        **IGNORED_IN_STREAM_OPTIONS,
        "include_usage": "the last event always contains the usage",
    }


Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]

_ECHOED = "A label of the client's own; the answer repeats it."


def _num_characters(value: Any) -> int:
    total, stack = 0, [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list | dict):
            stack += value if isinstance(value, list) else [*value, *value.values()]
        elif isinstance(value, RequestModel):
            stack += value.__dict__.values()
    return total


class ResponsesRequest(ThinkingFields, SamplingFields):
    """Body of POST /v1/responses."""

    IGNORED = IGNORED_BY_RESPONSES
    REFUSED = REFUSED_BY_RESPONSES

    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        description="The user's message, or the conversation so far: messages, calls of tools and their results, "
        "reasoning."
    )
    instructions: Text | None = Field(None, description="The system's message, before all others.")
    max_output_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Most tokens to generate; null is the rest of the context."
    )
    text: TextConfig | None = Field(None, description="How the text is written.")
    reasoning: Reasoning | None = Field(None, description="How the assistant thinks.")
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="Tools that the assistant may call, and the client runs."
    )
    tool_choice: ToolChoice | None = Field(
        None, description="Whether a tool is called, which one, or which may be; null is auto."
    )
    parallel_tool_calls: bool | None = Field(None, description="Allow several calls in one answer; null is true.")
    include: Annotated[list[Includable], Field(max_length=MAX_INCLUDED, fail_fast=True)] | None = Field(
        None,
        description="message.output_text.logprobs adds the log-probabilities of the text's tokens. The others change "
        "nothing: reasoning is never encrypted, and there are no such tools.",
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"Number of alternatives with each token; {LOGPROBS} returns them."
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto drops the beginning of a prompt that does not fit; null is disabled."
    )
    stream_options: ResponseStreamOptions | None = Field(None, description="Options of a stream.")
    chat_template_kwargs: TemplateArguments | None = Field(None, description=TEMPLATE_ARGUMENTS)
    metadata: (
        Annotated[
            dict[Annotated[Text, Field(max_length=64)], Annotated[Text, Field(max_length=512)]],
            Field(max_length=16),
            in_groups(16),
        ]
        | None
    ) = Field(None, description=_ECHOED)
    max_tool_calls: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Of calls that a server makes, and this one makes none."
    )
    user: _Label | None = Field(None, description=_ECHOED)
    safety_identifier: _Label | None = Field(None, description=_ECHOED)
    prompt_cache_key: _Label | None = Field(None, description=_ECHOED)

    @model_validator(mode="after")
    def _fields_agree(self) -> "ResponsesRequest":
        if self.top_logprobs and not self.gives_logprobs:
            raise wrong("top_logprobs", f'top_logprobs {self.top_logprobs} needs include ["{LOGPROBS}"]')
        if self.tools and all(isinstance(tool, WebSearch) for tool in self.tools):
            said = f"{self.tools[0].type!r} is not supported: {RUNS_NO_TOOLS}; it is dropped if there are functions"
            raise wrong("tools[0].type", said)
        sizes = {name: _num_characters(getattr(self, name)) for name in ("instructions", "text", "tools")}
        if (size := sum(sizes.values())) > MAX_REPEATED:
            said = f"instructions, text and tools have {size} characters together; at most {MAX_REPEATED} are accepted"
            raise wrong(max(sizes, key=sizes.__getitem__), said)
        return self

    @property
    def gives_logprobs(self) -> bool:
        """Return whether the text comes with the log-probabilities of its tokens."""
        return LOGPROBS in (self.include or [])


class ResponseUsage(AnswerModel):
    """Tokens of one response."""

    input_tokens: int = Field(description="Tokens of the conversation so far.")
    input_tokens_details: dict[str, int] = Field(description="cached_tokens: those from the prefix cache.")
    output_tokens: int = Field(description="Tokens generated.")
    output_tokens_details: dict[str, int] = Field(description="reasoning_tokens: tokens of the reasoning.")
    total_tokens: int = Field(description="Their sum.")


class ResponsesAnswer(AnswerModel):
    """Answer of POST /v1/responses; the events of a stream hold it, or parts of it."""

    id: str = Field(description="Unique id; nothing is kept under it.")
    object: Literal["response"] = Field(description="Kind of answer.")
    created_at: int = Field(description="Unix time in seconds.")
    status: Literal["in_progress", "completed", "incomplete", "failed"] = Field(description="How it ended.")
    model: str = Field(description="Name of the model.")
    output: list[dict[str, Any]] = Field(
        description="Items: reasoning, message and function_call. Requested numbers of the network are in their "
        "parts, as `attention`."
    )
    error: dict[str, Any] | None = Field(description="Why it failed.")
    incomplete_details: dict[str, Any] | None = Field(description="reason: max_output_tokens.")
    usage: ResponseUsage | None = Field(description="Token counts.")
