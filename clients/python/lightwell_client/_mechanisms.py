"""Mechanisms of a pass: a head's steps, contributions of keys to queries, changes of vectors through the layers,
scores of heads, attention through layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lightwell_client._inspection import Inspection
from lightwell_client._inspection_result import InspectionResult
from lightwell_client._options import AnyPart, InspectionOptions, Selection
from lightwell_client._places import place_of, total_of
from lightwell_client._plots import axes_for, bars, heat_map, many_maps, visible
from lightwell_client._predictions import TargetToken
from lightwell_client._result import Result
from lightwell_client._signatures import Argument

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

_STACKS = Argument("Of an encoder-decoder: which stack; left out, the decoder.")


class Softmax(Result):
    """The numbers that turn scores into weights, or None if a score overflowed."""

    largest_score: float | None
    sum_of_exponentials: float | None
    sum_of_weights: float | None
    sink: float | None = None
    sink_exponential: float | None = 0.0


class ExplainOptions(InspectionOptions, total=False):
    """The options of `explain`."""

    query_position: Annotated[int, Argument("The position that looks; negative counts from the end.", -1)]
    part: AnyPart


class Explanation(InspectionResult):
    """Every step of one query of one head. Arrays in the order in which they are computed: q_projected, k_projected,
    q, k, products [key, d_head] (their sum is the dot), dots, scaled, capped, position_bias, scores (-inf where
    masked), exponentials, weights, v, weighted_v, z [d_head], output [d_model] (z W_O), output_bias.
    """

    part: str
    layer: int
    head: int
    kv_head: int
    """The key and value head that it shares with its group."""
    query_position: int
    key_positions: tuple[int, ...] = Field(repr=False)
    scale: float
    softcap: float | None = None
    window: int | None = None
    causal: bool
    softmax: Softmax
    differences: dict[str, float | None] = Field(default_factory=dict, repr=False)
    """Largest distance between these steps and the network's own numbers, or None if it is not finite."""

    @property
    def key_labels(self) -> list[str]:
        """Return the token at each key position."""
        tokens = self.encoder_tokens if self.part in ("cross", "encoder") and self.encoder_tokens else self.tokens
        return [tokens[position] for position in self.key_positions]

    def plot(self, ax: Any = None) -> Any:
        """Draw the weight on each key as bars.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        pairs = list(zip(self.key_labels, map(float, self["weights"]), strict=True))
        title = f"layer {self.layer}, head {self.head}: weights of query {self.query_position}"
        return bars(pairs, label="weight", title=title, ax=ax)


EXPLAIN = Inspection("explain", Explanation, ExplainOptions)


class ContributionsOptions(InspectionOptions, total=False):
    """The options of `contributions`."""

    layers: Annotated[Selection, Argument('"all", a layer, or several; negative counts from the end.', "all")]
    heads: Annotated[Selection, Argument('"all", a head, or several; negative counts from the end.', "all")]
    query_positions: Annotated[Selection, Argument('Whom is added to: "all", a position, or several.', -1)]
    key_positions: Annotated[Selection, Argument('By whom: "all", a position, or several.', "all")]
    part: AnyPart
    target: Annotated[str | int, Argument("A text that is one token, or a token id: also its logit's parts.")]
    versus: Annotated[str | int, Argument("Another token; its logit is subtracted from the target's.")]
    vectors: Annotated[bool, Argument("Also the vectors themselves, and all else that is added to the stream.", False)]
    sum_over: Annotated[
        Sequence[Literal["layer", "head", "key"]], Argument("Axes over which the vectors are summed.", ())
    ]


class Contributions(InspectionResult):
    """Contributions of keys to queries. Arrays: norms [layer, head, query, key], the length of each key's contribution
    through each head; with a target attributions [layer, head, query, key], its part of the target's logit, and
    components [query, component]; with vectors also vectors [layer, head, query, key, d_model] without the axes of
    sum_over, additions [addition, query, d_model], and states [state, query, d_model]; the last state is their sum.
    """

    part: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    query_positions: tuple[int, ...] = Field(repr=False)
    key_positions: tuple[int, ...] = Field(repr=False)
    target: TargetToken | None = None
    versus: TargetToken | None = None
    component_names: tuple[str, ...] | None = Field(default=None, repr=False)
    logits: tuple[float, ...] | None = Field(default=None, repr=False)
    """The logit of each query: the sum of its components."""
    final_softcap: float | None = None
    difference: float | None = None
    """Largest distance of that sum from the model's own logit."""
    addition_names: tuple[str, ...] | None = Field(default=None, repr=False)
    stream_difference: float | None = None
    """Largest length of the rounding errors in the stream."""

    def by_key(self, query: int | None = None) -> Array:
        """Return the contribution of each key [key] to the query at a position, over all layers and heads of this
        answer: summed attributions if there is a target, summed norms otherwise.

        query: negative counts from the end; None is the only one of this answer.

        Raises:
            ValueError: this answer does not have that query, or has several and none was named.
        """
        name = "attributions" if "attributions" in self else "norms"
        tokens = self.encoder_tokens if self.part == "encoder" and self.encoder_tokens else self.tokens
        place = place_of("query", query, self.query_positions, len(tokens))
        summed: Array = self[name][:, :, place].sum(axis=(0, 1))
        return summed

    def plot(self, query: int | None = None, ax: Any = None) -> Any:
        """Draw `by_key` as bars, or without `query` the sums of several queries as a map [query, key].

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: this answer does not have that query.
        """
        tokens = self.encoder_tokens if self.part in ("cross", "encoder") and self.encoder_tokens else self.tokens
        keys = [tokens[position] for position in self.key_positions]
        label = "contribution, " + ("norms" if self.target is None else f"logit of {self.target.token!r}")
        if query is None and len(self.query_positions) > 1:
            tokens = self.encoder_tokens if self.part == "encoder" and self.encoder_tokens else self.tokens
            queries = [tokens[position] for position in self.query_positions]
            summed = self["attributions" if "attributions" in self else "norms"].sum(axis=(0, 1))
            return heat_map(summed, queries, keys, names=("query", "key"), label=label, ax=ax)
        return bars(list(zip(keys, map(float, self.by_key(query)), strict=True)), label=label, ax=ax)


CONTRIBUTIONS = Inspection("contributions", Contributions, ContributionsOptions)


class TrajectoryOptions(InspectionOptions, total=False):
    """The options of `trajectory`."""

    positions: Annotated[Selection, Argument('Whose way: "all", a position, or several; negative from the end.', -1)]
    compare_positions: Annotated[Selection, Argument("Also the cosine to these positions at every layer.")]
    part: Annotated[Literal["decoder", "encoder"], _STACKS]


class Trajectory(InspectionResult):
    """How the vectors of some positions change through the layers. Arrays [position, state]: norms, steps,
    cosine_to_start, cosine_to_previous; cosine_to_others [position, state, other]. State 0 is the embedding, i the
    residual stream after block i.
    """

    part: str
    positions: tuple[int, ...]
    compare_positions: tuple[int, ...] | None = None

    def plot(self, name: str = "cosine_to_start", ax: Any = None) -> Any:
        """Draw one of the arrays as lines over the states, one line per position.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        axes = axes_for(ax)
        for position, line in zip(self.positions, self[name], strict=True):
            axes.plot(line, label=visible(self.tokens[position]) if self.part != "encoder" else str(position))
        axes.set_xlabel("layer")
        axes.set_ylabel(name)
        axes.set_title(name)
        axes.legend()
        return axes


TRAJECTORY = Inspection("trajectory", Trajectory, TrajectoryOptions)


class HeadsOptions(InspectionOptions, total=False):
    """The options of `heads`."""

    layers: Annotated[Selection, Argument('"all", a layer, or several; negative counts from the end.', "all")]
    heads: Annotated[Selection, Argument('"all", a head, or several; negative counts from the end.', "all")]
    part: Annotated[Literal["decoder", "encoder"], _STACKS]
    repeat_length: Annotated[
        int,
        Argument("Without an input: number of random tokens before their repetition; by default 50, or all that fit."),
    ]
    num_sequences: Annotated[int, Argument("Random sequences that the scores are averaged over.", 4)]
    seed: Annotated[int, Argument("Of the random tokens: the same seed, the same tokens.", 0)]


class HeadScores(InspectionResult):
    """Scores of each head: array scores [layer, head, measure]."""

    part: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    measures: tuple[str, ...]
    strongest: dict[str, Any] = Field(default_factory=dict, repr=False)
    """For each measure the heads with the largest score."""
    repeat_length: int | None = None
    num_sequences: int | None = None

    def scores(self, measure: str) -> Array:
        """Return the scores [layer, head] of one measure.

        Raises:
            ValueError: not a measure of this answer.
        """
        if measure not in self.measures:
            raise ValueError(f"measure is {measure!r}; this answer has {', '.join(self.measures)}")
        found: Array = self["scores"][:, :, self.measures.index(measure)]
        return found

    def plot(self, measure: str = "induction", versus: str | None = None, ax: Any = None) -> Any:
        """Draw one measure as layers x heads, or, with `versus`, each head as a point between two measures.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: not a measure of this answer.
        """
        found = self.scores(measure)
        if versus is None:
            rows, columns = [str(layer) for layer in self.layers], [str(head) for head in self.heads]
            return heat_map(found, rows, columns, names=("layer", "head"), label=measure, ax=ax)
        axes = axes_for(ax)
        other = self.scores(versus)
        axes.scatter(other, found)
        for i, layer in enumerate(self.layers):
            for j, head in enumerate(self.heads):
                axes.annotate(f"{layer}.{head}", (other[i, j], found[i, j]), fontsize=7)
        axes.set_xlabel(versus)
        axes.set_ylabel(measure)
        axes.set_title(f"{measure} and {versus} of each head")
        return axes


HEADS = Inspection("heads", HeadScores, HeadsOptions)


class RolloutOptions(InspectionOptions, total=False):
    """The options of `rollout`."""

    method: Annotated[
        Literal["rollout", "flow"],
        Argument("The product of the layers, or the maximum flow through their graph.", "rollout"),
    ]
    layers: Annotated[Selection, Argument('Up to which layers: "all", a layer, or several.', -1)]
    heads: Annotated[Selection, Argument("Whose patterns are averaged in each layer.", "all")]
    query_positions: Annotated[Selection, Argument("Rows; left out, all for rollout and the last position for flow.")]
    part: Annotated[Literal["decoder", "encoder"], _STACKS]


class Rollout(InspectionResult):
    """Attention through the layers (Abnar and Zuidema 2020): rollout, or flow and normalized, [layer, query, key]."""

    part: str
    method: str
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None = None
    """The heads in this mean pattern."""
    query_positions: tuple[int, ...] = Field(repr=False)

    def matrix(self, layer: int | None = None) -> Array:
        """Return the map [query, key] up to a layer, negative from the model's end; rows sum to 1.

        Raises:
            ValueError: not a layer of this answer, or left out where there are several.
        """
        stack = "encoder" if self.part == "encoder" else "decoder"
        place = place_of("layer", layer, self.layers, total_of(self.stacks, stack, "layer"))
        found: Array = self["rollout" if "rollout" in self else "normalized"][place]
        return found

    def plot(self, layer: int | None = None, ax: Any = None) -> Any:
        """Draw `matrix` as a heat map, or without `layer` the maps of several layers side by side.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: not a layer of this answer.
        """
        if layer is None and len(self.layers) > 1:
            maps = self["rollout" if "rollout" in self else "normalized"][:, None]
            rows, title = [str(each) for each in self.layers], f"{self.method}: {len(self.layers)} layers"
            return many_maps(maps, rows, [""], names=("layer", ""), label=self.method, title=title, ax=ax)
        matrix = self.matrix(layer)
        tokens = self.encoder_tokens if self.part == "encoder" and self.encoder_tokens else self.tokens
        rows = [tokens[position] for position in self.query_positions]
        columns = list(tokens[: matrix.shape[1]])
        title = f"{self.method} up to layer {self.layers[0] if layer is None else layer}"
        return heat_map(matrix, rows, columns, names=("query", "key"), label=self.method, title=title, ax=ax)


ROLLOUT = Inspection("rollout", Rollout, RolloutOptions)
