"""Predictions: the next token's distribution, and each layer's own prediction (the logit lens)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from lightwell_client._inspection import Inspection
from lightwell_client._inspection_result import InspectionResult
from lightwell_client._notebook import table
from lightwell_client._options import InspectionOptions, Selection
from lightwell_client._plots import axes_for, heat_map, visible, write_cells
from lightwell_client._reasons import Explain, Reasons
from lightwell_client._result import Result
from lightwell_client._signatures import Argument


class NextToken(Result):
    """One token that may come next."""

    token_id: int
    token: str
    logit: float | None
    """The logit before the temperature; None is minus infinity."""
    probability: float
    """The probability at this temperature, over the whole vocabulary."""
    kept_probability: float
    """The probability after top_k, min_p and top_p; 0 when the token was dropped."""


class NextAtTemperature(Result):
    """The distribution at one temperature. Entropies are in nats."""

    temperature: float
    entropy: float
    kept_entropy: float
    num_kept: int
    tokens: tuple[NextToken, ...] = Field(default=(), repr=False)
    """The likeliest tokens, in falling order."""


class NextOptions(InspectionOptions, total=False):
    """The options of `next`."""

    position: Annotated[
        int | None,
        Argument(
            "Position before the predicted token, negative from the end; None is the last, or an encoder's first mask.",
            None,
        ),
    ]
    temperatures: Annotated[
        Sequence[float], Argument("The logits are divided by each of them; 0 puts all on the largest.", (1.0,))
    ]
    top_k: Annotated[int, Argument("Keep the k likeliest tokens; 0 keeps all.", 0)]
    top_p: Annotated[float, Argument("Keep the likeliest tokens of this probability mass.", 1.0)]
    min_p: Annotated[float, Argument("Drop tokens below this fraction of the likeliest.", 0.0)]
    num_tokens: Annotated[int, Argument("How many of the likeliest tokens to name.", 10)]
    full: Annotated[bool, Argument("Also the whole vocabulary, as arrays.", False)]
    explain: Explain


class NextResult(InspectionResult):
    """The next token of one input. With full=True it also has the arrays logits [token], and probabilities and kept
    [temperature, token].
    """

    position: int
    """The position that predicts."""
    temperatures: tuple[NextAtTemperature, ...]
    reasons: Reasons | None = Field(default=None, repr=False)
    """With `explain`: why the likeliest token is the likeliest."""

    @property
    def top(self) -> NextToken:
        """Return the likeliest token, at the first temperature."""
        return self.temperatures[0].tokens[0]

    def _tables(self) -> list[str]:
        tables = [
            table(
                f"position {self.position}, temperature {one.temperature:g}",
                ["token", "id", "logit", "probability", "kept"],
                [[t.token, t.token_id, t.logit, t.probability, t.kept_probability] for t in one.tokens],
            )
            for one in self.temperatures
        ]
        return tables if self.reasons is None else [*tables, self.reasons._repr_html_()]

    def plot(self, ax: Any = None) -> Any:
        """Draw the likeliest tokens as bars, one colour per temperature; tokens that truncation dropped are pale.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        axes = axes_for(ax)
        height = 0.8 / len(self.temperatures)
        for number, one in enumerate(self.temperatures):
            places = [i + number * height for i in range(len(one.tokens))]
            colour = f"C{number}"
            axes.barh(places, [token.probability for token in one.tokens], height, color=colour, alpha=0.3)
            kept = [token.probability if token.kept_probability else 0.0 for token in one.tokens]
            axes.barh(places, kept, height, color=colour, label=f"temperature {one.temperature:g}")
        names = [visible(token.token) for token in self.temperatures[0].tokens]
        axes.set_yticks([i + 0.4 - height / 2 for i in range(len(names))], names)
        axes.invert_yaxis()
        axes.set_xlabel("probability")
        axes.set_title(f"next token after position {self.position}")
        axes.legend()
        return axes


NEXT = Inspection("next", NextResult, NextOptions)


class TargetToken(Result):
    """The token that an answer is about."""

    token_id: int
    token: str


class LensOptions(InspectionOptions, total=False):
    """The options of `lens`."""

    layers: Annotated[Selection, Argument("States: 0 is the embedding, i the stream after block i.", "all")]
    positions: Annotated[Selection, Argument('"all", a position, or several; negative from the end.', "all")]
    top_k: Annotated[int, Argument("How many of the likeliest tokens to name.", 5)]
    target: Annotated[
        str | int,
        Argument("A text that is one token, or a token id: its rank and probability are returned at every place."),
    ]


class LensResult(InspectionResult):
    """Each layer's prediction at each position. Arrays: ids and probabilities [layer, position, k], entropy in nats
    [layer, position]; with a target target_probabilities and target_ranks [layer, position], 1 the likeliest.
    """

    layers: tuple[int, ...]
    """The layers: 0 is the embedding, i the residual stream after block i; the last is the model's own prediction."""
    positions: tuple[int, ...] = Field(repr=False)
    top_tokens: tuple[tuple[tuple[str, ...], ...], ...] = Field(repr=False)
    """The tokens as [layer][position][k], likeliest first."""
    target: TargetToken | None = None

    def _tables(self) -> list[str]:
        heads = ["layer", *(visible(self.tokens[position]) for position in self.positions)]
        rows = [[layer, *(cell[0] for cell in row)] for layer, row in zip(self.layers, self.top_tokens, strict=True)]
        return [table("the likeliest token", heads, rows)]

    def plot(self, ax: Any = None) -> Any:
        """Draw layers x positions: the likeliest token in each cell, darker where its probability is higher (or, with a
        target, where the target is likelier).

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        probabilities = self["probabilities"][:, :, 0] if self.target is None else self["target_probabilities"]
        label = "probability of the likeliest" if self.target is None else f"probability of {self.target.token!r}"
        names = ("layer", "position")
        columns = [self.tokens[position] for position in self.positions]
        axes = heat_map(probabilities, [str(layer) for layer in self.layers], columns, names=names, label=label, ax=ax)
        axes.invert_yaxis()
        texts = [[cell[0] for cell in row] for row in self.top_tokens]
        write_cells(axes, texts, probabilities > probabilities.max() / 2)
        return axes


LENS = Inspection("lens", LensResult, LensOptions)
