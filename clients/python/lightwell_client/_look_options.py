"""The keyword arguments of the methods that look inside; see _options."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from lightwell_client._options import ModelOptions, SamplingOptions, Selection
from lightwell_client._signatures import Argument, documented

_STACKS = Argument("Of an encoder-decoder: which stack; left out, the decoder.")


class LookOptions(ModelOptions, total=False):
    """What all of them take."""

    completion: Annotated[Any, Argument("Text or token ids that follow the input, in the input's form.")]
    decoder_input: Annotated[
        Any, Argument("For encoder-decoders: what the decoder has read; the input is then the encoder's.")
    ]
    add_special_tokens: Annotated[bool, Argument("Let the tokenizer add its special tokens to a text.", True)]
    truncate: Annotated[
        bool, Argument("Cut the end of an input that is over the context, instead of being refused.", False)
    ]
    interventions: Annotated[
        Sequence[Mapping[str, Any]],
        Argument("Changes inside the network meanwhile: plain dicts, or what zero, add, patch ... make."),
    ]


class TraceOptions(LookOptions, total=False):
    """`trace`."""

    layers: Annotated[Selection, Argument("Of names without a layer; negative counts from the end.", "all")]
    heads: Annotated[
        Selection, Argument("Of points with heads (of k and v the key heads); negative from the end.", "all")
    ]
    positions: Annotated[
        Selection, Argument("Of each point's own sequence; of scores and patterns the queries.", "all")
    ]
    key_positions: Annotated[Selection, Argument("The keys of scores and patterns.", "all")]
    dtype: Annotated[Literal["float32", "float16"], Argument("Number format.", "float32")]


class NextOptions(LookOptions, total=False):
    """`next`."""

    position: Annotated[int, Argument("The position whose next token is asked for; negative from the end.", -1)]
    temperatures: Annotated[
        Sequence[float], Argument("The logits are divided by each of them; 0 puts all on the largest.", (1.0,))
    ]
    top_k: Annotated[int, Argument("Keep the k likeliest tokens; 0 keeps all.", 0)]
    top_p: Annotated[float, Argument("Keep the likeliest tokens of this probability mass.", 1.0)]
    min_p: Annotated[float, Argument("Drop tokens below this fraction of the likeliest.", 0.0)]
    num_tokens: Annotated[int, Argument("How many of the likeliest tokens to name.", 10)]
    full: Annotated[bool, Argument("Also the whole vocabulary, as arrays.", False)]


class LensOptions(LookOptions, total=False):
    """`lens`."""

    layers: Annotated[Selection, Argument("States: 0 is the embedding, i the stream after block i.", "all")]
    positions: Annotated[Selection, Argument('"all", a position, or several; negative from the end.', "all")]
    top_k: Annotated[int, Argument("How many of the likeliest tokens to name.", 5)]
    target: Annotated[
        str | int, Argument("A text that is one token, or a token id: its rank and probability are told everywhere.")
    ]


class ExplainOptions(LookOptions, total=False):
    """`explain`."""

    query_position: Annotated[int, Argument("The position that looks; negative counts from the end.", -1)]
    part: Annotated[
        Literal["decoder", "encoder", "cross"],
        Argument("Whose attention; cross is the decoder looking at the encoder. Left out, the model's own."),
    ]


class ContributionsOptions(LookOptions, total=False):
    """`contributions`."""

    layers: Annotated[Selection, Argument('"all", a layer, or several; negative counts from the end.', "all")]
    heads: Annotated[Selection, Argument('"all", a head, or several; negative counts from the end.', "all")]
    query_positions: Annotated[Selection, Argument('Whom is added to: "all", a position, or several.', -1)]
    key_positions: Annotated[Selection, Argument('By whom: "all", a position, or several.', "all")]
    part: Annotated[
        Literal["decoder", "encoder", "cross"],
        Argument("Whose attention; cross is the decoder looking at the encoder. Left out, the model's own."),
    ]
    target: Annotated[str | int, Argument("A text that is one token, or a token id: also its logit's parts.")]
    versus: Annotated[str | int, Argument("Another token, whose logit is taken from the target's.")]


class TrajectoryOptions(LookOptions, total=False):
    """`trajectory`."""

    positions: Annotated[Selection, Argument('Whose way: "all", a position, or several; negative from the end.', -1)]
    compare_positions: Annotated[Selection, Argument("Also the cosine to these positions at every layer.")]
    part: Annotated[Literal["decoder", "encoder"], _STACKS]


class HeadsOptions(LookOptions, total=False):
    """`heads`."""

    layers: Annotated[Selection, Argument('"all", a layer, or several; negative counts from the end.', "all")]
    heads: Annotated[Selection, Argument('"all", a head, or several; negative counts from the end.', "all")]
    part: Annotated[Literal["decoder", "encoder"], _STACKS]
    repeat_length: Annotated[
        int, Argument("Without an input: random tokens before they are repeated; left out, 50 or what fits.")
    ]
    num_sequences: Annotated[int, Argument("Random sequences that the scores are averaged over.", 4)]
    seed: Annotated[int, Argument("Of the random tokens: the same seed, the same tokens.", 0)]


class RolloutOptions(LookOptions, total=False):
    """`rollout`."""

    method: Annotated[
        Literal["rollout", "flow"],
        Argument("The product of the layers, or the maximum flow through their graph.", "rollout"),
    ]
    layers: Annotated[Selection, Argument('Up to which layers: "all", a layer, or several.', -1)]
    heads: Annotated[Selection, Argument("Whose patterns are averaged in each layer.", "all")]
    query_positions: Annotated[Selection, Argument("Rows; left out, all for rollout and the last position for flow.")]
    part: Annotated[Literal["decoder", "encoder"], _STACKS]


class GeometryOptions(ModelOptions, total=False):
    """`geometry`."""

    axis: Annotated[Literal["rows", "columns"], Argument("Which vectors are compared.", "rows")]
    layer: Annotated[int, Argument("Of a name without one; negative counts from the end.")]
    head: Annotated[int, Argument("One head's part of an attention matrix; left out, all side by side.")]
    pairs: Annotated[
        int | Literal["all"],
        Argument('Compare so many pairs, drawn; "all" takes minutes. Left out, all where quick, else a million.'),
    ]
    seed: Annotated[int, Argument("Of the drawing.", 0)]
    spectrum: Annotated[bool, Argument("Also the singular values and what they say.", True)]


class CircuitsOptions(ModelOptions, total=False):
    """`circuits`."""

    part: Annotated[
        Literal["decoder", "encoder", "cross"],
        Argument("Whose attention; cross is the decoder looking at the encoder. Left out, the model's own."),
    ]
    layers: Annotated[Selection, Argument('"all", a layer, or several; negative counts from the end.', "all")]
    heads: Annotated[Selection, Argument('"all", a head, or several; negative counts from the end.', "all")]
    compose: Annotated[bool, Argument("Also how heads of later layers read what earlier ones write.", False)]


class CorrelationsOptions(LookOptions, total=False):
    """`correlations`."""

    layer: Annotated[int, Argument("Of a name without one; negative counts from the end.")]
    heads: Annotated[Selection, Argument("Of a point with heads; negative counts from the end.", "all")]
    positions: Annotated[Selection, Argument("Of each input: the samples.", "all")]
    units: Annotated[Selection, Argument("Of the point's last axes, numbered as they lie.", "all")]
    num_strongest: Annotated[int, Argument("Pairs that are named.", 32)]


documented_arguments = documented(
    (ModelOptions, LookOptions, SamplingOptions),
    {
        "prompt": "A text, texts, the token ids of one text, or of several.",
        "messages": 'Messages like {"role": "user", "content": "..."}, or a bare text, which the user says.',
        "input": "A text, its token ids, or messages; a list of texts or of ids gives a list of results.",
        "points": 'Names of points: "attn.hook_q" in every layer (or in `layers`), "blocks.0.attn.hook_q" in one.',
        "point": 'The name of a point: "blocks.0.attn.hook_q", or "attn.hook_q" with `layer`.',
        "layer": "The layer's number; negative counts from the end.",
        "head": "The head's number; negative counts from the end.",
        "matrix": 'The name of a matrix: "W_E", "blocks.0.attn.W_V", or "mlp.W_in" with `layer`.',
        "text": "A text, or messages as the chat template writes them.",
        "token_ids": "Token ids.",
        "model": "The model to ask; left out, the client's, or the only one that the server has.",
    },
)
"""Decorates a client: see _signatures. What an argument that has a place of its own means, it means in every method."""
