"""Reasons of answers: decomposes logits by word, head or layer, and measures the effect of words that are taken out.

Three rounds of requests go to the engine: the passes, then questions about the weights for the states of the passes,
then the passes without some words. Independent of the routes.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightwell.model.hooks.points import Stack
from lightwell.server.dialects.parts.passes import ExplainedLogit, ExplainedPass, Sums
from lightwell.server.dialects.parts.stream_parts import Tensors
from lightwell.server.dialects.parts.taking_out import Word, without
from lightwell.server.engine.messages.request import Part, WeightsTask
from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.prompts.prompt import NOTHING, Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import TaskResult, Work, check_capture, run_all
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.tensor_formats import NumpyArray, as_numpy
from lightwell.server.schemas.judgements.reasons import MAX_EXPLAINED, Explain


@dataclass(frozen=True, slots=True)
class Explained:
    """A logit with its parts."""

    of: ExplainedPass
    value: float
    sums: Sums


def check_explainable(model: ServedModel, num_explained: int, what: str) -> None:
    """Raise BadRequest for a model or adapter without explanations, or for too many explained answers; `what` names
    their unit in the message: "questions" or "inputs".
    """
    config = model.config
    problem = None
    if config.altup is not None:
        problem = (
            f"{config.architecture} computes its logits from {config.altup.num_streams} residual streams, so they are "
            "not a sum over the first stream; null is accepted"
        )
    elif (adapter := current_request().adapter) is not None:
        problem = (
            f"the LoRA adapter {adapter.name!r} changes the weights that the parts are read with; null is accepted"
        )
    elif num_explained > MAX_EXPLAINED:
        problem = f"{num_explained} {what}; at most {MAX_EXPLAINED} are explained at a time (of a ranking, top_n)"
    if problem is not None:
        raise BadRequest(f"explain: {problem}.", param="explain", code="not_explainable")


async def explain(model: ServedModel, asked: Sequence[ExplainedLogit], options: Explain) -> list[dict[str, Any]]:
    """Return the reasons of each logit, as `Reasons` describes them. Raises ApiError."""
    passes = check_room(model, asked, options)
    traces, measured = await _passes(model, passes)
    questions = [each.questions(trace) for each, trace in zip(passes, traces, strict=True)]
    answers = await _ask_weights(model, passes, questions)
    sums = await asyncio.to_thread(
        lambda: [one.sums(trace, readouts) for one, trace, readouts in zip(passes, traces, answers, strict=True)]
    )
    found = [
        Explained(one, one.value(numbers), each) for one, numbers, each in zip(passes, measured, sums, strict=True)
    ]
    check_finite([each.value + each.sums.total for each in found])
    verified = await _verify(model, found, options) if options.verify else [None] * len(found)
    return await asyncio.to_thread(
        lambda: [_answer(model, one, options, rows) for one, rows in zip(found, verified, strict=True)]
    )


def check_finite(numbers: Iterable[float]) -> None:
    """Raise BadRequest unless all numbers are finite."""
    if not all(map(math.isfinite, numbers)):
        raise BadRequest(
            "explain: the computation gave infinite numbers or NaN: this input causes an overflow, or the weights are "
            "damaged; without explain the request is accepted.",
            param="explain",
            code="not_finite",
        )


def check_room(model: ServedModel, asked: Sequence[ExplainedLogit], options: Explain) -> list[ExplainedPass]:
    """Return the passes for the reasons of these logits. Raises PayloadTooLarge if they capture too much."""
    info = model.engine_info
    is_wide = info is not None and info.dtype == "float64"
    passes = _together([ExplainedPass(model.config, each, "float64" if is_wide else "float32") for each in asked])
    of_traces = sum(one.trace_bytes for one in {one.key: one for one in passes}.values())
    check_capture(model, of_traces + sum(_num_bytes(each, options) for each in passes))
    return passes


def _num_bytes(one: ExplainedPass, options: Explain) -> int:
    """Return the bytes captured by all requests of one logit, without the trace."""
    num_measured = 1 + (options.verify + 1 if options.verify else 0)
    mean = 8 * one.model.hidden_size * 2 if options.take_out == "embedding" else 0
    of_weights = one.question_bytes * len(one.parts.parts)
    return of_weights + num_measured * one.measurement_bytes + mean


async def _passes(model: ServedModel, passes: Sequence[ExplainedPass]) -> tuple[Sequence[Tensors], Sequence[Tensors]]:
    traced = {one.key: one for one in passes}
    works = [Work(one.trace(), one.asked.prompt, one.trace_bytes) for one in traced.values()]
    works += [Work(one.measurement(), one.asked.prompt, one.measurement_bytes) for one in passes]
    found = [_tensors(result) for result in await run_all(model, works)]
    traces = dict(zip(traced, found, strict=False))
    return [one.own(traces[one.key]) for one in passes], found[len(traced) :]


def _together(passes: Sequence[ExplainedPass]) -> list[ExplainedPass]:
    """Return the passes; passes of one prompt that explain words share one trace of all their positions."""
    positions: dict[Prompt, set[int]] = {}
    for one in passes:
        positions.setdefault(one.asked.prompt, set()).update(one.queries)
    return [
        replace(one, traced=tuple(sorted(positions[one.asked.prompt]))) if one.asked.head == "words" else one
        for one in passes
    ]


async def _ask_weights(
    model: ServedModel, passes: Sequence[ExplainedPass], questions: Sequence[dict[Part, WeightsTask]]
) -> list[dict[str, Tensors]]:
    works = [
        Work(task, NOTHING, one.question_bytes)
        for one, own in zip(passes, questions, strict=True)
        for task in own.values()
    ]
    answers = iter(await run_all(model, works))
    return [{part: _tensors(next(answers)) for part in own} for own in questions]


def _tensors(result: TaskResult) -> dict[str, NumpyArray]:
    return {name: as_numpy(tensor) for name, tensor in result.tensors.items()}


# ---- words


def _words(one: Explained) -> dict[Word, float]:
    """Return the contribution of each word, the encoder's words first."""
    stacks: dict[Part, Stack] = {"encoder": "encoder", "cross": "encoder", "decoder": "decoder"}
    return {
        Word(stack, position): float(value)
        for part, stack in stacks.items()
        for position, value in enumerate(one.sums.words.get(part, ()))
    }


def _lengths(one: Explained) -> dict[Stack, int]:
    prompt = one.of.asked.prompt
    if prompt.encoder is not None:
        return {"encoder": len(prompt.encoder_ids), "decoder": len(prompt.ids)}
    return {one.of.stack: len(prompt.ids)}


def _largest(one: Explained, count: int) -> dict[Word, float]:
    """Return the words with the largest parts, the largest first; at least one word of each stack remains."""
    chosen: dict[Word, float] = {}
    words, lengths = _words(one), _lengths(one)
    for word in sorted(words, key=lambda word: -abs(words[word])):
        if len(chosen) == count:
            break
        if sum(each.stack == word.stack for each in chosen) < lengths[word.stack] - 1:
            chosen[word] = words[word]
    return chosen


async def _verify(model: ServedModel, found: Sequence[Explained], options: Explain) -> list[list[dict[str, Any]]]:
    """Return for each logit predicted and measured values without each of its largest words, and without all."""
    means = await mean_embeddings(model, list(_lengths(found[0])), options)
    sets, works = await asyncio.to_thread(_without_words, model, found, options.verify, means)
    measured = iter(await run_all(model, works))
    return [
        [
            {
                "words": [_named(model, one, word) for word in taken],
                "predicted": one.value - sum(taken.values()),
                "measured": one.of.value(_tensors(next(measured))),
            }
            for taken in own
        ]
        for one, own in zip(found, sets, strict=True)
    ]


async def mean_embeddings(model: ServedModel, stacks: Sequence[Stack], options: Explain) -> dict[Stack, NumpyArray]:
    """Return the embedding [d] that replaces removed words in each stack; {} if their keys are removed."""
    if options.take_out == "keys":
        return {}
    works = [
        Work(WeightsTask(question="mean_embedding", options={"part": stack}), NOTHING, 8 * model.config.hidden_size)
        for stack in stacks
    ]
    results = await run_all(model, works)
    return {stack: _tensors(result)["mean"] for stack, result in zip(stacks, results, strict=True)}


def _without_words(
    model: ServedModel, found: Sequence[Explained], count: int, means: dict[Stack, NumpyArray]
) -> tuple[list[list[dict[Word, float]]], list[Work]]:
    """Return for each logit the sets of words to take out, with their parts, and the passes without them."""
    sets: list[list[dict[Word, float]]] = []
    works = []
    for one in found:
        largest = _largest(one, count)
        alone = [{word: value} for word, value in largest.items()]
        sets.append([*alone, *([largest] if len(largest) > 1 else [])])
        task, prompt, num_bytes = one.of.measurement(), one.of.asked.prompt, one.of.measurement_bytes
        works += [
            Work(task, prompt, num_bytes, without(model.config, taken, _lengths(one), means)) for taken in sets[-1]
        ]
    return sets, works


def _named(model: ServedModel, one: Explained, word: Word) -> dict[str, Any]:
    """Return a word in the form of answers."""
    prompt = one.of.asked.prompt
    is_of_two = prompt.encoder is not None
    ids = prompt.encoder_ids if is_of_two and word.stack == "encoder" else prompt.ids
    (token,) = model.tokenizer.token_strings([ids[word.position]])
    return {"position": word.position, "token": token, **({"stack": word.stack} if is_of_two else {})}


# ---- the answer


def _answer(
    model: ServedModel, one: Explained, options: Explain, verified: list[dict[str, Any]] | None
) -> dict[str, Any]:
    sums, has_cross = one.sums, one.of.model.cross_attention
    rest = {"embedding": sums.embedding, "biases": sums.biases}
    beside = {"mlps": sum(sums.mlps.values())}
    if sums.recurrent:
        beside["recurrent"] = sum(sums.recurrent.values())
    parts: list[dict[str, Any]]
    if options.by == "layer":
        layers = range(one.of.model.num_layers)
        attention = {layer: sums.recurrent.get(layer, 0.0) for layer in layers}
        for (_, layer, _), value in sums.heads.items():
            attention[layer] += value
        parts = [{"layer": layer, "attention": attention[layer], "mlp": sums.mlps[layer]} for layer in layers]
        total = sum(part["attention"] + part["mlp"] for part in parts)
    else:
        rest |= beside
        if options.by == "word":
            parts = [{**_named(model, one, word), "value": value} for word, value in _words(one).items()]
        else:
            parts = [
                {"layer": layer, "head": head, **({"part": part} if has_cross else {}), "value": value}
                for (part, layer, head), value in sums.heads.items()
            ]
        total = sum(part["value"] for part in parts)
    total += sum(rest.values())
    target, versus = one.of.asked.described
    return {
        "by": options.by,
        "target": target,
        "versus": versus,
        "value": one.value,
        "sum": total,
        "difference": total - one.value,
        "positions": one.of.queries,
        "parts": parts,
        "rest": rest,
        "verify": verified,
    }
