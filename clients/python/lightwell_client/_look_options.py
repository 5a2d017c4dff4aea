"""The keyword arguments of the methods that look inside, as types; see _options."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightwell_client._options import ModelOptions, Selection


class LookOptions(ModelOptions, total=False):
    """What all of them take."""

    completion: Any
    """Text or token ids that follow the input, in the input's form."""
    decoder_input: Any
    """For encoder-decoders: what the decoder has read; the input is then the encoder's."""
    add_special_tokens: bool
    truncate: bool
    interventions: Sequence[Mapping[str, Any]]
    """Changes inside the network while the request runs: plain dicts, or what zero, add, patch ... make."""


class TraceOptions(LookOptions, total=False):
    """`trace`."""

    layers: Selection
    """Of names without a layer."""
    heads: Selection
    positions: Selection
    key_positions: Selection
    dtype: Literal["float32", "float16"]


class NextOptions(LookOptions, total=False):
    """`next`."""

    position: int
    temperatures: Sequence[float]
    top_k: int
    top_p: float
    min_p: float
    num_tokens: int
    full: bool
    """Also the whole vocabulary, as arrays."""


class LensOptions(LookOptions, total=False):
    """`lens`."""

    layers: Selection
    """0 is the embedding, i the stream after block i."""
    positions: Selection
    top_k: int
    target: str | int
    """A text that is one token, or a token id."""


class ExplainOptions(LookOptions, total=False):
    """`explain`."""

    query_position: int
    part: Literal["decoder", "encoder", "cross"]


class ContributionsOptions(LookOptions, total=False):
    """`contributions`."""

    layers: Selection
    heads: Selection
    query_positions: Selection
    key_positions: Selection
    part: Literal["decoder", "encoder", "cross"]
    target: str | int
    versus: str | int
    """Another token, whose logit is taken from the target's."""


class TrajectoryOptions(LookOptions, total=False):
    """`trajectory`."""

    positions: Selection
    compare_positions: Selection
    part: Literal["decoder", "encoder"]


class HeadsOptions(LookOptions, total=False):
    """`heads`."""

    layers: Selection
    heads: Selection
    part: Literal["decoder", "encoder"]
    repeat_length: int
    """Without an input: random tokens before they are repeated."""
    num_sequences: int
    seed: int


class RolloutOptions(LookOptions, total=False):
    """`rollout`."""

    method: Literal["rollout", "flow"]
    layers: Selection
    heads: Selection
    """Whose patterns are averaged in each layer."""
    query_positions: Selection
    part: Literal["decoder", "encoder"]


class GeometryOptions(ModelOptions, total=False):
    """`geometry`."""

    axis: Literal["rows", "columns"]
    layer: int
    head: int
    pairs: int | Literal["all"]
    """Compare so many pairs, drawn, where there are more; "all" compares each, which can take minutes."""
    seed: int
    spectrum: bool


class CircuitsOptions(ModelOptions, total=False):
    """`circuits`."""

    part: Literal["decoder", "encoder", "cross"]
    layers: Selection
    heads: Selection
    compose: bool
    """Also how heads of later layers read what earlier ones write."""


class CorrelationsOptions(LookOptions, total=False):
    """`correlations`."""

    layer: int
    heads: Selection
    positions: Selection
    units: Selection
    num_strongest: int
