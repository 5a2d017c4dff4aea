"""The field `explain` of several routes, which requests the reasons of an answer, and the reasons in answers."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from lightwell.server.schemas.base import AnswerModel, RequestModel, Text, TokenId, wrong

MAX_EXPLAINED = 16
"""Most questions or inputs with reasons in one request."""
MAX_VERIFIED = 16
MAX_VERIFIED_SPANS = 8


class Explain(RequestModel):
    """Options of the reasons of an answer."""

    by: Literal["word", "head", "layer"] = Field("word", description="Unit of the parts of the logit or difference.")
    versus: Text | bool | TokenId | None = Field(
        "next",
        description='Answer that is compared with the likeliest one: "next" is the runner-up; another option, label or '
        "token by its name (a token also by its id); null explains the logit itself. If it names the likeliest "
        "answer, the runner-up is compared with it.",
    )
    verify: int = Field(
        0,
        ge=0,
        le=MAX_VERIFIED,
        description="Number of words to remove from the input, in order of the largest parts: first each word "
        "separately, then all together. The answer contains the measured and the predicted effects.",
    )
    take_out: Literal["keys", "embedding"] = Field(
        "keys",
        description="How words are taken out: their keys are masked for every query, in every layer and head, or their "
        "embedding is set to the mean of the token table.",
    )


class ChatExplain(Explain):
    """Options of the reasons of a chat's answer."""

    by: Literal["word", "head", "layer", "span"] = Field(  # type: ignore[assignment]  # one more unit
        "word",
        description='Unit of the parts of the logit or difference of a token; "span" explains each sentence of the '
        "answer by the sentences of the messages.",
    )
    verify: int = Field(
        0,
        ge=0,
        le=MAX_VERIFIED,
        description='Number of words to remove from the input, as for other answers; with "span" the number of spans, '
        "at most 8, each removed separately.",
    )

    @model_validator(mode="after")
    def _spans_are_few(self) -> "ChatExplain":
        if self.by == "span" and self.verify > MAX_VERIFIED_SPANS:
            at_most = f'with by "span" at most {MAX_VERIFIED_SPANS} spans are verified'
            raise wrong("verify", f"{at_most}, got {self.verify}")
        return self


def _with_defaults(value: Any) -> Any:
    return None if value is False else {} if value is True else value


ExplainField = Annotated[Explain | None, BeforeValidator(_with_defaults, json_schema_input_type=bool | Explain | None)]
ChatExplainField = Annotated[
    ChatExplain | None, BeforeValidator(_with_defaults, json_schema_input_type=bool | ChatExplain | None)
]
EXPLAIN = Field(None, description="Also return the reasons of the answer; true uses the defaults.")
"""The field of a body; the description of `ExplainField`."""


class WordPart(AnswerModel):
    """Contribution of one word."""

    position: int = Field(description="The token's position.")
    token: str = Field(description="The token decoded separately.")
    stack: Literal["encoder", "decoder"] | None = Field(
        None, description="Of an encoder-decoder: which stack reads it."
    )
    value: float = Field(description="Sum of its key's contributions through all layers and heads.")


class HeadPart(AnswerModel):
    """Contribution of one head."""

    layer: int = Field(description="Its layer.")
    head: int = Field(description="Its number.")
    part: str | None = Field(None, description='Of an encoder-decoder: "decoder", or "cross" of cross attention.')
    value: float = Field(description="Its contribution.")


class LayerPart(AnswerModel):
    """Contribution of one layer."""

    layer: int = Field(description="Its number.")
    attention: float = Field(description="Contribution of its heads, or of the mixer in place of attention.")
    mlp: float = Field(description="Contribution of its mlp.")


class TakenOut(AnswerModel):
    """Value of the answer after some words are removed."""

    words: list[dict[str, Any]] = Field(description="The words: position, token, and of an encoder-decoder stack.")
    predicted: float = Field(description="`value` less their parts.")
    measured: float = Field(description="Output of the network without them.")


class Reasons(AnswerModel):
    """The parts of a logit, or of the difference of two, whose sum it is (docs/reasons.md)."""

    by: Literal["word", "head", "layer"] = Field(description="Unit of the parts.")
    target: dict[str, Any] = Field(description="The answer that is explained: its option or label, or its token.")
    versus: dict[str, Any] | None = Field(description="The compared answer; null if only one logit is explained.")
    value: float = Field(description="The logit, or the difference, that the network gave.")
    sum: float = Field(description="The sum of all parts and the rest.")
    difference: float = Field(description="sum - value: rounding.")
    positions: list[int] = Field(description="Positions of the states behind the answer, in equal shares.")
    parts: list[WordPart | HeadPart | LayerPart] = Field(description="The words, heads or layers, in order.")
    rest: dict[str, float] = Field(
        description="Other terms of the sum: embedding (of the positions themselves), mlps, recurrent (mixers in "
        "place of attention) and biases."
    )
    verify: list[TakenOut] | None = Field(
        None, description="The words with the largest parts: each removed separately, then all together."
    )


class SpanPart(AnswerModel):
    """One span of the messages: a sentence, or several in a long conversation."""

    message: int = Field(description="Number of its message.")
    start: int = Field(description="Its first character in the message's text.")
    end: int = Field(description="The end of its characters.")
    tokens: tuple[int, int] = Field(description="Its range [first, end) of the prompt's tokens.")
    estimate: float = Field(
        description="Sum of the parts that its words have in the logits of the sentence's tokens (each minus the logit "
        "of `versus`)."
    )
    share: float = Field(description="estimate divided by the sum of the absolute estimates of all spans.")


class RemovedSpan(AnswerModel):
    """The sentence without one span of the messages."""

    span: int = Field(description="Index of the span in parts.")
    logprob: float = Field(description="Log-probability of the sentence, in nats, if the span is removed.")
    effect: float = Field(description="logprob minus the original one: negative if the sentence depends on the span.")
    share: float = Field(description="effect divided by the sum of the absolute effects of all removed spans.")


class SpanReasons(AnswerModel):
    """The spans of the messages that one sentence of an answer depends on (docs/reasons.md)."""

    by: Literal["span"] = Field(description='"span".')
    text: str = Field(description="The sentence.")
    start: int = Field(description="Its first character in the answer's content.")
    end: int = Field(description="The end of its characters.")
    tokens: tuple[int, int] = Field(description="Its range [first, end) of the generated tokens.")
    logprob: float = Field(description="Its log-probability in nats: the sum over its tokens.")
    value: float = Field(description="Sum of the logits of its tokens, each minus the logit of `versus`.")
    rest: float = Field(description="value minus all estimates: other tokens, the answer's own, mlps and biases.")
    parts: list[SpanPart] = Field(description="All spans of the messages, at most 64.")
    verify: list[RemovedSpan] | None = Field(
        None, description="The spans with the largest absolute estimates, each removed separately."
    )
