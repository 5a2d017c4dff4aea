"""Body and answer of POST /v1/score and /score, as in vLLM."""

from typing import Literal

from pydantic import Field, model_validator

from lightwell.server.schemas.base import AnswerModel, Text, Usage, wrong
from lightwell.server.schemas.judgements.head_fields import ManyTexts, PairFields
from lightwell.server.schemas.judgements.reasons import Reasons

SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
"""vLLM's names of the two sides of the pairs."""
_FIRST = "The first texts: one for all of the others, or as many. {} is another name for them."
_SECOND = "The second texts: one for all of the others, or as many. {} is another name for them."


class ScoreRequest(PairFields):
    """Body of POST /v1/score and /score."""

    text_1: Text | ManyTexts | None = Field(None, description=_FIRST.format("queries or data_1"))
    text_2: Text | ManyTexts | None = Field(None, description=_SECOND.format("documents, items or data_2"))
    queries: Text | ManyTexts | None = Field(None, description=_FIRST.format("text_1"))
    documents: Text | ManyTexts | None = Field(None, description=_SECOND.format("text_2"))
    items: Text | ManyTexts | None = Field(None, description=_SECOND.format("text_2"))
    data_1: Text | ManyTexts | None = Field(None, description=_FIRST.format("text_1"))
    data_2: Text | ManyTexts | None = Field(None, description=_SECOND.format("text_2"))

    @property
    def sides(self) -> tuple[str, str]:
        """Return the names of the given fields."""
        return next(names for names in SIDES if all(getattr(self, name) is not None for name in names))

    @model_validator(mode="after")
    def _has_two_sides(self) -> "ScoreRequest":
        given = [name for name in ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")
                 if getattr(self, name) is not None]  # fmt: skip
        if tuple(given) not in SIDES:
            accepted = "; or ".join(" and ".join(names) for names in SIDES)
            raise wrong(given[0] if given else "text_1", f"{', '.join(given) or 'neither'} is given; {accepted} are "
                        "accepted")  # fmt: skip
        return self


class PairScore(AnswerModel):
    """One pair's score."""

    index: int = Field(description="The pair's number.")
    object: Literal["score"] = Field(description="Kind of entry.")
    score: float = Field(description="The score.")
    reasons: Reasons | None = Field(None, description="With explain: the reasons of the prediction.")


class ScoreAnswer(AnswerModel):
    """Answer of POST /v1/score and /score."""

    id: str = Field(description="Id of the answer.")
    object: Literal["list"] = Field(description="Kind of answer.")
    created: int = Field(description="When it was made, in seconds since 1970.")
    model: str = Field(description="Name of the model.")
    data: list[PairScore] = Field(description="One entry a pair, in their order.")
    usage: Usage = Field(description="Token counts.")
