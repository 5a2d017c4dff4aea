"""What a model says of texts, pairs and questions: decisions, rankings, scores and labels, each with its reasons if
they are asked for.

It needs no numpy but for pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from lightwell_client._calls import body_of, reader_of
from lightwell_client._notebook import page, table
from lightwell_client._options import ModelOptions
from lightwell_client._reasons import Explain, Reasons
from lightwell_client._result import Result
from lightwell_client._results import Usage
from lightwell_client._signatures import Argument
from lightwell_client._wire import Call

# ---- what is asked


class DecisionsOptions(ModelOptions, total=False):
    """The options of `decisions`."""

    chat_template_kwargs: Annotated[Mapping[str, Any], Argument("Variables for the model's chat template.")]
    explain: Explain


class HeadOptions(ModelOptions, total=False):
    """The options of every method whose texts a head reads."""

    truncate: Annotated[
        bool, Argument("Cut an input that is over the limit, or refuse it; left out, as the model's files say.")
    ]
    truncate_prompt_tokens: Annotated[int, Argument("Cut an input to so many tokens; -1 is the most the model reads.")]
    truncation_side: Annotated[Literal["left", "right"], Argument("The side at which a text is cut.", "right")]
    use_activation: Annotated[bool, Argument("Give scores or probabilities; False gives the head's own logits.", True)]
    explain: Explain


class ScoreOptions(HeadOptions, total=False):
    """The options of `score`."""

    max_tokens_per_doc: Annotated[int, Argument("Cut each document to so many tokens first; 0 keeps all.", 0)]
    max_tokens_per_query: Annotated[int, Argument("The same for queries.", 0)]
    prompt_name: Annotated[str, Argument("A prompt of the model's files, to be put before the query.")]


class RerankOptions(ScoreOptions, total=False):
    """The options of `rerank`."""

    top_n: Annotated[int, Argument("Only so many of the best; 0 is all.", 0)]
    return_documents: Annotated[bool, Argument("Repeat each document in its result.", False)]


class ClassifyOptions(HeadOptions, total=False):
    """The options of `classify`."""

    add_special_tokens: Annotated[bool, Argument("Let the tokenizer add its special tokens to a text.", True)]


# ---- answers


class OptionProbability(Result):
    """The probability of one option of a choice, or of one level of a score."""

    value: str | bool | int
    """The option, or the level's number."""
    label: str | None = None
    """What a level is called."""
    probability: float


class DecisionAnswer(Result):
    """The answer to one question; which fields it has depends on its type."""

    type: str
    name: str | None = None
    probability: float | None = None
    """Of a predicate: how likely it is that it is true."""
    choice: str | bool | None = None
    """Of a choice: the likeliest option."""
    score: float | None = None
    """Of a score: the mean of the levels' numbers, by their probabilities."""
    confidence: float | None = None
    probabilities: tuple[OptionProbability, ...] | None = None
    reasons: Reasons | None = Field(default=None, repr=False)
    """With `explain`: why the likeliest option is the likeliest."""


class DecisionsUsage(Result):
    """Token counts of all questions together."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


class Decisions(Result):
    """The answer to `decisions`; `answers` are in the order of the questions."""

    answers: tuple[DecisionAnswer, ...]
    model: str = ""
    usage: DecisionsUsage | None = None

    def __getitem__(self, name: str | int) -> DecisionAnswer:
        """Return the answer to the question of that name, or number.

        Raises:
            KeyError: no question has that name; the message lists those that have one.
            IndexError: there are not so many.
        """
        if isinstance(name, int):
            return self.answers[name]
        named = {answer.name: answer for answer in self.answers if answer.name is not None}
        if name not in named:
            raise KeyError(f"no question {name!r} in this answer; it has {', '.join(named) or 'none with a name'}")
        return named[name]

    def _repr_html_(self) -> str:
        rows: list[list[Any]] = []
        for number, one in enumerate(self.answers):
            name = one.name or str(number)
            if one.probabilities is None:
                rows.append([name, "true", one.probability])
            for option in one.probabilities or ():
                rows.append([name, str(option.value) if option.label is None else option.label, option.probability])
        return _shown(self, table("answers", ["question", "option", "probability"], rows), self.answers)


class RankedDocument(Result):
    """One document's score."""

    index: int
    """The document's number in the request."""
    relevance_score: float
    document: dict[str, str] | None = None
    """With `return_documents`: {"text": the document}."""
    reasons: Reasons | None = Field(default=None, repr=False)
    """With `explain`: why the score is what it is."""


class Ranking(Result):
    """The answer to `rerank`: the documents, the best first."""

    id: str = ""
    model: str = ""
    results: tuple[RankedDocument, ...]
    usage: Usage | None = None

    def _repr_html_(self) -> str:
        rows = [[one.index, one.relevance_score, (one.document or {}).get("text")] for one in self.results]
        return _shown(self, table("documents", ["number", "score", "text"], rows), self.results)


class PairScore(Result):
    """One pair's score."""

    index: int
    score: float
    reasons: Reasons | None = Field(default=None, repr=False)
    """With `explain`: why it is what it is."""


class PairScores(Result):
    """The answer to `score`; `data` are in the order of the pairs."""

    id: str = ""
    model: str = ""
    created: int = 0
    data: tuple[PairScore, ...]
    usage: Usage | None = None

    @property
    def scores(self) -> list[float]:
        """Return the score of each pair."""
        return [pair.score for pair in self.data]

    def _repr_html_(self) -> str:
        rows = [[pair.index, pair.score] for pair in self.data]
        return _shown(self, table("pairs", ["pair", "score"], rows), self.data)


class Classification(Result):
    """One input's labels."""

    index: int
    label: str
    """The likeliest label."""
    probs: tuple[float, ...]
    """The probability of each label, in the model's order."""
    num_classes: int = 0
    reasons: Reasons | None = Field(default=None, repr=False)
    """With `explain`: why the likeliest label is the likeliest."""


class Classifications(Result):
    """The answer to `classify`; `data` are in the order of the inputs."""

    id: str = ""
    model: str = ""
    created: int = 0
    data: tuple[Classification, ...] = Field(min_length=1)
    usage: Usage | None = None

    @property
    def label(self) -> str:
        """Return the first input's label."""
        return self.data[0].label

    def _repr_html_(self) -> str:
        rows = [[one.index, one.label, max(one.probs)] for one in self.data]
        return _shown(self, table("inputs", ["input", "label", "probability"], rows), self.data)


def _shown(whole: Result, rows: str, parts: Iterable[Any]) -> str:
    """Return what a notebook shows of an answer: a table, and the reasons of each part."""
    told = [part.reasons._repr_html_() for part in parts if part.reasons is not None]
    return page(type(whole).__name__, [rows, *told], iter(()), 0)


# ---- calls


def decisions(model: str | None, input: Any, questions: Any, options: Mapping[str, Any]) -> Call[Decisions]:
    body = body_of({"model": model, "input": input, "questions": questions}, options, DecisionsOptions)
    return Call("POST", "/v1/decisions", reader_of(Decisions), body, options=options)


def rerank(model: str | None, query: str, documents: Sequence[Any], options: Mapping[str, Any]) -> Call[Ranking]:
    body = body_of({"model": model, "query": query, "documents": documents}, options, RerankOptions)
    return Call("POST", "/v1/rerank", reader_of(Ranking), body, options=options)


def score(model: str | None, queries: Any, documents: Any, options: Mapping[str, Any]) -> Call[PairScores]:
    body = body_of({"model": model, "queries": queries, "documents": documents}, options, ScoreOptions)
    return Call("POST", "/v1/score", reader_of(PairScores), body, options=options)


def classify(model: str | None, input: Any, options: Mapping[str, Any]) -> Call[Classifications]:
    body = body_of({"model": model, "input": input}, options, ClassifyOptions)
    return Call("POST", "/v1/classify", reader_of(Classifications), body, options=options)
