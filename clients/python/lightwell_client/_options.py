"""The keyword arguments of the client's methods, as types. Names are the wire's; nothing here sends or checks values.

Every argument may be left out; one that is None is not sent, and the server's default holds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import httpx

Message = Mapping[str, Any]
"""One chat message: {"role": "user", "content": "..."}."""

Prompt = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""A text, texts, the token ids of one text, or of several."""

OneText = str | Sequence[int] | Sequence[Message]
"""A text, its token ids, or the messages of a conversation."""

Texts = list[str] | list[list[int]]
"""Several texts, or the token ids of several."""

Selection = Literal["all"] | int | Sequence[int]
"""Which of an axis: all, one, or several; negative numbers count from the end."""


class Options(TypedDict, total=False):
    """What every call takes."""

    timeout: float | httpx.Timeout | None
    """Seconds of silence before TimedOut, in place of the client's; None waits for ever."""
    extra_body: Mapping[str, Any]
    """Fields for the body that have no argument of their own."""
    extra_headers: Mapping[str, str]


class ModelOptions(Options, total=False):
    """What every call about a model takes."""

    model: str
    """In place of the client's."""


class SamplingOptions(ModelOptions, total=False):
    """How tokens are chosen and when the text ends."""

    max_tokens: int
    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    n: int
    """Choices for each prompt."""
    logit_bias: Mapping[int, float] | Mapping[str, float]
    prompt_logprobs: int
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    truncate: bool
    """Drop the beginning of a prompt that does not fit, instead of being refused."""
    return_token_ids: bool
    attention: Mapping[str, Any]
    """Attention rows with each token: {"layers", "heads" or "pairs", "kind", "dtype", "top_k", "prompt"}."""
    interventions: Sequence[Mapping[str, Any]]
    """Changes inside the network while the text is written: plain dicts, or what zero, add, patch ... make."""
    decoder_input: Any
    """For encoder-decoders: what the decoder has read; the prompt is then the encoder's."""
    include_usage: bool
    """Streams only: a last chunk that carries the token counts."""


class GenerateOptions(SamplingOptions, total=False):
    """`generate` and `stream`."""

    logprobs: int
    """Alternatives to report with each token."""
    echo: bool
    add_special_tokens: bool


class ChatOptions(SamplingOptions, total=False):
    """`chat` and `chat_stream`."""

    logprobs: bool
    top_logprobs: int
    max_completion_tokens: int
    add_generation_prompt: bool


class AttentionOptions(ModelOptions, total=False):
    """`attention`."""

    completion: Any
    """Text or token ids that follow the input, in the input's form."""
    decoder_input: Any
    part: Literal["decoder", "encoder", "cross"]
    add_special_tokens: bool
    truncate: bool
    layers: Selection
    heads: Selection
    pairs: Sequence[Sequence[int]]
    """[layer, head] pairs, in place of layers and heads."""
    query_positions: Selection
    key_positions: Selection
    kind: Literal["pattern", "scores", "dots"]
    """Masked keys are 0 in a pattern and -inf in scores and dots."""
    reduce: Literal["mean", "max"]
    """Over the heads of each layer."""
    orientation: Literal["rows", "columns"]
    top_k: int
    """Only the k largest keys of each row; their positions are then in `indices`."""
    resize: int
    dtype: Literal["float32", "float16", "uint8"]
    interventions: Sequence[Mapping[str, Any]]
    """Changes inside the network while the request runs: plain dicts, or what zero, add, patch ... make."""


class EmbeddingOptions(ModelOptions, total=False):
    """`embed`."""

    layer: int
    """0 is the token embedding, i the residual stream after block i; left out, the last after the final norm."""
    pooling: Literal["mean", "last", "cls", "none"]
    normalize: bool
    dimensions: int
    add_special_tokens: bool
    truncate: bool


class TokenizeOptions(ModelOptions, total=False):
    """`tokenize`."""

    add_special_tokens: bool
    add_generation_prompt: bool


class DetokenizeOptions(ModelOptions, total=False):
    """`detokenize`."""

    skip_special_tokens: bool
