"""Defines the fields that bound how much a model thinks before it answers."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lightwell.server.schemas.base import RequestModel, check_equal
from lightwell.server.schemas.sampling import MAX_TOKENS

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT_BUDGETS = {"none": 0, "minimal": 512, "low": 512, "medium": 2048}
"""Most tokens of a thought, for templates that do not read the effort; other efforts have no limit."""
EFFORT = (
    "How much the model thinks: the chat template's `reasoning_effort`, if it has one. If not, none is a "
    "thinking_budget of 0 tokens, minimal and low 512, medium 2,048; the others have no limit."
)

Budget = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]


class ThinkingFields(RequestModel):
    """The thinking budget, by the names that clients use."""

    thinking_budget: Budget | None = Field(
        None,
        description="Most tokens of a thought, after which it is closed and the answer begins; -1 is no limit. 0 also "
        "turns the chat template's switch for thinking off.",
    )
    thinking_token_budget: Budget | None = Field(None, description="vLLM's name of thinking_budget.")

    @model_validator(mode="after")
    def _budgets_agree(self) -> "ThinkingFields":
        check_equal({"thinking_token_budget": self.thinking_token_budget, "thinking_budget": self.thinking_budget})
        return self

    @property
    def budget_field(self) -> str:
        """Return the name of the field that gives the budget."""
        return "thinking_token_budget" if self.thinking_budget is None else "thinking_budget"

    @property
    def budget(self) -> int | None:
        """Return the thinking budget in tokens, -1 for no limit, or None if none is given."""
        return self.thinking_token_budget if self.thinking_budget is None else self.thinking_budget
