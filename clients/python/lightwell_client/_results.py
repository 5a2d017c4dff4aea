"""Answers of the JSON routes, as frozen types. A field the server adds is kept in `model_extra`, and is never an
error.

It knows the wire's fields; it does no input or output. Answers that are arrays are in _attention and _embeddings.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AliasChoices, BeforeValidator, Field

from lightwell_client._reasons import Reasons, SpanReasons
from lightwell_client._result import Result
from lightwell_client._text_view import TextView
from lightwell_client._token_attention import MaybeTokenAttention


class Usage(Result):
    """Token counts of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class Logprob(Result):
    """One token at a position: its log-probability (natural), its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


RankedLogprobs = list[dict[int, Logprob] | None]
"""vLLM's form: for each token, the chosen token and the likeliest ones by token id; None for a prompt's first token."""


class Output(Result):
    """A choice by vLLM's names."""

    index: int = 0
    text: str
    token_ids: list[int] | None = None
    cumulative_logprob: float | None = None
    """Sum of the log-probabilities of the tokens."""
    logprobs: RankedLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @classmethod
    def of(cls, choice: "CompletionChoice | ChatChoice") -> Self:
        """Return a choice by vLLM's names. token_ids, logprobs: None without `return_token_ids`."""
        logprobs, total = choice.output_logprobs, None
        if logprobs is not None:
            total = sum(next(iter(entry.values())).logprob for entry in logprobs if entry)  # the first is the chosen
        return cls(
            index=choice.index,
            text=choice.text,
            token_ids=choice.token_ids,
            cumulative_logprob=total,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )


class CompletionLogprobs(Result):
    """Natural logarithms, one entry per token; the first is None if there is nothing before it."""

    tokens: list[str] = Field(default_factory=list)
    token_logprobs: list[float | None] = Field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] = Field(default_factory=list)


class CompletionChoice(Result):
    """One text, or in a chunk the part of it that is new."""

    index: int = 0
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | None = None
    """With return_token_ids: the generated tokens."""
    output_logprobs: RankedLogprobs | None = None
    """With return_token_ids and logprobs: of the generated tokens, by token id."""
    prompt_token_ids: list[int] | None = None
    """With return_token_ids: the tokens of its prompt."""
    prompt_logprobs: RankedLogprobs | None = None
    attention: MaybeTokenAttention = None
    """The rows that chose these tokens, when asked for."""


class Completion(Result, TextView):
    """The answer to `generate`; choices are numbered prompt by prompt, `n` for each."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[CompletionChoice] = Field(min_length=1)
    usage: Usage | None = None
    prompt: str | None = None
    """The prompt's text; None in a server's answer."""

    @property
    def outputs(self) -> list[Output]:
        """Return the choices, by vLLM's names."""
        return [Output.of(choice) for choice in self.choices]

    @property
    def prompt_token_ids(self) -> list[int] | None:
        """Return the first prompt's tokens, with `return_token_ids`."""
        return self.choices[0].prompt_token_ids

    @property
    def prompt_logprobs(self) -> RankedLogprobs | None:
        """Return the log-probabilities of the first prompt's tokens, which `prompt_logprobs` requests."""
        return self.choices[0].prompt_logprobs

    @property
    def text(self) -> str:
        """Return the first choice's text."""
        return self.choices[0].text

    def _texts(self) -> Sequence[tuple[str, CompletionChoice]]:
        return [(choice.text, choice) for choice in self.choices]


class CompletionChunk(Result):
    """One event of `stream`. The chunk with the usage has no choices."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[CompletionChoice] = Field(default_factory=list)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """Return the new text; with several choices, `choices[0].index` is the choice it belongs to."""
        return "".join(choice.text for choice in self.choices)


class CalledFunction(Result):
    """The called function and its arguments."""

    name: str
    arguments: str
    """The arguments, as the text of a JSON object; where the answer was cut off, a part of it."""


class ToolCall(Result):
    """A call that your program answers, with a message {"role": "tool", "tool_call_id": its id, "content": ...}."""

    id: str
    type: str = "function"
    function: CalledFunction


class CalledFunctionDelta(Result):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Result):
    """The new part of one call: its first delta has the id and the name, and all of them have arguments to join."""

    index: int = 0
    """Number of the call within its message."""
    id: str | None = None
    function: CalledFunctionDelta = CalledFunctionDelta()


Reasoning = Annotated[str | None, Field(default=None, validation_alias=AliasChoices("reasoning", "reasoning_content"))]
"""The model's reasoning before its answer, separate from `content`; None without reasoning."""
EmptyIfNull = BeforeValidator(lambda value: [] if value is None else value)


class ChatMessage(Result):
    """A message of the assistant. It may be one of the messages of the next request."""

    role: str = "assistant"
    content: str | None = None
    reasoning: Reasoning = None
    tool_calls: Annotated[list[ToolCall], EmptyIfNull] = Field(default_factory=list)

    @classmethod
    def from_chunks(cls, chunks: "Iterable[ChatChunk]", index: int = 0) -> Self:
        """Return the message that the chunks of a stream add up to: of choice `index`, if `n` asked for several."""
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices if choice.index == index]
        calls: dict[int, dict[str, Any]] = {}
        for call in (call for delta in deltas for call in delta.tool_calls):
            whole = calls.setdefault(call.index, {"id": "", "function": {"name": "", "arguments": ""}})
            whole["id"] = whole["id"] or call.id or ""
            whole["function"]["name"] = whole["function"]["name"] or call.function.name or ""
            whole["function"]["arguments"] += call.function.arguments or ""
        fields: dict[str, Any] = {
            "content": "".join(delta.content or "" for delta in deltas) or None,
            "reasoning": "".join(delta.reasoning or "" for delta in deltas) or None,
            "tool_calls": [calls[number] for number in sorted(calls)],
        }
        return cls.model_validate({"role": "assistant"} | {name: value for name, value in fields.items() if value})


class TopLogprob(Result):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob] = Field(default_factory=list)


class ChatLogprobs(Result):
    """Natural logarithms, one entry per token."""

    content: list[TokenLogprob] | None = None


class ChatChoice(Result):
    """One answer of the assistant."""

    index: int = 0
    message: ChatMessage
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | None = None
    """With return_token_ids: the generated tokens."""
    output_logprobs: RankedLogprobs | None = None
    """With return_token_ids and logprobs: of the generated tokens, by token id."""
    attention: MaybeTokenAttention = None
    reasons: tuple[Reasons, ...] | tuple[SpanReasons, ...] | None = Field(default=None, repr=False)
    """With `explain`: why each of the first 16 tokens was likely, or, by "span", the sources of each sentence."""

    @property
    def text(self) -> str:
        """Return the message's content."""
        return self.message.content or ""


class ChatCompletion(Result, TextView):
    """The answer to `chat`."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[ChatChoice] = Field(min_length=1)
    usage: Usage | None = None
    prompt: str | None = None
    """The conversation as the chat template writes it; None in a server's answer."""
    prompt_logprobs: RankedLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    """With return_token_ids: the tokens of the conversation."""

    @property
    def outputs(self) -> list[Output]:
        """Return the choices, by vLLM's names."""
        return [Output.of(choice) for choice in self.choices]

    @property
    def message(self) -> ChatMessage:
        """Return the first choice's message."""
        return self.choices[0].message

    @property
    def text(self) -> str:
        """Return the first choice's content."""
        return self.message.content or ""

    def _texts(self) -> Sequence[tuple[str, ChatChoice]]:
        return [(choice.message.content or "", choice) for choice in self.choices]


class ChatDelta(Result):
    role: str | None = None
    content: str | None = None
    reasoning: Reasoning = None
    tool_calls: Annotated[list[ToolCallDelta], EmptyIfNull] = Field(default_factory=list)


class ChatChunkChoice(Result):
    """The new part of one answer."""

    index: int = 0
    delta: ChatDelta
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: ChatLogprobs | None = None
    attention: MaybeTokenAttention = None
    reasons: tuple[SpanReasons, ...] | None = Field(default=None, repr=False)
    """With `explain` by "span": the sources of the next sentence, after the text."""


class ChatChunk(Result):
    """One event of `chat_stream`. The chunk with the usage has no choices."""

    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[ChatChunkChoice] = Field(default_factory=list)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """Return the new text; it is empty in the chunk that brings the role, and in the last."""
        return "".join(choice.delta.content or "" for choice in self.choices)


class Tokens(Result):
    """The answer to `tokenize`."""

    ids: list[int] = Field(validation_alias=AliasChoices("tokens", "ids"))
    strings: list[str] | None = Field(default=None, validation_alias=AliasChoices("token_strs", "strings"))
    """Each token decoded separately, if the server reports it."""
    max_model_len: int | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Model(Result):
    """One model that the server has."""

    id: str
    owned_by: str = ""
    root: str | None = None
    parent: str | None = None
    """The model that a LoRA adapter changes, or None for the model itself."""
    max_model_len: int | None = None
    compute_dtype: str | None = None
    """The dtype in which the model computes, or None while it loads."""
    capabilities: Sequence[str] | None = None
    """The purposes of the model, such as "chat" and "embedding", or None if it was never loaded."""


class Health(Result):
    """Reports whether the server accepts requests now."""

    ready: bool
    reason: str = ""
    """The server's word for its state: "ready", or why it accepts no requests."""
    models: Mapping[str, Any] = {}
    """The state of each model by its name, such as "loaded" and "unloaded"; empty on other servers."""
