"""Vectors of inputs, from any layer of the network."""

import logging
from functools import cache
from typing import Any

from fastapi import Request

from lightwell.model.hooks.point_names import stack_config
from lightwell.server.engine.messages.request import EmbedTask, PoolingMode
from lightwell.server.generation.interventions.selectors import resolve
from lightwell.server.generation.prompts.inputs import between_stacks
from lightwell.server.generation.prompts.prompt import (
    Prompt,
    encoder_limit,
    fit_input,
    keep_end,
    read_prompts,
    within_room,
)
from lightwell.server.generation.prompts.text_parts import Keep, bounded
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import TaskResult, Work, run_all, token_bytes
from lightwell.server.http.error_handlers import translated
from lightwell.server.http.errors import BadRequest, answer_too_large, shown
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.http.tensor_formats import VALUE_BYTES, Entry, NumpyArray, Wire, as_numpy
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import PromptInput
from lightwell.server.schemas.embeddings import EmbeddingRequest

logger = logging.getLogger(__name__)


async def embed_vectors(
    model: ServedModel, request: Request, asked: dict[str, Any], field: str = "input"
) -> tuple[list[Prompt], list[NumpyArray]]:
    """Return the inputs of a body of other names, given as `EmbeddingRequest` has them, and their vectors. Raises
    ApiError, which names the inputs `field`.
    """
    body = translated(EmbeddingRequest, asked)
    task = embed_task(model, body)
    inputs = await embed_inputs(model, body, field)
    results = await unless_disconnected(request, embed(model, task, inputs, "json"))
    return inputs, [as_numpy(result.tensors["embedding"]) for result in results]


async def embed(model: ServedModel, task: EmbedTask, inputs: list[Prompt], wire: Wire) -> list[TaskResult]:
    """Return the engine's result for each input. Raises ApiError, also if the answer would be too large."""
    _check_size(model, task, inputs, VALUE_BYTES[wire])
    return await run_all(model, [embedding_work(model, task, prompt) for prompt in inputs])


def embed_task(model: ServedModel, body: EmbeddingRequest) -> EmbedTask:
    """Return the engine's task for a body. Raises BadRequest for a layer or a width that the model lacks, and for the
    model's own pooling if it is not available.
    """
    config, defaults = stack_config(model.config, "encoder"), model.embedding_defaults
    # The dense layers were trained on the folder's pooling of the last states.
    is_dense = bool(defaults.dense) and body.pooling == ("none" if defaults.is_late else None) and body.layer is None
    modes = defaults.modes if body.pooling is None else ()
    width = _full_width(model, is_dense, modes)
    if body.dimensions is not None and body.dimensions > width:
        raise BadRequest(
            f"dimensions: {body.dimensions} is larger than the width {width} of the model's vectors; 1 to {width} are "
            "accepted.",
            param="dimensions",
        )
    if body.pooling is None and defaults.refusal is not None:
        raise BadRequest(
            f"pooling: the pooling in this model's files is not supported ({defaults.refusal}); mean, "
            "last, cls and none are accepted.",
            param="pooling",
            code="not_supported_by_model",
        )
    layer = None
    if body.layer is not None:
        (layer,) = resolve(body.layer, config.num_layers + 1, "layer", "layer")
    return EmbedTask(
        layer=layer,
        pooling=body.pooling or defaults.pooling,
        modes=modes,
        normalize=defaults.normalize if body.normalize is None else body.normalize,
        dimensions=body.dimensions,
        dense=is_dense,
    )


async def embed_inputs(model: ServedModel, body: EmbeddingRequest, field: str = "input") -> list[Prompt]:
    """Return the inputs as sentence-transformers reads them, with the settings of the model's files. Raises BadRequest,
    which names them `field`.
    """
    defaults = model.embedding_defaults
    truncate = defaults.truncate if body.truncate is None else body.truncate
    keep: Keep | None = "start" if truncate else None
    if body.truncate_prompt_tokens is not None:
        keep = "end"
    value = await _prepared(model, body, keep, field)
    limit = encoder_limit(model)
    if defaults.max_length is not None:
        limit = min(limit, defaults.max_length)

    def fit(prompt: Prompt) -> Prompt:
        return fit_input(model, keep_end(prompt, body.truncate_prompt_tokens, limit), truncate, field, limit)

    prompts = await read_prompts(model, value, field, body.add_special_tokens, keep, within_room(model, fit, limit))
    return await between_stacks(model, prompts, None, truncate, field)


async def _prepared(model: ServedModel, body: EmbeddingRequest, keep: Keep | None, field: str) -> PromptInput:
    """Return the texts, after the named prompt, and lower-cased if the model wants it; ids as they are."""
    defaults = model.embedding_defaults
    name = defaults.default_prompt_name if body.prompt_name is None else body.prompt_name
    if name is not None and name not in defaults.prompts:
        known = ", ".join(map(repr, defaults.prompts)) or "this model has none: null"
        raise BadRequest(f"prompt_name: unknown prompt {shown(name)}; accepted: {known}.", param="prompt_name")
    before = "" if name is None else defaults.prompts[name]

    def prepared(text: str, name: str) -> str:
        text = before + bounded(model, text, name, keep)
        return text.lower() if defaults.lowercase else text

    if isinstance(body.input, str):
        return prepared(body.input, field)
    if not body.input or not isinstance(body.input[0], str):  # ids are not checked one by one: there may be a million
        _warn_of_ids()
        return body.input
    return [prepared(str(item), f"{field}[{i}]") async for i, item in in_turns(enumerate(body.input), 64)]


@cache
def _warn_of_ids() -> None:
    """Log, once, that ids of another tokenizer give vectors without a meaning."""
    logger.warning(
        "a client sends token ids to be embedded: only ids of this model's tokenizer have a meaning. langchain's "
        "OpenAIEmbeddings sends ids of tiktoken unless its check_embedding_ctx_length is False"
    )


def _num_vectors(task: EmbedTask, prompt: Prompt) -> int:
    return len(read_by_encoder(prompt).ids) if task.pooling == "none" else 1


def read_by_encoder(prompt: Prompt) -> Prompt:
    """Return the prompt with the tokens of the vectors: the encoder's if the model has two stacks."""
    return prompt.encoder or prompt


def embedding_work(model: ServedModel, task: EmbedTask, prompt: Prompt) -> Work:
    """Return the engine's work for one input."""
    return Work(task, prompt, 4 * _width(model, task) * _num_vectors(task, prompt))


def _width(model: ServedModel, task: EmbedTask) -> int:
    return task.dimensions or _full_width(model, task.dense, task.modes)


def _full_width(model: ServedModel, is_dense: bool, modes: tuple[PoolingMode, ...]) -> int:
    if is_dense:
        return model.embedding_defaults.dense[-1].out_features
    return max(1, len(modes)) * stack_config(model.config, "encoder").hidden_size


def _check_size(model: ServedModel, task: EmbedTask, inputs: list[Prompt], bytes_each: float) -> None:
    estimate = round(sum(_num_vectors(task, prompt) for prompt in inputs) * _width(model, task) * bytes_each)
    tokens = token_bytes([read_by_encoder(prompt) for prompt in inputs]) if task.pooling == "none" else 0
    limit = model.settings.max_response_bytes
    if estimate + tokens > limit:
        dimensions = int(_width(model, task) * (limit - tokens) / estimate)
        fewer = f'"dimensions": {dimensions}, ' if dimensions > 0 else ""
        model.metrics.capture_rejections.labels("answer_too_large").inc()
        advice = f"Request fewer inputs, {fewer}a pooling, or Accept: application/vnd.safetensors."
        raise answer_too_large(estimate + tokens, limit, advice)


def embedding_entry(model: ServedModel, task: EmbedTask, index: int, prompt: Prompt, result: TaskResult) -> Entry:
    """Return the answer for one input: its vector, or with pooling none its vectors and tokens."""
    vectors = as_numpy(result.tensors["embedding"])
    fields: dict[str, Any] = {"object": "embedding", "index": index}
    if task.pooling == "none":
        ids = read_by_encoder(prompt).ids
        fields["tokens"] = model.tokenizer.token_strings(ids)
        fields["token_ids"] = list(ids)
    fields["axes"] = ["token", "dimension"] if vectors.ndim == 2 else ["dimension"]
    fields["shape"] = vectors.shape
    return Entry(index, fields, {"embedding": vectors})
