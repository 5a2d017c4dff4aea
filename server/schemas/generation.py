"""Defines the bodies of POST /v1/completions and POST /v1/chat/completions, and their answers."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from server.schemas.attention import AttentionFields
from server.schemas.base import (
    TRUNCATE_PROMPT_TOKENS,
    AnswerModel,
    Messages,
    PromptInput,
    PromptTokens,
    RequestModel,
    RunFields,
    TokenId,
    Usage,
    encodable,
    wrong,
)
from server.schemas.chat_templates import TEMPLATE_ARGUMENTS, TemplateArguments
from server.schemas.interventions import CanIntervene
from server.schemas.known_fields import (
    IGNORED_BY_CHAT,
    IGNORED_BY_COMPLETIONS,
    IGNORED_IN_STREAM_OPTIONS,
    REFUSED_BY_CHAT,
    REFUSED_BY_COMPLETIONS,
)
from server.schemas.tools import ToolFields

MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_TOKENS = 2**31 - 1
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

StopString = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(encodable)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]


class StreamOptions(RequestModel):
    """Options of a stream."""

    IGNORED = IGNORED_IN_STREAM_OPTIONS

    include_usage: bool = Field(False, description="Send the usage in a last chunk with no choices.")
    continuous_usage_stats: bool = Field(
        False, description="With include_usage: send the usage so far with every chunk, as vLLM does."
    )


class GenerationAttention(AttentionFields):
    """Attention sent with the tokens that it chose: the row of the position before each token, over all keys so far."""

    part: Literal["decoder", "cross"] | None = Field(
        None, description="decoder (null is that): over all tokens so far; cross: over what the encoder has read."
    )
    prompt: bool = Field(False, description="Also the prompt's rows, once, with the first token.")


class GenerationFields(CanIntervene, RunFields):
    """Fields that both generation routes have."""

    stream: bool | None = Field(False, description="Answer with server-sent events, one a token.")
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    n: int | None = Field(1, ge=1, le=MAX_CHOICES, description="Choices for each prompt.")
    temperature: float | None = Field(
        None, ge=0.0, le=100.0, description="0 is greedy and exact; null is the model's own, or 1."
    )
    top_p: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="Keep the most likely tokens of this probability mass; null is the model's own, or 1.",
    )
    top_k: int | None = Field(
        None,
        ge=-1,
        le=MAX_TOKENS,
        description="Keep the k most likely tokens; 0 or -1 keeps all; null is the model's own, or 0.",
    )
    min_p: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="Drop tokens below this fraction of the likeliest; null is the model's own, or 0.",
    )
    repetition_penalty: float | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="Over 1 makes tokens of the prompt and answer less likely; null is the model's own, or 1.",
    )
    presence_penalty: float | None = Field(
        None,
        ge=-2.0,
        le=2.0,
        description="Taken once from the logit of each generated token; null is the model's own, or 0.",
    )
    frequency_penalty: float | None = Field(
        None,
        ge=-2.0,
        le=2.0,
        description="Taken from the logit of a token each time it was generated; null is the model's own, or 0.",
    )
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_LOGIT_BIAS)] | None = Field(
        None, description="Token id to a number from -100 to 100 that is added to its logit."
    )
    seed: int | None = Field(
        None,
        ge=-(2**63),
        le=2**63 - 1,
        description="Same seed, same tokens, whatever else runs; null draws one. Of n choices the first is that of "
        "n = 1, and each other draws its own numbers.",
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = Field(
        None, description="Strings that end the answer; they are not part of it."
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = Field(
        None, description="Token ids that end the answer."
    )
    include_stop_str_in_output: bool = Field(False, description="Keep the stop string or token in the text.")
    ignore_eos: bool = Field(False, description="Generate beyond the end-of-text token.")
    min_tokens: int | None = Field(
        0, ge=0, le=MAX_TOKENS, description="Neither a token nor a stop string ends the answer before this many tokens."
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Log-probabilities of the prompt's tokens, with this many alternatives.",
    )
    skip_special_tokens: bool = Field(True, description="Leave special tokens out of the text.")
    truncate: bool = Field(
        False,
        description="Drop the beginning of a prompt that does not fit (an encoder's: the end), instead of refusing it.",
    )
    truncate_prompt_tokens: PromptTokens | None = Field(None, description=TRUNCATE_PROMPT_TOKENS)
    return_token_ids: bool = Field(False, description="Add the token ids to each choice.")
    attention: GenerationAttention | None = Field(
        None, description="Attention rows that come with each token, from inside the running batch."
    )

    @field_validator("logit_bias")
    @classmethod
    def _bias_keys_are_token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not _TOKEN_ID.fullmatch(key):
                raise ValueError(f"{key[:20]!r} is no token id; keys must be token ids such as '42'")
        return value

    @field_validator("top_k")
    @classmethod
    def _minus_one_keeps_all(cls, value: int | None) -> int | None:
        return None if value is None else max(value, 0)

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> "GenerationFields":
        options = self.stream_options
        if options is not None and (options.include_usage or options.continuous_usage_stats) and not self.stream:
            raise wrong("stream_options", "stream_options is accepted with stream true only")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Return `stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Return whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_as_it_goes(self) -> bool:
        """Return whether every chunk of a stream has the usage so far."""
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats


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
        description="For encoder-decoders, what the decoder has read already, one for each prompt: text after its "
        "start token, or ids with it. Null is the start token alone.",
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
        """Return how many alternatives are asked for with each token, or None for no log-probabilities."""
        return self.logprobs


class ChatCompletionRequest(ToolFields, GenerationFields):
    """Body of POST /v1/chat/completions."""

    IGNORED = IGNORED_BY_CHAT
    REFUSED = REFUSED_BY_CHAT

    messages: Messages = Field(description="The conversation so far.")
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
    add_generation_prompt: bool = Field(True, description="Let the template open the assistant's answer.")
    chat_template_kwargs: TemplateArguments | None = Field(None, description=TEMPLATE_ARGUMENTS)

    @model_validator(mode="after")
    def _fields_agree(self) -> "ChatCompletionRequest":
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", f"top_logprobs {self.top_logprobs} needs logprobs true")
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            raise wrong(
                "max_tokens",
                f"max_tokens {self.max_tokens} and max_completion_tokens {self.max_completion_tokens} differ",
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Return how many alternatives are asked for with each token, or None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionChoice(AnswerModel):
    """One text."""

    index: int = Field(description="Number of the prompt times n, plus number of the choice.")
    text: str = Field(description="The text, or what is new of it.")
    finish_reason: Literal["stop", "length"] | None = Field(description="Why it ended; null while it goes on.")
    stop_reason: str | int | None = Field(None, description="The stop string or token id that ended it.")
    logprobs: dict[str, Any] | None = Field(
        description="tokens, token_logprobs, top_logprobs and text_offset; of two tokens with one text the second is "
        "named token_id:N."
    )
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
    delta: dict[str, Any] | None = Field(None, description="What is new of it, in a stream.")
    finish_reason: Literal["stop", "length", "tool_calls"] | None = Field(
        description="Why it ended; null while it goes on."
    )
    stop_reason: str | int | None = Field(None, description="The stop string or token id that ended it.")
    logprobs: dict[str, Any] | None = Field(description='{"content": [one entry a token]}.')
    attention: dict[str, Any] | None = Field(None, description="The rows that chose these tokens, when asked for.")


class ChatCompletionAnswer(AnswerModel):
    """Answer of POST /v1/chat/completions; in a stream, each event is one."""

    id: str = Field(description="Unique id.")
    object: Literal["chat.completion", "chat.completion.chunk"] = Field(description="Kind of answer.")
    created: int = Field(description="Unix time in seconds.")
    model: str = Field(description="Name of the model.")
    choices: list[ChatChoice] = Field(description="The answers.")
    usage: Usage | None = Field(description="Token counts.")
