"""Answers to questions about a text, by the probability of each option, each with its reasons if requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from lightwell_client._calls import body_of, reader_of
from lightwell_client._notebook import NotebookView, table
from lightwell_client._options import ModelOptions
from lightwell_client._plots import bars
from lightwell_client._reasons import Explain, Reasons, with_reasons
from lightwell_client._result import Result
from lightwell_client._signatures import Argument
from lightwell_client._wire import Call


class DecisionsOptions(ModelOptions, total=False):
    """The options of `decisions`."""

    chat_template_kwargs: Annotated[Mapping[str, Any], Argument("Variables for the model's chat template.")]
    explain: Explain


class OptionProbability(Result):
    """The probability of one option of a choice, or of one level of a score."""

    value: str | bool | int
    """The option, or the level's number."""
    label: str | None = None
    """Label of the level, for an answer of type score."""
    probability: float


class DecisionAnswer(Result):
    """The answer to one question; which fields it has depends on its type."""

    type: str
    name: str | None = None
    probability: float | None = None
    """Probability that the predicate is true, for an answer of type predicate."""
    choice: str | bool | None = None
    """Value of the likeliest option, for an answer of type choice."""
    score: float | None = None
    """Mean of the levels' numbers, weighted by their probabilities, for an answer of type score."""
    confidence: float | None = None
    probabilities: tuple[OptionProbability, ...] | None = None
    reasons: Reasons | None = Field(default=None, repr=False)
    """With `explain`: why the likeliest option is the likeliest."""


class DecisionsUsage(Result):
    """Token counts of all questions together."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class Decisions(Result, NotebookView):
    """The answer to `decisions`; `answers` are in the order of the questions."""

    answers: tuple[DecisionAnswer, ...]
    model: str = ""
    usage: DecisionsUsage | None = None

    def __getitem__(self, name: str | int) -> DecisionAnswer:
        """Return the answer to the question of that name, or number.

        Raises:
            KeyError: no question has that name; the message lists the names.
            IndexError: there are fewer questions.
        """
        if isinstance(name, int):
            return self.answers[name]
        named = {answer.name: answer for answer in self.answers if answer.name is not None}
        if name not in named:
            raise KeyError(f"no question {name!r} in this answer; it has {', '.join(named) or 'none with a name'}")
        return named[name]

    def _repr_html_(self) -> str:
        return with_reasons(self, table("answers", ["question", "option", "probability"], self._rows()), self.answers)

    def plot(self, ax: Any = None) -> Any:
        """Draw the probability of each option as bars.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        pairs = [(f"{name}: {option}", probability) for name, option, probability in self._rows()]
        return bars(pairs, label="probability", title="answers", ax=ax)

    def _rows(self) -> list[list[Any]]:
        """Return question, option and probability of each option."""
        rows: list[list[Any]] = []
        for number, one in enumerate(self.answers):
            name = one.name or str(number)
            if one.probabilities is None:
                rows.append([name, "true", one.probability])
            for option in one.probabilities or ():
                rows.append([name, str(option.value) if option.label is None else option.label, option.probability])
        return rows


def decisions(model: str | None, input: Any, questions: Any, options: Mapping[str, Any]) -> Call[Decisions]:
    body = body_of({"model": model, "input": input, "questions": questions}, options, DecisionsOptions)
    return Call("POST", "/v1/decisions", reader_of(Decisions), body, options=options)
