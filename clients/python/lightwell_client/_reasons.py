"""The reasons of an answer: the parts of its logit, or of a difference of two, by word, head or layer; their options,
plots and views.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from lightwell_client._arrays import require_numpy
from lightwell_client._exceptions import MissingDependency
from lightwell_client._heatmap import heat_map_html
from lightwell_client._notebook import NotebookView, coloured, page, table
from lightwell_client._plots import axes_for, bars, heat_map, visible
from lightwell_client._result import Result
from lightwell_client._signatures import Argument

_MOST_LISTED = 10


class _ReasonsOptions(TypedDict, total=False):
    versus: str | bool | int | None
    """Answer with which the likeliest one is compared: "next" is the runner-up; None explains the likeliest one's logit
    alone; another option, label or token is given by its name, a token also by its id.
    """
    verify: int
    """Number of words, those with the largest parts, to take out of the input; the answer without them is measured."""
    take_out: Literal["keys", "embedding"]
    """Way to take words out: their keys are masked, or their embedding is set to the mean of the token table."""


class ReasonsOptions(_ReasonsOptions, total=False):
    """Options of `explain`. An option that is left out has the server's default."""

    by: Literal["word", "head", "layer"]
    """Unit into which the logit, or the difference of two logits, is split; "word" by default."""


class ChatReasonsOptions(_ReasonsOptions, total=False):
    """Options of a chat's `explain`. An option that is left out has the server's default."""

    by: Literal["word", "head", "layer", "span"]
    """Unit, as elsewhere; with "span", each sentence of the answer is explained by the sentences of the messages, and
    `verify` removes at most 8 of them, each separately.
    """


Explain = Annotated[
    bool | ReasonsOptions,
    Argument('Also return the reasons: True, or {"by", "versus", "verify", "take_out"}, each with a default.'),
]
"""The `explain` of every method with reasons."""


class ExplainedAnswer(Result):
    """An answer as reasons name it: of a question its option, of a head its label, else a token."""

    option: str | None = None
    label: str | None = None
    index: int | None = None
    """The label's number."""
    token: str | None = None
    token_id: int | None = None

    @property
    def name(self) -> str:
        """Return the option, the label or the token."""
        return next((text for text in (self.option, self.label, self.token) if text is not None), "")


class WordPart(Result):
    """The contribution of one word through all layers and heads."""

    position: int
    token: str
    stack: str | None = None
    """Stack that reads the word, "encoder" or "decoder"; None if the model has one stack."""
    value: float


class HeadPart(Result):
    """The amount that one head adds."""

    layer: int
    head: int
    part: str | None = None
    """Attention of the head, "decoder" or "cross"; None if the model has no cross attention."""
    value: float


class LayerPart(Result):
    """The amounts that one layer adds."""

    layer: int
    attention: float
    """Sum over its heads, or the amount of the convolution or delta net in place of attention."""
    mlp: float


class RemovedWord(Result):
    """A word that was taken out."""

    position: int
    token: str
    stack: str | None = None


class Verified(Result):
    """The answer without some words, as predicted and as measured."""

    words: tuple[RemovedWord, ...]
    predicted: float
    """`value` minus the parts of these words."""
    measured: float
    """Logit, or difference, that the network gives without them."""


class Reasons(Result, NotebookView):
    """The parts of a logit, or of a difference of two. A notebook shows the text, each word in the colour of its
    contribution.
    """

    by: str
    """Unit of the parts: "word", "head" or "layer"."""
    target: ExplainedAnswer
    """The answer that is explained."""
    versus: ExplainedAnswer | None = None
    """The answer that the target is compared with, or None if only the target's logit is explained."""
    value: float
    """The logit, or the difference, that the network gave."""
    sum: float
    """The sum of all parts and the rest."""
    difference: float = 0.0
    """sum - value: rounding."""
    positions: tuple[int, ...] = ()
    """The positions of the states behind the answer."""
    parts: tuple[WordPart | HeadPart | LayerPart, ...] = Field(repr=False)
    """The words, heads or layers, in order."""
    rest: dict[str, float] = Field(default_factory=dict)
    """The other terms of the sum, by name."""
    verify: tuple[Verified, ...] | None = Field(default=None, repr=False)
    """The words with the largest parts: each removed separately, then all together."""

    @property
    def title(self) -> str:
        """Return a line about the explained quantity."""
        other = "the logit itself" if self.versus is None else f"rather than {visible(self.versus.name)}"
        return f"{visible(self.target.name)}, {other}: {self.value:.4g}"

    def largest(self, count: int = _MOST_LISTED) -> list[tuple[str, float]]:
        """Return the names and values of the largest parts, the largest first; a layer has two."""
        named = [pair for part in self.parts for pair in _named(part)]
        return sorted(named, key=lambda pair: -abs(pair[1]))[:count]

    def plot(self, what: Literal["parts", "verify"] = "parts", *, largest: int = 20, ax: Any = None) -> Any:
        """Draw the parts: of words the largest and the rest as bars, of heads a map of layers x heads, of layers
        stacked bars. With "verify", draw the predicted and measured values without the largest words.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: the answer has no "verify", or `what` is something else.
        """
        if what == "verify":
            return self._plot_verified(ax)
        if what != "parts":
            raise ValueError(f'what is {what!r}; "parts" or "verify" is accepted')
        if self.by == "head":
            return self._plot_heads(ax)
        if self.by == "layer":
            return self._plot_layers(ax)
        shown = self.largest(largest)
        others = len(self.parts) - len(shown)
        told = sum(value for _, value in shown) + sum(self.rest.values())
        more = [(f"{others} other words", self.sum - told)] if others else []
        return bars([*shown, *more, *self.rest.items()], label="adds", title=self.title, ax=ax)

    def _plot_heads(self, ax: Any) -> Any:
        axes = axes_for(ax)
        matrix, rows, columns = self._heads()
        rest = ", ".join(f"{name} {value:.3g}" for name, value in self.rest.items())
        title = f"{self.title}\n{rest}" if rest else self.title
        return heat_map(matrix, rows, columns, names=("layer", "head"), label="adds", title=title, ax=axes)

    def _plot_layers(self, ax: Any) -> Any:
        axes = axes_for(ax)
        layers = [part for part in self.parts if isinstance(part, LayerPart)]
        names = [*(str(part.layer) for part in layers), *self.rest]
        places = range(len(layers))
        axes.bar(places, [part.attention for part in layers], label="attention", color="C0")
        # bars of the same sign are stacked
        feet = [part.attention if part.attention * part.mlp > 0 else 0.0 for part in layers]
        axes.bar(places, [part.mlp for part in layers], bottom=feet, label="mlp", color="C1")
        axes.bar(range(len(layers), len(names)), list(self.rest.values()), label="rest", color="C7")
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.axhline(0, color="black", linewidth=0.5)
        axes.set_xlabel("layer")
        axes.set_ylabel("adds")
        axes.set_title(self.title)
        axes.legend()
        return axes

    def _plot_verified(self, ax: Any) -> Any:
        if self.verify is None:
            raise ValueError('nothing was taken out: ask with explain={"verify": 5}')
        axes = axes_for(ax)
        places = range(len(self.verify))
        for shift, (name, colour) in zip((-0.2, 0.2), (("predicted", "C0"), ("measured", "C1")), strict=True):
            values = [getattr(row, name) for row in self.verify]
            axes.barh([place + shift for place in places], values, 0.4, label=name, color=colour)
        axes.axvline(self.value, color="black", linestyle=":", label="with all words")
        axes.set_yticks(places, [visible(f"without {_without(row)}") for row in self.verify])
        axes.invert_yaxis()
        axes.set_xlabel("logit" if self.versus is None else "difference of logits")
        axes.set_title(self.title)
        axes.legend()
        return axes

    def _heads(self) -> tuple[Any, list[str], list[str]]:
        """Return the contribution of each head [layer, head], with the names of both. Raises MissingDependency without
        numpy.
        """
        np = require_numpy("a map of heads")
        heads = [part for part in self.parts if isinstance(part, HeadPart)]
        rows = list(dict.fromkeys(_layer_name(part) for part in heads))
        matrix = np.zeros((len(rows), 1 + max((part.head for part in heads), default=0)))
        for part in heads:
            matrix[rows.index(_layer_name(part)), part.head] = part.value
        return matrix, rows, [str(head) for head in range(matrix.shape[1])]

    def _repr_html_(self) -> str:
        """Return the notebook view: the text, the largest parts, the rest, and the measurements."""
        return page(self.title, [self._picture(), *self._tables()], iter(()), 0)

    def _picture(self) -> str:
        if self.by == "word":
            return _coloured([part for part in self.parts if isinstance(part, WordPart)])
        if self.by == "head" and self.parts:
            try:
                matrix, rows, columns = self._heads()
            except MissingDependency:  # the table names the largest
                return ""
            return heat_map_html(matrix, rows, columns, self.title, signed=True)
        return ""

    def _tables(self) -> list[str]:
        listed = [*self.largest(), *self.rest.items()]
        others = self.sum - sum(value for _, value in listed)
        num_others = sum(len(_named(part)) for part in self.parts) - _MOST_LISTED
        more = [(f"{num_others} others", others)] if num_others > 0 else []
        tables = [table("parts, the largest first", [self.by, "adds"], [*listed, *more, ("sum", self.sum)])]
        if self.verify is not None:
            rows = [[_without(row), row.predicted, row.measured] for row in self.verify]
            tables.append(table("without words", ["without", "predicted", "measured"], rows))
        return tables


class MessageSpan(Result):
    """A span of the messages, a sentence or several, and its contribution to a sentence of the answer."""

    message: int
    """Number of its message."""
    start: int
    """Its first character in the message's text."""
    end: int
    """The end of its characters."""
    tokens: tuple[int, int]
    """Its range [first, end) of the prompt's tokens."""
    estimate: float
    """Sum of its words' parts in the logits of the sentence's tokens."""
    share: float
    """estimate divided by the sum of the absolute estimates of all spans."""


class RemovedSpan(Result):
    """The sentence without one span of the messages."""

    span: int
    """Index of the span in `parts`."""
    logprob: float
    """Log-probability of the sentence if the span is removed, in nats."""
    effect: float
    """logprob minus the original one: negative if the sentence depends on the span."""
    share: float
    """effect divided by the sum of the absolute effects of all removed spans."""


class SpanReasons(Result, NotebookView):
    """The spans of the messages that one sentence of an answer depends on. A notebook shows the largest ones."""

    by: Literal["span"]
    text: str
    """The sentence."""
    start: int
    """Its first character in the answer's content."""
    end: int
    """The end of its characters."""
    tokens: tuple[int, int]
    """Its range [first, end) of the generated tokens."""
    logprob: float
    """Its log-probability in nats."""
    value: float
    """Sum of the logits of its tokens, each minus the logit of `versus`."""
    rest: float
    """value minus all estimates."""
    parts: tuple[MessageSpan, ...] = Field(repr=False)
    """All spans of the messages, in order."""
    verify: tuple[RemovedSpan, ...] | None = Field(default=None, repr=False)
    """The spans with the largest absolute estimates, each removed separately."""

    def strongest(self) -> MessageSpan:
        """Return the span that the sentence depends on most: by the measured effects, or the estimates without any."""
        if self.verify:
            return self.parts[min(self.verify, key=lambda row: row.effect).span]
        return max(self.parts, key=lambda part: part.estimate)

    def _repr_html_(self) -> str:
        """Return the notebook view: the sentence, and its spans with the largest estimates."""
        effects = {row.span: row.effect for row in self.verify or ()}
        order = sorted(range(len(self.parts)), key=lambda span: -abs(self.parts[span].estimate))[:_MOST_LISTED]
        rows = [
            [part.message, f"{part.start} to {part.end}", part.estimate, effects.get(span, "")]
            for span, part in ((span, self.parts[span]) for span in order)
        ]
        tables = [table("spans, the largest first", ["message", "characters", "estimate", "effect"], rows)]
        return page(self.text, tables, iter(()), 0)


def with_reasons(whole: Result, rows: str, parts: Iterable[Any]) -> str:
    """Return the notebook view of an answer: a table, and the reasons of each part."""
    told = [part.reasons._repr_html_() for part in parts if part.reasons is not None]
    return page(type(whole).__name__, [rows, *told], iter(()), 0)


def _named(part: WordPart | HeadPart | LayerPart) -> list[tuple[str, float]]:
    if isinstance(part, LayerPart):
        return [(f"layer {part.layer}, attention", part.attention), (f"layer {part.layer}, mlp", part.mlp)]
    if isinstance(part, HeadPart):
        return [(f"layer {_layer_name(part)}, head {part.head}", part.value)]
    return [(_word_name(part), part.value)]


def _layer_name(part: HeadPart) -> str:
    return f"cross {part.layer}" if part.part == "cross" else str(part.layer)


def _place(word: WordPart | RemovedWord) -> str:
    return f"encoder {word.position}" if word.stack == "encoder" else str(word.position)


def _word_name(word: WordPart | RemovedWord) -> str:
    return f"{word.token} ({_place(word)})"


def _without(row: Verified) -> str:
    if len(row.words) > 1:
        return f"all {len(row.words)}"
    return ", ".join(_word_name(word) for word in row.words)


def _coloured(words: Sequence[WordPart]) -> str:
    """Return the text as HTML, each word on the colour of its part, which its title gives; the encoder's on a line of
    its own.
    """
    reach = max((abs(word.value) for word in words), default=0.0) or 1.0
    lines: dict[str | None, list[tuple[str, str, float]]] = {}
    for word in words:
        piece = (word.token, f"{_place(word)}: {word.value:.4g}", word.value / reach)
        lines.setdefault(word.stack, []).append(piece)
    return "".join(map(coloured, lines.values()))
