"""Defines the bodies of POST /v1/completions and POST /v1/chat/completions, and their answers."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from lightwell.server.schemas.base import (
    TRUNCATE_PROMPT_TOKENS,
    AnswerModel,
    PromptInput,
    PromptTokens,
    RequestModel,
    Text,
    Usage,
    check_equal,
    wrong,
)
from lightwell.server.schemas.chat_fields import ChatFields
from lightwell.server.schemas.chat_messages import MAX_PARTS, TextPart
from lightwell.server.schemas.judgements.reasons import ChatExplainField, Reasons, SpanReasons
from lightwell.server.schemas.known_fields import (
    IGNORED_BY_CHAT,
    IGNORED_BY_COMPLETIONS,
    IGNORED_IN_STREAM_OPTIONS,
    REFUSED_BY_CHAT,
    REFUSED_BY_COMPLETIONS,
)
from lightwell.server.schemas.sampling import MAX_LOGPROBS, MAX_TOKENS, SamplingFields
from lightwell.server.schemas.structured_outputs import CanConstrain
from lightwell.server.schemas.thinking import EFFORT, Effort, ThinkingFields

MAX_CHOICES = 128
OUTPUT_LOGPROBS = "With return_token_ids: logprobs by token id, in the form of prompt_logprobs."


class StreamOptions(RequestModel):
    """Options of a stream."""

    IGNORED = IGNORED_IN_STREAM_OPTIONS

    include_usage: bool = Field(False, description="Send the usage in a last chunk with no choices.")
    continuous_usage_stats: bool = Field(
        False, description="With include_usage: send the usage so far with every chunk, as vLLM does."
    )


class GenerationFields(CanConstrain, SamplingFields):
    """Fields that both generation routes have."""

    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    n: int | None = Field(1, ge=1, le=MAX_CHOICES, description="Choices for each prompt.")
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Log-probabilities of the prompt's tokens, with this many alternatives.",
    )
    truncate: bool = Field(
        False,
        description="Drop the beginning of a prompt that does not fit (an encoder's: the end), instead of refusing it.",
    )
    truncate_prompt_tokens: PromptTokens | None = Field(None, description=TRUNCATE_PROMPT_TOKENS)
    return_token_ids: bool = Field(
        False, description="Add the token ids of prompt and answer, and with logprobs also output_logprobs."
    )

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> "GenerationFields":
        options = self.stream_options
        if options is not None and (options.include_usage or options.continuous_usage_stats) and not self.stream:
            raise wrong("stream_options", "stream_options is accepted only with stream true")
        return self

    @property
    def has_prediction(self) -> bool:
        """Return whether the body has a text that the answer may repeat."""
        return getattr(self, "prediction", None) is not None

    @property
    def include_usage(self) -> bool:
        """Return whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_as_it_goes(self) -> bool:
        """Return whether every chunk of a stream has the usage so far."""
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats


def definition_of(name: str) -> Any:
    """Return the definition of a field, its bounds and its description, for other APIs that have it."""
    return GenerationFields.model_fields[name]


class CompletionRequest(GenerationFields):
    """Body of POST /v1/completions."""

    IGNORED = IGNORED_BY_COMPLETIONS
    REFUSED = REFUSED_BY_COMPLETIONS

    prompt: PromptInput = Field(
        description="A text, a list of texts, token ids, or a list of token id lists. An encoder-decoder's encoder "
        "reads it."
    )
    decoder_input: PromptInput | None = Field(
        None,
        description="For encoder-decoders: input of the decoder, one for each prompt: text after its start token, or "
        "ids with it. Null is only the start token.",
    )
    max_tokens: int | None = Field(16, ge=0, le=MAX_TOKENS, description="Most tokens to generate; 0 only with echo.")
    echo: bool | None = Field(
        False, description="Begin the text with the prompt; of an encoder-decoder, with decoder_input."
    )
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="Log-probabilities of the tokens, with this many alternatives."
    )
    add_special_tokens: bool = Field(True, description="Let the tokenizer add its special tokens to a text prompt.")
    best_of: int | None = Field(None, description="Accepted when it equals n, which changes nothing.")

    @model_validator(mode="after")
    def _best_of_is_n(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise wrong("best_of", f"best_of {self.best_of} is not supported; leave it out, or give the value of n")
        if self.max_tokens == 0 and not self.echo:
            raise wrong("max_tokens", "max_tokens 0 generates nothing; at least 1 is accepted, or 0 with echo")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Return the number of alternatives of each token, or None for no log-probabilities."""
        return self.logprobs


class Prediction(RequestModel):
    """A text that an answer is expected to repeat in large parts."""

    type: Literal["content"] = Field("content", description="Kind of prediction.")
    content: Text | Annotated[list[TextPart], Field(max_length=MAX_PARTS)] = Field(description="The text.")

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part["text"] for part in self.content)


class ChatCompletionRequest(ChatFields, ThinkingFields, GenerationFields):
    """Body of POST /v1/chat/completions."""

    IGNORED = IGNORED_BY_CHAT
    REFUSED = REFUSED_BY_CHAT

    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Most tokens to generate; null is the rest of the context."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="OpenAI's newer name of max_tokens."
    )
    logprobs: bool | None = Field(False, description="Give log-probabilities of the tokens.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="This many alternatives with each token; needs logprobs."
    )
    reasoning_effort: Effort | None = Field(None, description=EFFORT)
    prediction: Prediction | None = Field(
        None, description="A text that the answer mostly repeats, as drafts (--speculation). The answer is the same."
    )
    explain: ChatExplainField = Field(
        None,
        description="Also return the reasons of the first 16 tokens of an answer without streaming; true uses the "
        'defaults. With {"by": "span"} the reasons of every sentence of the answer; a stream has them after the text.',
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> "ChatCompletionRequest":
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", f"top_logprobs {self.top_logprobs} is accepted only with logprobs true")
        check_equal({"max_completion_tokens": self.max_completion_tokens, "max_tokens": self.max_tokens})
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Return the number of alternatives of each token, or None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit_field(self) -> str:
        """Return the name of the field that limits the generated tokens."""
        is_newer = self.max_tokens is None and self.max_completion_tokens is not None
        return "max_completion_tokens" if is_newer else "max_tokens"


class CompletionChoice(AnswerModel):
    """One text."""

    index: int = Field(description="Number of the prompt times n, plus number of the choice.")
    text: str = Field(description="The text, or its new part in a stream.")
    finish_reason: Literal["stop", "length"] | None = Field(description="Reason of the end; null before it.")
    stop_reason: str | int | None = Field(None, description="The stop string or token id that ended it.")
    logprobs: dict[str, Any] | None = Field(
        description="tokens, token_logprobs, top_logprobs and text_offset; of two tokens with one text the second is "
        "named token_id:N."
    )
    output_logprobs: list[Any] | None = Field(None, description=OUTPUT_LOGPROBS)
    prompt_token_ids: list[int] | None = Field(None, description="With return_token_ids: the prompt's tokens.")
    prompt_logprobs: list[Any] | None = Field(None, description="One entry a prompt token, the first null.")
    attention: dict[str, Any] | None = Field(None, description="The rows that chose these tokens, when asked for.")


class CompletionAnswer(AnswerModel):
    """Answer of POST /v1/completions; in a stream, each event is one."""

    id: str = Field(description="Unique id.")
    object: Literal["text_completion"] = Field(description="Kind of answer.")
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="Name of the model.")
    choices: list[CompletionChoice] = Field(description="The texts, n for each prompt.")
    usage: Usage | None = Field(description="Token counts.")


class ChatChoice(AnswerModel):
    """One answer of the assistant; in a stream it has `delta` in place of `message`."""

    index: int = Field(description="Number of the choice.")
    message: dict[str, Any] | None = Field(
        None,
        description="role and content; tool_calls, where there are some, and content is then null if there is no text; "
        "reasoning_content and reasoning, the same twice, where the model thought.",
    )
    delta: dict[str, Any] | None = Field(None, description="Its new part, in a stream.")
    finish_reason: Literal["stop", "length", "tool_calls"] | None = Field(
        description="Reason of the end; null before it."
    )
    stop_reason: str | int | None = Field(None, description="The stop string or token id that ended it.")
    logprobs: dict[str, Any] | None = Field(description='{"content": [one entry a token]}.')
    output_logprobs: list[Any] | None = Field(None, description=OUTPUT_LOGPROBS)
    attention: dict[str, Any] | None = Field(None, description="The rows that chose these tokens, when asked for.")
    reasons: list[Reasons] | list[SpanReasons] | None = Field(
        None,
        description='With explain: why each of the first 16 tokens was likely; by "span", the spans of the messages '
        "that each sentence depends on, in a stream one sentence in each of the last chunks.",
    )


class ChatCompletionAnswer(AnswerModel):
    """Answer of POST /v1/chat/completions; in a stream, each event is one."""

    id: str = Field(description="Unique id.")
    object: Literal["chat.completion", "chat.completion.chunk"] = Field(description="Kind of answer.")
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="Name of the model.")
    choices: list[ChatChoice] = Field(description="The answers.")
    prompt_token_ids: list[int] | None = Field(None, description="With return_token_ids: the prompt's tokens.")
    usage: Usage | None = Field(description="Token counts.")
