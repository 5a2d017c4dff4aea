"""The keyword arguments of the client's methods: types, the server's defaults, and a line of description each. Names
are the wire's; nothing here sends or checks values.

Every argument may be left out; one that is None is not sent, and the server's default holds. help() and notebooks show
these texts: see _signatures.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import httpx

from lightwell_client._reasons import ChatReasonsOptions
from lightwell_client._results import ChatMessage
from lightwell_client._signatures import Argument, documented

Message = Mapping[str, Any] | ChatMessage
"""One chat message: {"role": "user", "content": "..."}, or the assistant's of an answer."""

Prompt = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
"""A text, texts, the token ids of one text, or of several."""

OneText = str | Sequence[int] | Sequence[Message]
"""A text, its token ids, or the messages of a conversation."""

Texts = list[str] | list[list[int]]
"""Several texts, or the token ids of several."""

Selection = Literal["all"] | int | Sequence[int] | slice
"""Which indices of an axis: all, one, several, or a slice; negative numbers count from the end."""


AnyPart = Annotated[
    Literal["decoder", "encoder", "cross"],
    Argument("Whose attention; cross is the decoder looking at the encoder. Left out, the model's own."),
]
"""The `part` of methods that take cross attention too."""
Interventions = Annotated[
    Mapping[str, Any] | Sequence[Mapping[str, Any]],
    Argument("Changes inside the network meanwhile: one or several, made by zero, add, patch ... or plain dicts."),
]
"""The `interventions` of every method that runs the network."""


class Options(TypedDict, total=False):
    """The options of every call."""

    timeout: Annotated[
        float | httpx.Timeout | None,
        Argument("Seconds of silence before TimedOut, in place of the client's; None waits for ever.", ...),
    ]
    extra_body: Annotated[Mapping[str, Any], Argument("Fields for the body that have no argument of their own.")]
    extra_headers: Annotated[Mapping[str, str], Argument("Headers to send in addition to the client's.")]


class ModelOptions(Options, total=False):
    """The options of every call about a model."""

    model: Annotated[str, Argument("The model to ask, in place of the client's.")]


class InspectionOptions(ModelOptions, total=False):
    """The options of every method that looks inside."""

    completion: Annotated[Any, Argument("Text or token ids that follow the input, in the input's form.")]
    decoder_input: Annotated[
        Any, Argument("For encoder-decoders: input of the decoder; the input is then the encoder's.")
    ]
    add_special_tokens: Annotated[bool, Argument("Let the tokenizer add its special tokens to a text.", True)]
    truncate: Annotated[
        bool, Argument("Cut the end of an input that is over the context, instead of being refused.", False)
    ]
    interventions: Interventions


class SamplingOptions(ModelOptions, total=False):
    """How tokens are chosen and when the text ends."""

    temperature: Annotated[float, Argument("0 is greedy and exact; left out, the model's own, or 1.")]
    top_p: Annotated[
        float, Argument("Keep the likeliest tokens of this probability mass; left out, the model's own, or 1.")
    ]
    top_k: Annotated[int, Argument("Keep the k likeliest tokens, 0 keeps all; left out, the model's own, or 0.")]
    min_p: Annotated[
        float, Argument("Drop tokens below this fraction of the likeliest; left out, the model's own, or 0.")
    ]
    repetition_penalty: Annotated[
        float, Argument("Over 1 makes tokens that were there less likely; left out, the model's own, or 1.")
    ]
    presence_penalty: Annotated[
        float, Argument("Taken once from each generated token's logit; left out, the model's own, or 0.")
    ]
    frequency_penalty: Annotated[
        float, Argument("Taken from a token's logit each time it came; left out, the model's own, or 0.")
    ]
    seed: Annotated[int, Argument("Same seed, same tokens, whatever else runs; left out, one is drawn.")]
    stop: Annotated[str | Sequence[str], Argument("Strings that end the answer; they are not part of it.")]
    stop_token_ids: Annotated[Sequence[int], Argument("Token ids that end the answer.")]
    ignore_eos: Annotated[bool, Argument("Generate beyond the end-of-text token.", False)]
    min_tokens: Annotated[int, Argument("Nothing ends the answer before it has this many tokens.", 0)]
    n: Annotated[int, Argument("Choices for each prompt.", 1)]
    logit_bias: Annotated[
        Mapping[int, float] | Mapping[str, float],
        Argument("Token id to a number from -100 to 100 that is added to its logit."),
    ]
    prompt_logprobs: Annotated[
        int, Argument("Log-probabilities of the prompt's tokens, with this number of alternatives.")
    ]
    speculation: Annotated[
        bool, Argument("Let the server check drafts of the next tokens, which changes no answer.", True)
    ]
    skip_special_tokens: Annotated[bool, Argument("Leave special tokens out of the text.", True)]
    include_stop_str_in_output: Annotated[bool, Argument("Keep the stop string or token in the text.", False)]
    truncate: Annotated[
        bool, Argument("Drop the beginning of a prompt that does not fit, instead of being refused.", False)
    ]
    return_token_ids: Annotated[
        bool, Argument("Add the token ids of prompt and answer, and with logprobs also output_logprobs.", False)
    ]
    attention: Annotated[
        Mapping[str, Any],
        Argument('Rows with each token: {"layers", "heads" or "pairs", "kind", "dtype", "top_k", "prompt"}.'),
    ]
    interventions: Interventions
    include_usage: Annotated[bool, Argument("Streams only: a last chunk that carries the token counts.", False)]


class FormOptions(TypedDict, total=False):
    """The constraints of an answer's text; at most one is accepted."""

    response_format: Annotated[
        Mapping[str, Any],
        Argument('{"type": "json_object"}, or {"type": "json_schema", "json_schema": {"name", "schema"}}: such JSON.'),
    ]
    structured_outputs: Annotated[
        Mapping[str, Any],
        Argument('Rules for the text: "json", "json_object", "regex", "choice", "grammar" or "structural_tag".'),
    ]


class GenerateOptions(FormOptions, SamplingOptions, total=False):
    """What `generate` and `stream` take."""

    max_tokens: Annotated[int, Argument("Most tokens to generate; 0 only with echo.", 16)]
    logprobs: Annotated[int, Argument("Log-probabilities of the tokens, with this number of alternatives.")]
    echo: Annotated[bool, Argument("Begin the text with the prompt.", False)]
    add_special_tokens: Annotated[bool, Argument("Let the tokenizer add its special tokens to a text prompt.", True)]
    decoder_input: Annotated[
        Any, Argument("For encoder-decoders: input of the decoder; the prompt is then the encoder's.")
    ]


class ParseOptions(SamplingOptions, total=False):
    """The options of `parse`."""

    max_tokens: Annotated[int, Argument("Most tokens to generate; left out, the rest of the context.")]
    max_completion_tokens: Annotated[int, Argument("OpenAI's newer name of max_tokens.")]
    logprobs: Annotated[bool, Argument("Give log-probabilities of the tokens.", False)]
    top_logprobs: Annotated[int, Argument("So many alternatives with each token; needs logprobs.")]
    add_generation_prompt: Annotated[bool, Argument("Let the template open the assistant's answer.", True)]
    include_reasoning: Annotated[bool, Argument("Return the model's reasoning before its answer.", True)]
    tools: Annotated[
        Sequence[Mapping[str, Any]],
        Argument('Functions to call: {"type": "function", "function": {"name", "description", "parameters"}}.'),
    ]
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | Mapping[str, Any],
        Argument('Whether to call a tool, or which: {"type": "function", "function": {"name"}}; left out, "auto".'),
    ]
    parallel_tool_calls: Annotated[bool, Argument("Let an answer call several tools.", True)]


class ChatOptions(FormOptions, ParseOptions, total=False):
    """What `chat` and `chat_stream` take."""

    prediction: Annotated[
        Mapping[str, Any], Argument('{"type": "content", "content": text that the answer mostly repeats}, as drafts.')
    ]
    explain: Annotated[
        bool | ChatReasonsOptions,
        Argument('Also the reasons of the first 16 tokens; with by "span", of each sentence, also in a stream.'),
    ]


class AttentionOptions(InspectionOptions, total=False):
    """The options of `attention`."""

    layers: Annotated[Selection, Argument('"all", a layer, or several; negative counts from the end.', "all")]
    heads: Annotated[Selection, Argument('"all", a query head, or several; negative counts from the end.', "all")]
    pairs: Annotated[Sequence[Sequence[int]], Argument("[layer, head] pairs, in place of layers and heads.")]
    part: AnyPart
    kind: Annotated[
        Literal["pattern", "scores", "dots"],
        Argument(
            "Softmaxed, the scores before, or the bare q.k; masked keys are 0 in a pattern, else -inf.", "pattern"
        ),
    ]
    query_positions: Annotated[
        Selection, Argument('Rows: "all", a position, or several; negative from the end.', "all")
    ]
    key_positions: Annotated[
        Selection, Argument('Columns: "all", a position, or several; negative from the end.', "all")
    ]
    reduce: Annotated[Literal["mean", "max"], Argument("Over the heads of each layer.")]
    orientation: Annotated[
        Literal["rows", "columns"], Argument("rows: [query, key], rows sum to 1; columns: the transpose.", "rows")
    ]
    top_k: Annotated[int, Argument("Only the k largest keys of each row; their positions are then in `indices`.")]
    resize: Annotated[int, Argument("Area mean to n x n, for thumbnails; patterns only.")]
    dtype: Annotated[
        Literal["float32", "float16", "uint8"],
        Argument("Number format; uint8 is round(255 p), for patterns.", "float32"),
    ]


class EmbeddingOptions(ModelOptions, total=False):
    """The options of `embed`."""

    layer: Annotated[
        int, Argument("0 is the token embedding, i the stream after block i; left out, the last after the final norm.")
    ]
    pooling: Annotated[
        Literal["mean", "last", "cls", "none"],
        Argument('"none" gives one vector a token; left out, the model\'s own.'),
    ]
    normalize: Annotated[
        bool, Argument("Scale each vector to length 1; left out, as the model's files say, else True.")
    ]
    dimensions: Annotated[int, Argument("Keep the first n numbers of each vector.")]
    add_special_tokens: Annotated[bool, Argument("Let the tokenizer add its special tokens to a text.", True)]
    truncate: Annotated[
        bool, Argument("Cut the end of an input over the limit; left out, as the model's files say, else False.")
    ]


class TokenizeOptions(ModelOptions, total=False):
    """The options of `tokenize`."""

    add_special_tokens: Annotated[
        bool, Argument("Let the tokenizer add its special tokens; left out, True for a text, False for messages.")
    ]
    add_generation_prompt: Annotated[bool, Argument("Of messages: let the template open the assistant's answer.", True)]


class DetokenizeOptions(ModelOptions, total=False):
    """The options of `detokenize`."""

    skip_special_tokens: Annotated[bool, Argument("Leave special tokens out of the text.", False)]


documented_arguments = documented(
    (ModelOptions, InspectionOptions, SamplingOptions),
    {
        "prompt": "A text, texts, the token ids of one text, or of several.",
        "messages": 'Messages like {"role": "user", "content": "..."}, or a bare text, which the user says.',
        "schema": "A JSON schema as a dict, or a type that pydantic makes one of: a model, a dataclass, a TypedDict.",
        "input": "A text, its token ids, or messages; a list of texts or of ids gives a list of results.",
        "points": 'Names of points: "attn.hook_q" in every layer (or in `layers`), "blocks.0.attn.hook_q" in one.',
        "point": 'The name of a point: "blocks.0.attn.hook_q", or "attn.hook_q" with `layer`.',
        "layer": "The layer's number; negative counts from the end.",
        "head": "The head's number; negative counts from the end.",
        "view": 'The view: "attention", "why", "contributions", "lens", "next" or "heads".',
        "matrix": 'The name of a matrix: "W_E", "blocks.0.attn.W_V", or "mlp.W_in" with `layer`.',
        "weight": 'The name of a weight: "W_E", "blocks.0.ln1.w", or "W_Q" with `layer`.',
        "questions": 'The questions: {"type": "predicate", "choice" or "score", "name", "instructions", ...} each.',
        "query": "The query: subject of the relevant documents.",
        "documents": "The documents: texts, or objects with a text.",
        "first": "The first text of each pair: one for all, or one for each second text.",
        "second": "The second text of each pair, likewise.",
        "text": "A text, or messages as the chat template writes them.",
        "token_ids": "Token ids.",
        "name": "The adapter's name, for `model`.",
        "path": "The adapter's folder, inside the server's --lora-root.",
        "model": "The model to ask; left out, the client's, or the only one that the server has.",
    },
)
"""Decorates a client: see _signatures. A positional argument means the same in every method."""
