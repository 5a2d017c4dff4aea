"""Defines the bodies of Ollama's routes under /api, and their answers.

The sampling options have the bounds of `GenerationFields`.
"""

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from lightwell.server.schemas.base import (
    MAX_PROMPTS,
    AnswerModel,
    ModelField,
    RequestModel,
    RunFields,
    Text,
    Texts,
    check_equal,
    encodable,
    wrong,
)
from lightwell.server.schemas.chat_messages import MAX_MESSAGES
from lightwell.server.schemas.chat_templates import TEMPLATE_ARGUMENTS, TemplateArguments
from lightwell.server.schemas.generation import definition_of
from lightwell.server.schemas.inspect.interventions import CanIntervene
from lightwell.server.schemas.known_fields import REFUSED_BY_GENERATION, Ignored, Refused, RefusedFields
from lightwell.server.schemas.sampling import (
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
    MAX_TOKENS,
    GenerationAttention,
    StopString,
)

MAX_TOOLS = 128
MAX_CALL_VALUES = 5000
"""Most values in all tool calls of a conversation: they are checked, and written as JSON, in one go."""

_LOADED = "the server's settings determine the loading of the model"
_NO_IMAGES = Refused("the server does not accept images")

_IGNORED_OPTIONS: Ignored = {
    **dict.fromkeys(
        ("num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "use_mmap", "use_mlock"),
        _LOADED,
    ),
    **dict.fromkeys(("vocab_only", "embedding_only", "logits_all"), _LOADED),
    "num_ctx": "the model and --max-model-len determine the context",
    "num_keep": "the context is not shifted; an answer ends at its end",
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), "an option of a sampler that is not supported"),
}

_REFUSED_OPTIONS: RefusedFields = {
    "mirostat": REFUSED_BY_GENERATION["mirostat"],
    "tfs_z": Refused("this sampler is not supported; use temperature, top_k, top_p and min_p", (1,)),
    "typical_p": Refused("this sampler is not supported; use temperature, top_k, top_p and min_p", (1,)),
    "repeat_last_n": Refused("penalties always apply to the whole text", (-1,)),
    "penalize_newline": Refused("a newline is penalised like any other token", (True,)),
}

_REFUSED_BY_TEXT: RefusedFields = {"shift": Refused("the context is not shifted; an answer ends at its end")}

_REFUSED_BY_GENERATE: RefusedFields = {
    **_REFUSED_BY_TEXT,
    "suffix": Refused("filling in the middle is not available"),
    "template": Refused("only the model and --chat-template set the chat template; raw true uses none"),
    "context": Refused("answers contain no context: send earlier turns as messages of POST /api/chat"),
    "images": _NO_IMAGES,
    **dict.fromkeys(("width", "height", "steps"), Refused("the server does not generate images")),
}

_IGNORED_BY_EMBED: Ignored = {"options": "embeddings are not sampled"}


_TRUNCATED = "true if a text was too long and a part of it was left out; else the field is absent."


_DURATION = re.compile(r"-?(?:\d+(?:\.\d*)?(?:ns|us|ms|s|m|h))+|-?\d+")
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: float | str) -> float:
    """Read a duration of Go, such as "1h30m", or a number of seconds."""
    if isinstance(value, str):
        if not _DURATION.fullmatch(value) or len(value) > 40:
            raise ValueError(
                'a number of seconds, or a duration such as "5m", is accepted; a negative number means no limit'
            )
        parts = re.findall(r"(\d+(?:\.\d*)?)([a-z]*)", value)
        total = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
        value = -total if value.startswith("-") else total
    return min(float(value), 1e9)


class KeepsModel(RequestModel):
    """The field of all requests that load a model."""

    keep_alive: Annotated[float | str, AfterValidator(_seconds)] | None = Field(
        None,
        description="Unload the model when it was unused for this long: seconds or a duration such as 5m; 0 is at "
        "once, negative never. The only model of a server stays loaded.",
    )


class OllamaOptions(RequestModel):
    """How tokens are chosen, by Ollama's names."""

    IGNORED = _IGNORED_OPTIONS
    REFUSED = _REFUSED_OPTIONS

    temperature: float | None = definition_of("temperature")
    top_p: float | None = definition_of("top_p")
    top_k: int | None = definition_of("top_k")
    min_p: float | None = definition_of("min_p")
    repeat_penalty: float | None = definition_of("repetition_penalty")
    presence_penalty: float | None = definition_of("presence_penalty")
    frequency_penalty: float | None = definition_of("frequency_penalty")
    seed: int | None = definition_of("seed")
    speculation: bool = definition_of("speculation")
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = definition_of("stop")
    num_predict: int | None = Field(
        None,
        ge=-2,
        le=MAX_TOKENS,
        description="Most tokens to generate; null, -1 and -2 are the rest of the context.",
    )

    @field_validator("num_predict")
    @classmethod
    def _not_nothing(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("0 generates no tokens; at least 1 is accepted, or -1 for the rest of the context")
        return value


class OllamaTextFields(CanIntervene, KeepsModel, RunFields):
    """Fields that both routes have that write text."""

    REFUSED = _REFUSED_BY_TEXT

    stream: bool = Field(True, description="Answer with one line of JSON a token; false for one object.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description='Format of the answer: "json" for any JSON object, or a JSON schema.'
    )
    options: OllamaOptions | None = Field(None, description="How tokens are chosen.")
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None,
        description="Whether the model thinks, which is enable_thinking of its chat template, or how much, as "
        "reasoning_effort of POST /v1/chat/completions; false is a budget of 0 tokens.",
    )
    logprobs: bool | None = Field(False, description="Give log-probabilities of the tokens.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="This many alternatives with each token; needs logprobs."
    )
    truncate: bool = definition_of("truncate")
    attention: GenerationAttention | None = definition_of("attention")
    chat_template_kwargs: TemplateArguments | None = Field(None, description=TEMPLATE_ARGUMENTS)

    @model_validator(mode="after")
    def _fields_agree(self) -> "OllamaTextFields":
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", f"top_logprobs {self.top_logprobs} is accepted only with logprobs true")
        argument = (self.chat_template_kwargs or {}).get("enable_thinking")
        think = None if self.think is None else bool(self.think)
        check_equal({"enable_thinking of chat_template_kwargs": argument, "think": think})
        return self


def _writable(arguments: dict[str, Any]) -> dict[str, Any]:
    encodable(json.dumps(arguments, ensure_ascii=False))
    return arguments


class OllamaFunction(RequestModel):
    """The function of a tool call."""

    IGNORED: ClassVar[Ignored] = {"index": "calls keep their order"}

    name: Text = Field(description="The tool's name.")
    arguments: Annotated[dict[str, Any], AfterValidator(_writable)] = Field(
        default_factory=dict, description="Arguments of the call."
    )


class OllamaToolCall(RequestModel):
    """One call of a tool by the assistant."""

    IGNORED: ClassVar[Ignored] = {"type": "all tools are functions"}

    id: Text | None = Field(None, description="Its id; null gives it one.")
    function: OllamaFunction = Field(description="The called function.")


class OllamaMessage(RequestModel):
    """One message of a conversation."""

    REFUSED: ClassVar[RefusedFields] = {"images": _NO_IMAGES}

    role: Text = Field(min_length=1, description="Who speaks: the roles are those the model's chat template knows.")
    content: Text = Field("", description="The text.")
    thinking: Text | None = Field(None, description="The assistant's reasoning before its answer.")
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True)] | None = Field(
        None, description="The tools that the assistant called."
    )
    tool_name: Text | None = Field(None, description="In a tool's message: the tool with this result.")
    tool_call_id: Text | None = Field(
        None, description="Of a tool's message: the call that it answers; null is the next one of that tool."
    )


class OllamaChatRequest(OllamaTextFields):
    """Body of POST /api/chat."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] = Field(
        default_factory=list, description="The conversation so far; an empty one loads the model."
    )
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="The tools that the assistant may call, as POST /v1/chat/completions takes them."
    )

    @field_validator("messages", mode="before")
    @classmethod
    def _few_calls(cls, messages: Any) -> Any:
        given = messages if isinstance(messages, list) else []
        left = [each.get("tool_calls") for each in given if isinstance(each, dict)]
        num_values = 0
        while left:
            value = left.pop()
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            num_values += len(inner)
            if num_values > MAX_CALL_VALUES:
                raise ValueError(f"the tool calls have more than {MAX_CALL_VALUES} values, the largest accepted number")
            left.extend(inner)
        return messages


class OllamaGenerateRequest(OllamaTextFields):
    """Body of POST /api/generate."""

    REFUSED = _REFUSED_BY_GENERATE

    prompt: Text = Field("", description="The text; an empty one loads the model.")
    system: Text | None = Field(None, description="A message to the model before the prompt.")
    raw: bool = Field(
        False, description="Continue the prompt as it is; false wraps it into the chat template, if the model has one."
    )

    @model_validator(mode="after")
    def _raw_is_bare(self) -> "OllamaGenerateRequest":
        taken = {"system": self.system, "think": self.think, "chat_template_kwargs": self.chat_template_kwargs}
        for name, value in taken.items():
            if self.raw and value:
                raise wrong(name, f"{name} is used by the chat template, which raw true switches off; leave it out")
        return self


class OllamaEmbedRequest(KeepsModel, RunFields):
    """Body of POST /api/embed."""

    IGNORED = _IGNORED_BY_EMBED

    input: Text | Texts = Field(description=f"A text, or a list of at most {MAX_PROMPTS}.")
    truncate: bool = Field(True, description="Cut the end of a text that is over the limit, instead of refusing it.")
    dimensions: int | None = Field(None, ge=1, le=2**31 - 1, description="Keep the first n numbers of each vector.")


class OllamaEmbeddingsRequest(KeepsModel, RunFields):
    """Body of POST /api/embeddings, the route before /api/embed."""

    IGNORED = _IGNORED_BY_EMBED

    prompt: Text = Field(description="The text.")


class OllamaShowRequest(ModelField):
    """Body of POST /api/show."""

    IGNORED: ClassVar[Ignored] = {"verbose": "the answer is always complete"}

    name: Text | None = Field(None, description="The name of model in older clients.")

    @model_validator(mode="after")
    def _names_agree(self) -> "OllamaShowRequest":
        check_equal({"model": self.model, "name": self.name})
        return self


class OllamaTimes(AnswerModel):
    """The fields of every answer that ran the model: its name, and durations in nanoseconds."""

    model: str = Field(description="Name of the model, as the client wrote it.")
    total_duration: int | None = Field(None, description="Nanoseconds since the request came.")
    load_duration: int | None = Field(None, description="0: the model is loaded.")
    prompt_eval_count: int | None = Field(None, description="Tokens of the prompt.")
    truncated: bool | None = Field(None, description=_TRUNCATED)


class OllamaTextAnswer(OllamaTimes):
    """The answer of both routes that generate text; in a stream, each line is such an object."""

    created_at: str = Field(description="The time, as RFC 3339 writes it.")
    done: bool = Field(description="Whether this is all, or a stream's last line.")
    done_reason: Literal["stop", "length", "load", "unload"] | None = Field(None, description="Why it ended.")
    prompt_eval_duration: int | None = Field(None, description="Nanoseconds until the first token.")
    eval_count: int | None = Field(None, description="Tokens of the answer.")
    eval_duration: int | None = Field(None, description="Nanoseconds from the first token to the last.")
    logprobs: list[Any] | None = Field(None, description="One entry a token.")
    attention: dict[str, Any] | None = Field(None, description="The rows that chose these tokens, when asked for.")


class OllamaChatAnswer(OllamaTextAnswer):
    """Answer of POST /api/chat."""

    message: dict[str, Any] = Field(description="role, content, thinking and tool_calls, or their new parts.")


class OllamaGenerateAnswer(OllamaTextAnswer):
    """Answer of POST /api/generate."""

    response: str = Field(description="The text, or its new part in a stream.")
    thinking: str | None = Field(None, description="The model's reasoning before its answer.")


class OllamaEmbedAnswer(OllamaTimes):
    """Answer of POST /api/embed."""

    embeddings: list[list[float | None]] = Field(description="One vector of length 1 a text.")


class OllamaEmbeddingsAnswer(AnswerModel):
    """Answer of POST /api/embeddings."""

    embedding: list[float | None] = Field(description="The text's vector.")
    truncated: bool | None = Field(None, description=_TRUNCATED)


class OllamaErrorAnswer(AnswerModel):
    """The shape of every error under /api."""

    error: str = Field(description="Names the rejected value and the accepted values.")
