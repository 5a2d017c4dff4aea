"""Body and answer of POST /v1/systemone, as in TypeSafe's API."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from lightwell.server.schemas.base import AnswerModel, ErrorDetail, RequestModel, Text, in_groups, wrong
from lightwell.server.schemas.judgements.fields import (
    MAX_LEVELS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    NO_IMAGES,
    Content,
    JudgementFields,
    QuestionName,
    of_known_type,
)
from lightwell.server.schemas.judgements.reasons import Reasons
from lightwell.server.schemas.known_fields import IGNORED_EVERYWHERE, REFUSED_EVERYWHERE, Refused, RefusedFields


class NoulCriteria(RequestModel):
    """Criteria of yes and of no."""

    yes: Content | None = Field(None, alias="true", description="Criteria of yes.")
    no: Content | None = Field(None, alias="false", description="Criteria of no.")


class Noul(RequestModel):
    """Asks a question that yes or no answers."""

    type: Literal["noul"] = Field(description='"noul".')
    instructions: Content | None = Field(None, description="The question, or a statement.")
    criteria: NoulCriteria | None = Field(None, description="Criteria of yes and of no.")

    @model_validator(mode="after")
    def _asks_something(self) -> "Noul":
        told = (self.instructions, self.criteria and self.criteria.yes, self.criteria and self.criteria.no)
        if told == (None, None, None):
            raise wrong("instructions", "a noul needs instructions or criteria")
        return self


class ChoiceOfCriteria(RequestModel):
    """Asks which option fits the state."""

    type: Literal["choice"] = Field(description='"choice".')
    instructions: Content | None = Field(None, description="The choice to make.")
    criteria: Annotated[
        dict[Text, Content | None], Field(min_length=1, max_length=MAX_OPTIONS), in_groups(MAX_OPTIONS)
    ] = Field(description="The options by their names, each with when it applies, or null.")


class ScoreOfCriteria(RequestModel):
    """Asks for a rating on levels in order."""

    type: Literal["score"] = Field(description='"score".')
    instructions: Content | None = Field(None, description="The quantity to rate.")
    criteria: Annotated[list[Content], Field(min_length=1, max_length=MAX_LEVELS, fail_fast=True)] = Field(
        description="The levels from the lowest, which is 0."
    )


SystemOneQuestion = Annotated[
    Annotated[Noul, Tag("<noul>")]
    | Annotated[ChoiceOfCriteria, Tag("<choice>")]
    | Annotated[ScoreOfCriteria, Tag("<score>")],
    Discriminator(lambda each: f"<{each.get('type') if isinstance(each, dict) else getattr(each, 'type', None)}>"),
    of_known_type(("noul", "choice", "score"), {"box": NO_IMAGES}),
]


class SystemOneRequest(JudgementFields):
    """Body of POST /v1/systemone."""

    IGNORED = IGNORED_EVERYWHERE
    REFUSED: ClassVar[RefusedFields] = {
        **REFUSED_EVERYWHERE,
        "assets": Refused(NO_IMAGES),
        "stream": Refused("all answers are sent together"),
    }

    state: Content = Field(description="Subject of the questions: a text, or JSON, which is used as text.")
    questions: Annotated[
        dict[QuestionName, SystemOneQuestion], Field(min_length=1, max_length=MAX_QUESTIONS), in_groups(MAX_QUESTIONS)
    ] = Field(description="The questions by their names.")
    instructions: Text | None = Field(None, description="A text before the state.")


class SystemOneResult(AnswerModel):
    """The answer to one question; which fields it has depends on its type."""

    type: Literal["noul", "choice", "score"] = Field(description="The question's type.")
    noul: float | None = Field(None, description="noul: the probability of yes.")
    choice: str | None = Field(None, description="choice: the name of the likeliest option, the first among equals.")
    score: float | None = Field(None, description="score: the mean of the levels' numbers, by their probabilities.")
    confidence: float | None = Field(
        None,
        description="choice, score: (largest probability - 1/n) / (1 - 1/n): 0 if all n are equal, 1 if one is sure.",
    )
    legend: dict[str, Any] | None = Field(None, description="score: the levels by their numbers.")
    probabilities: dict[str, float] | None = Field(
        None, description="choice: of each option by its name; score: of each level by its number."
    )
    reasons: Reasons | None = Field(None, description="With explain: why the likeliest option is the likeliest.")


class Diagnostics(AnswerModel):
    """How well the labels fit a question."""

    label_mass: float = Field(description="The probability of all labels together, of the whole vocabulary.")
    argmax_is_label: bool = Field(description="Whether the likeliest token of all is a label.")


class SystemOneUsage(AnswerModel):
    """Tokens of all questions together."""

    input_tokens: int = Field(description="Tokens that were read: the state counts for each question.")
    output_tokens: int = Field(description="One for each question.")
    cached_tokens: int = Field(description="Tokens that were not computed, since the prefix cache had them.")


class SystemOneAnswer(AnswerModel):
    """Answer of POST /v1/systemone."""

    model: str = Field(description="Name of the model.")
    answers: dict[str, SystemOneResult] = Field(description="The answers by their questions' names.")
    usage: SystemOneUsage = Field(description="Token counts.")
    diagnostics: dict[str, Diagnostics] = Field(description="By the questions' names.")


class SystemOneErrorAnswer(AnswerModel):
    """The shape of every error of POST /v1/systemone."""

    detail: str = Field(description="Names the rejected value and the accepted values.")
    error: ErrorDetail = Field(description="The same as other routes write it.")
