"""The fields for sampling, and for attention rows and interventions, of every body that requests a text."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from lightwell.server.schemas.base import RunFields, TokenId, encodable, in_groups
from lightwell.server.schemas.inspect.attention import AttentionFields
from lightwell.server.schemas.inspect.interventions import CanIntervene

MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_TOKENS = 2**31 - 1
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

StopString = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(encodable)]
Bias = Annotated[float, Field(ge=-100.0, le=100.0)]


class GenerationAttention(AttentionFields):
    """Attention sent with the tokens that it chose: the row of the position before each token, over all keys so far."""

    part: Literal["decoder", "cross"] | None = Field(
        None, description="decoder (also null): over all tokens so far; cross: over the encoder's text."
    )
    prompt: bool = Field(False, description="Also the prompt's rows, once, with the first token.")


class SamplingFields(CanIntervene, RunFields):
    """Fields of every body that requests a text."""

    stream: bool | None = Field(False, description="Answer with server-sent events, one a token.")
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
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_LOGIT_BIAS), in_groups(MAX_LOGIT_BIAS)] | None = Field(
        None, description="Token id to a number from -100 to 100 that is added to its logit."
    )
    seed: int | None = Field(
        None,
        ge=-(2**63),
        le=2**63 - 1,
        description="Same seed, same tokens, whatever else runs; null draws one. With n choices, the first equals "
        "the answer with n = 1, and each other one draws its own numbers.",
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
        0, ge=0, le=MAX_TOKENS, description="No token and no stop string ends the answer before this number of tokens."
    )
    speculation: bool = Field(
        True, description="Let the server check drafts of the next tokens (--speculation). The answer is the same."
    )
    skip_special_tokens: bool = Field(True, description="Leave special tokens out of the text.")
    attention: GenerationAttention | None = Field(
        None, description="Attention rows that come with each token, from inside the running batch."
    )

    @field_validator("logit_bias")
    @classmethod
    def _bias_keys_are_token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not _TOKEN_ID.fullmatch(key):
                raise ValueError(f"{key[:20]!r} is not a token id; keys must be token ids such as '42'")
        return value
