"""Scores and labels of texts and pairs, by the model's head, or by the cosine of embeddings if it has none."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import orjson
from starlette.responses import Response

from lightwell.model.network.cross_encoder import ACTIVATIONS, ScoreDefaults
from lightwell.server.dialects.judgements.pairs import Cut, Reader, Texts, labelled, prompt_named
from lightwell.server.dialects.responses import large_response, model_name, new_answer_id
from lightwell.server.engine.messages.request import ClassifyTask, PointCapture, Task, TraceTask
from lightwell.server.generation.embeddings import embed_task, embedding_work
from lightwell.server.generation.prompts.inputs import between_stacks
from lightwell.server.generation.prompts.prompt import Prompt, encoder_limit
from lightwell.server.generation.prompts.text_parts import groups_of
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import TaskResult, Work, counted_refusals, run_all
from lightwell.server.http.errors import BadRequest, answer_too_large
from lightwell.server.http.tensor_formats import as_numpy
from lightwell.server.schemas.embeddings import EmbeddingRequest
from lightwell.server.schemas.judgements.head_fields import PairFields, ReadFields

T = TypeVar("T")
Logits = np.ndarray[Any, np.dtype[np.float32]]

_LABEL_BYTES = 45
"""Most bytes of a label's number and of the names of its fields as JSON."""
NUMBER_BYTES = 25
"""Most bytes of a number in a list."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The network's output for one input."""

    prompt: Prompt
    """The input; for a pair of embedded texts, the second text."""
    logits: Logits
    """The head's logits [label], or the cosine [1] of the embeddings."""
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Scores:
    """The network's outputs for the inputs of one request."""

    each: list[Scored]
    num_read: int
    """Tokens of all inputs."""

    @property
    def usage(self) -> dict[str, Any]:
        """Return the token counts as in every answer."""
        return {
            "prompt_tokens": self.num_read,
            "total_tokens": self.num_read,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": sum(scored.num_cached_tokens for scored in self.each)},
        }


def labels_of(model: ServedModel) -> Sequence[str]:
    """Return the labels of the model's head, or () without such a head."""
    return () if model.config.classifier is None else model.config.classifier.labels


def scores_of(model: ServedModel, scores: Scores, use_activation: bool = True) -> list[float]:
    """Return the score of each pair: the result of CrossEncoder.predict for one label, the logit, or the cosine."""
    defaults, logits = model.score_defaults, _all_logits(scores)
    numbers = logits if defaults is None or not use_activation else defaults.scores(logits)
    found: list[float] = numbers[:, 0].tolist()
    return found


async def scored_answer(model: ServedModel, kind: str, data: Iterator[dict[str, Any]], scores: Scores) -> Response:
    """Return the answer with entries of scores or labels in vLLM's form; `kind` begins the answer's id."""
    head = {"id": new_answer_id(kind), "object": "list", "created": int(time.time()), "model": model_name(model)}
    return await large_response({**head, "data": data, "usage": scores.usage})


def check_labels(model: ServedModel, num_inputs: int, num_named: int | None, num_bytes: int = 0) -> None:
    """Raise PayloadTooLarge for an answer that would be too large, with `num_named` labels (None is all) and
    `num_bytes` of numbers for each input.
    """
    labels = labels_of(model)
    num_named = min(len(labels) if num_named is None else num_named, len(labels))
    each = num_bytes + num_named * (_LABEL_BYTES + max((len(orjson.dumps(label)) for label in labels), default=0))
    size, limit = num_inputs * each, model.settings.max_response_bytes
    with counted_refusals(model):
        if size > limit:
            raise answer_too_large(size, limit, "Send fewer inputs at a time.")


def probabilities_of(
    model: ServedModel, scores: Scores, use_activation: bool = True, function: str | None = None
) -> Logits:
    """Return a number for each label of each input [input, label].

    It is the `function` of the logits ("none", "sigmoid" or "softmax") if one is given; else the result of
    CrossEncoder.predict if the folder declares it or there is only one label; else the probabilities of transformers'
    pipeline. Without `use_activation` it is the logits.
    """
    defaults, head, logits = model.score_defaults, model.config.classifier, _all_logits(scores)
    assert defaults is not None, "the route was checked"
    assert head is not None, "the route was checked"
    if not use_activation or function == "none":
        return logits
    if function is None and (head.num_labels == 1 or defaults.is_declared or defaults.activation != "identity"):
        return defaults.scores(logits)
    if function is None and head.problem_type == "regression":
        return logits
    is_sigmoid = head.problem_type == "multi_label_classification" if function is None else function == "sigmoid"
    if is_sigmoid:
        return ACTIVATIONS["sigmoid"](logits)
    numbers: Logits = np.exp(logits - logits.max(axis=1, keepdims=True))
    numbers /= numbers.sum(axis=1, keepdims=True)
    return numbers


def _all_logits(scores: Scores) -> Logits:
    return np.stack([scored.logits for scored in scores.each])  # one array: many single ones took a tenth of a second


# ---- running


async def score_pairs(
    model: ServedModel, body: PairFields, pairs: Sequence[Texts], name_of: Callable[..., str]
) -> Scores:
    """Return the output for each pair, by the head or by embeddings. Raises ApiError.

    name_of: returns the field of a pair, by its number, or of one of its texts if its side (0 or 1) follows.
    """
    if model.score_defaults is None:
        return await _cosines(model, body, pairs, name_of)
    return await run_head(model, body, pairs, name_of)


async def run_head(
    model: ServedModel, body: ReadFields, inputs: Sequence[Texts], name_of: Callable[[int], str]
) -> Scores:
    """Return the head's logits of each input. Raises ApiError."""
    defaults = model.score_defaults
    assert defaults is not None, "the route was checked"
    reader = Reader(
        model=model,
        defaults=defaults,
        cut=cut_of(model, body, defaults.max_length, is_default=defaults.is_declared),
        name_of=name_of,
        prompt=prompt_named(defaults, body.prompt_name) if isinstance(body, PairFields) else "",
        add_special_tokens=getattr(body, "add_special_tokens", True),
    )

    def work_of(prompt: Prompt) -> Work:
        read = labelled(model, prompt)
        return Work(_head_task(defaults, read), read, 4 * _num_logits(model), is_sent=False)

    def scored(work: Work, result: TaskResult) -> Scored:
        return Scored(work.prompt, _logits(defaults, result), result.num_cached_tokens)

    each = await _in_groups(model, reader, inputs, work_of, scored)
    return Scores(each, sum(len(scored.prompt.ids) for scored in each))


async def run_ids(model: ServedModel, prompts: Sequence[Prompt]) -> Scores:
    """Return the head's logits of prompts. Raises ApiError."""
    works = [Work(ClassifyTask(), labelled(model, each), 4 * _num_logits(model), is_sent=False) for each in prompts]
    results = await run_all(model, works)
    each = [
        Scored(work.prompt, as_numpy(result.tensors["logits"]), result.num_cached_tokens)
        for work, result in zip(works, results, strict=True)
    ]
    return Scores(each, sum(len(work.prompt.ids) for work in works))


def cut_of(model: ServedModel, body: ReadFields, max_length: int | None, *, is_default: bool) -> Cut:
    """Return the cut of inputs from the body, or else the model's default."""
    limit = encoder_limit(model)
    limit = limit if max_length is None else min(limit, max_length)
    is_allowed = is_default if body.truncate is None else body.truncate
    wanted = body.truncate_prompt_tokens
    if wanted is not None:
        limit, is_allowed = limit if wanted == -1 else min(limit, wanted), True
    limits = (body.max_tokens_per_query, body.max_tokens_per_doc) if isinstance(body, PairFields) else (None, None)
    return Cut(
        limit=limit,
        is_allowed=is_allowed,
        keep="end" if body.truncation_side == "left" else "start",
        text_limits=(limits[0] or None, limits[1] or None),
    )


async def _in_groups(
    model: ServedModel,
    reader: Reader,
    inputs: Sequence[Texts],
    work_of: Callable[[Prompt], Work],
    taken: Callable[[Work, TaskResult], T],
) -> list[T]:
    """Return `taken` of each work and its result. While a group runs, only the next one is tokenised, so that memory
    holds two groups of the inputs.
    """
    found: list[T] = []
    begins_alike = model.config.kind == "decoder" and model.config.reuses_prefixes
    groups = list(groups_of(inputs, lambda texts: sum(map(len, texts))))
    reading = asyncio.create_task(reader.read(*groups[0]))
    try:
        for following in (*groups[1:], None):
            works = [work_of(prompt) for prompt in await reading]
            if following is not None:
                reading = asyncio.create_task(reader.read(*following))
            results: list[TaskResult] = []
            if not found and begins_alike:  # the common prefix is computed once
                results = await run_all(model, works[:1])
            if len(works) > len(results):
                results += await run_all(model, works[len(results) :])
            found += [taken(work, result) for work, result in zip(works, results, strict=True)]
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return found


# ---- heads


def _head_task(defaults: ScoreDefaults, prompt: Prompt) -> Task:
    score = defaults.token_score
    if score is None:
        return ClassifyTask()
    units = (score.true_id,) if score.false_id is None else (score.true_id, score.false_id)
    last = (len(prompt.ids) - 1,)
    point = PointCapture(name="logits", stack="decoder", layer=None, point="logits", positions=last, units=units)
    return TraceTask(points=(point,))


def _num_logits(model: ServedModel) -> int:
    return 2 if model.config.classifier is None else model.config.classifier.num_labels


def _logits(defaults: ScoreDefaults, result: TaskResult) -> Logits:
    logits = as_numpy(result.tensors["logits"])
    score = defaults.token_score
    if score is None:
        return logits
    return logits[0] if score.false_id is None else logits[0, :1] - logits[0, 1:]


# ---- embeddings


async def _cosines(model: ServedModel, body: PairFields, pairs: Sequence[Texts], name_of: Callable[..., str]) -> Scores:
    """Return the cosine of the two texts' embeddings for each pair; equal texts are embedded once."""
    if not body.use_activation:
        raise BadRequest(
            "use_activation: this model scores by the cosine of embeddings, so it has no logits; true is accepted.",
            param="use_activation",
        )
    defaults, limits = model.embedding_defaults, (body.max_tokens_per_query, body.max_tokens_per_doc)
    cut = cut_of(model, body, defaults.max_length, is_default=defaults.truncate)
    task = embed_task(model, EmbeddingRequest.model_validate({"input": ""}))
    embedded: list[list[tuple[Work, TaskResult]]] = []  # of each side's distinct texts
    rows: list[list[int]] = []  # of each side's texts, pair by pair, in `embedded`
    for side, limit in enumerate(limits):
        first_uses: dict[str, int] = {}
        for i, pair in enumerate(pairs):
            first_uses.setdefault(pair[side], i)
        texts, places = list(first_uses), list(first_uses.values())
        reader = _EmbeddingReader(
            model=model,
            defaults=defaults,
            cut=replace(cut, text_limits=(limit or None, None)),
            name_of=lambda i, places=places, side=side: name_of(places[i], side),  # type: ignore[misc]
            prompt=prompt_named(defaults, body.prompt_name if side == 0 else None),
        )

        def work_of(prompt: Prompt) -> Work:
            return replace(embedding_work(model, task, prompt), is_sent=False)

        inputs = [(text,) for text in texts]
        embedded.append(await _in_groups(model, reader, inputs, work_of, lambda *both: both))
        numbers = {text: i for i, text in enumerate(texts)}
        rows.append([numbers[pair[side]] for pair in pairs])

    def cosines_of() -> Logits:
        """Return the cosine of each pair's vectors [pair]."""
        units = []
        for found, chosen in zip(embedded, rows, strict=True):
            vectors = np.stack([as_numpy(result.tensors["embedding"]) for _, result in found]).astype(np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            units.append((vectors / np.maximum(lengths, 1e-8))[chosen])
        cosines: Logits = (units[0] * units[1]).sum(axis=1)
        return cosines

    cosines = (await asyncio.to_thread(cosines_of))[:, None]
    each = [Scored(embedded[1][row][0].prompt, cosine, 0) for row, cosine in zip(rows[1], cosines, strict=True)]
    return Scores(each, sum(work.prompt.num_tokens for found in embedded for work, _ in found))


class _EmbeddingReader(Reader):
    """Reads texts for embeddings; for an encoder-decoder it adds the decoder's start."""

    async def read(self, first: int, group: Sequence[Texts]) -> list[Prompt]:
        return await between_stacks(self.model, await super().read(first, group), None, False, self.name_of(first))
