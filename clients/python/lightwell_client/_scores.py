"""Scores and labels of a model's head: builds the calls, and reads the answers. It is pure; both clients use
it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from lightwell_client._calls import body_of, reader_of
from lightwell_client._notebook import NotebookView, table
from lightwell_client._options import ModelOptions, Prompt
from lightwell_client._plots import bars
from lightwell_client._reasons import Explain, Reasons, with_reasons
from lightwell_client._result import Result
from lightwell_client._results import Usage
from lightwell_client._signatures import Argument
from lightwell_client._wire import Call


class ReadOptions(ModelOptions, total=False):
    """The options of every method that a head answers."""

    truncate: Annotated[
        bool, Argument("Cut inputs over the limit; by default the setting of the model's files, otherwise False.")
    ]
    truncate_prompt_tokens: Annotated[
        int, Argument("Cut each input to this number of tokens; -1 is the model's limit.")
    ]
    truncation_side: Annotated[Literal["left", "right"], Argument("The side at which a text is cut.", "right")]
    use_activation: Annotated[bool, Argument("False gives the head's own logits.", True)]
    explain: Explain


class ScoreOptions(ReadOptions, total=False):
    """The options of `score`."""

    max_tokens_per_doc: Annotated[
        int, Argument("First cut each second text to this number of its tokens; 0 keeps all.", 0)
    ]
    max_tokens_per_query: Annotated[int, Argument("The same for first texts.", 0)]
    prompt_name: Annotated[str, Argument("A prompt of the model's files, to be put before each first text.")]


class RerankOptions(ScoreOptions, total=False):
    """The options of `rerank`."""

    top_n: Annotated[int, Argument("Number of best results to return; 0 is all.", 0)]
    return_documents: Annotated[bool, Argument("Repeat each document in its result.", False)]


class ClassifyOptions(ReadOptions, total=False):
    """The options of `classify`."""

    add_special_tokens: Annotated[bool, Argument("Let the tokenizer add its special tokens to a text.", True)]


class Ranked(Result):
    """One document's score."""

    index: int
    """The document's number."""
    relevance_score: float
    document: dict[str, str] | None = None
    """With return_documents: {"text": the document}."""
    reasons: Reasons | None = Field(default=None, repr=False)
    """With explain: the reasons of the score."""


class Reranking(Result, NotebookView):
    """The answer to `rerank`: the documents, the best first."""

    id: str = ""
    model: str = ""
    results: list[Ranked] = Field(default_factory=list)
    usage: Usage | None = Field(default=None, repr=False)

    def _repr_html_(self) -> str:
        rows = [[each.index, each.relevance_score, (each.document or {}).get("text")] for each in self.results]
        return with_reasons(self, table("documents", ["number", "score", "text"], rows), self.results)

    def plot(self, ax: Any = None) -> Any:
        """Draw each document's score, the best first as bars.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        names = [(each.document or {}).get("text", str(each.index))[:60] for each in self.results]
        scores = [each.relevance_score for each in self.results]
        return bars(list(zip(names, scores, strict=True)), label="score", title="documents", ax=ax)


class PairScore(Result):
    """One pair's score."""

    index: int
    score: float
    reasons: Reasons | None = Field(default=None, repr=False)
    """With explain: the reasons of the prediction."""

    @property
    def outputs(self) -> Self:
        """Return this result: vLLM has the score there."""
        return self


class Scores(Result, NotebookView):
    """The answer to `score`: one entry a pair, in their order."""

    id: str = ""
    model: str = ""
    data: list[PairScore] = Field(default_factory=list)
    usage: Usage | None = Field(default=None, repr=False)

    def __iter__(self) -> Iterator[PairScore]:  # type: ignore[override]  # in place of pydantic's fields
        return iter(self.data)

    @property
    def scores(self) -> list[float]:
        """Return only the numbers."""
        return [each.score for each in self.data]

    def _repr_html_(self) -> str:
        rows = [[each.index, each.score] for each in self.data]
        return with_reasons(self, table("pairs", ["pair", "score"], rows), self.data)

    def plot(self, ax: Any = None) -> Any:
        """Draw each pair's score as bars.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        return bars([(str(each.index), each.score) for each in self.data], label="score", title="pairs", ax=ax)


class Classified(Result):
    """One input's labels."""

    index: int
    label: str
    """The likeliest label."""
    probs: list[float]
    """The number of each label."""
    num_classes: int
    reasons: Reasons | None = Field(default=None, repr=False)
    """With explain: why the likeliest label is the likeliest."""

    @property
    def outputs(self) -> Self:
        """Return this result: vLLM has the probabilities there."""
        return self


class Classification(Result, NotebookView):
    """The answer to `classify`: one entry an input, in their order."""

    id: str = ""
    model: str = ""
    data: list[Classified] = Field(default_factory=list)
    usage: Usage | None = Field(default=None, repr=False)

    def __iter__(self) -> Iterator[Classified]:  # type: ignore[override]  # in place of pydantic's fields
        return iter(self.data)

    def _repr_html_(self) -> str:
        rows = [[each.index, each.label, max(each.probs, default=None)] for each in self.data]
        return with_reasons(self, table("inputs", ["input", "label", "its number"], rows), self.data)

    def plot(self, ax: Any = None) -> Any:
        """Draw the number of each input's likeliest label as bars.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        pairs = [(f"{each.index}: {each.label}", max(each.probs, default=0.0)) for each in self.data]
        return bars(pairs, label="number of the label", title="inputs", ax=ax)


def rerank(
    model: str | None, query: str, documents: Sequence[str | Mapping[str, str]], options: Mapping[str, Any]
) -> Call[Reranking]:
    body = body_of({"model": model, "query": query, "documents": documents}, options, RerankOptions)
    return Call("POST", "/v1/rerank", reader_of(Reranking), body, options=options)


def score(
    model: str | None, first: str | Sequence[str], second: str | Sequence[str], options: Mapping[str, Any]
) -> Call[Scores]:
    body = body_of({"model": model, "text_1": first, "text_2": second}, options, ScoreOptions)
    return Call("POST", "/v1/score", reader_of(Scores), body, options=options)


def classify(model: str | None, input: Prompt, options: Mapping[str, Any]) -> Call[Classification]:
    body = body_of({"model": model, "input": input}, options, ClassifyOptions)
    return Call("POST", "/v1/classify", reader_of(Classification), body, options=options)
