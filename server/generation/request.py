"""Requests for texts, without the names of any API. A route builds one from its body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.generation.prompts.field_names import OPENAI_NAMES, FieldNames
from lightwell.server.schemas.base import PromptInput
from lightwell.server.schemas.chat_fields import ChatFields
from lightwell.server.schemas.inspect.interventions import InterventionField
from lightwell.server.schemas.sampling import GenerationAttention, SamplingFields
from lightwell.server.schemas.structured_outputs import Constraint

_FROM_THE_BODY = {*SamplingParams.__struct_fields__} - {"max_tokens", "eos_token_ids", "logprobs", "logprob_token_ids"}
"""Sampling parameters that a body gives under their own names."""


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """The fields of every request for a text."""

    names: FieldNames = OPENAI_NAMES
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Values of `SamplingParams` by their names; absent ones are the model's own."""
    max_tokens: int | None = None
    """Most tokens to generate, or None for the rest of the context."""
    cuts_max_tokens: bool = False
    """Whether a `max_tokens` over the rest of the context is reduced to it; otherwise it is refused."""
    num_choices: int = 1
    is_stream: bool = False
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    num_logprobs: int | None = None
    """Alternatives of each token, or None for no log-probabilities."""
    num_logprob_forms: int = 1
    """Number of forms in which the answer has them."""
    constraint: Constraint | None = None
    """The form of the answer. Its `field` is the client's path already, unlike the fields of other errors."""
    attention: GenerationAttention | None = None
    interventions: Sequence[InterventionField] | None = None
    truncate: bool = False
    truncate_prompt_tokens: int | None = None

    @property
    def form_field(self) -> str:
        """Return the client's field that gives the answer its form, or an empty text if none does."""
        return "" if self.constraint is None else self.constraint.field


@dataclass(frozen=True, kw_only=True)
class PromptRequest(TextRequest):
    """A request for texts that continue prompts."""

    prompt: PromptInput
    decoder_input: PromptInput | None = None
    add_special_tokens: bool = True


@dataclass(frozen=True, kw_only=True)
class ChatRequest(TextRequest):
    """A request for the assistant's next message."""

    chat: ChatFields
    prediction: str = ""
    """A text that the message is expected to repeat."""
    reasoning_effort: str | None = None
    thinking_budget: int | None = None
    """Most tokens of a thought, -1 for no limit, or None if the request gives none."""

    @property
    def form_field(self) -> str:
        """Return the client's field that gives the answer its form: a constraint, tools, or the limit of a thought."""
        if form := super().form_field:
            return form
        if self.chat.callable_tools:
            return self.names.of("tools")
        limits = {"thinking_budget": self.thinking_budget, "reasoning_effort": self.reasoning_effort}
        return next((self.names.of(name) for name, value in limits.items() if value is not None), "")


def sampling_of(body: object) -> dict[str, Any]:
    """Return the sampling parameters that a body gives under the names of `SamplingParams`."""
    values = {name: getattr(body, name, None) for name in _FROM_THE_BODY}
    return {name: value for name, value in values.items() if value is not None}


def shared_fields(body: SamplingFields) -> dict[str, Any]:
    """Return the fields of a `TextRequest` that every body with `SamplingFields` has."""
    return {
        "sampling": sampling_of(body),
        "is_stream": bool(body.stream),
        "stop": texts_of(body.stop),
        "include_stop": body.include_stop_str_in_output,
        "skip_special_tokens": body.skip_special_tokens,
        "attention": body.attention,
        "interventions": body.interventions,
    }


def texts_of(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the texts of a field that takes one text or several."""
    return (value,) if isinstance(value, str) else tuple(value or ())
