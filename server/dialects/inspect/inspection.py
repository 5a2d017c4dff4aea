"""The common steps of the inspection routes: each reads the inputs, estimates the size of the answer, runs tasks in the
engine, computes in a thread and writes arrays.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from fastapi.types import DecoratedCallable
from pydantic import Field, create_model
from starlette.responses import Response

from lightwell.model.hooks.points import Stack
from lightwell.server.dialects.parts.stream_parts import point_capture
from lightwell.server.dialects.responses import (
    both_stacks_fields,
    check_num_values,
    input_usage,
    inspection_head,
    tensor_response,
    tensor_route,
)
from lightwell.server.engine.messages.request import Intervention, Part, PointCapture, Task, WeightsTask
from lightwell.server.generation.interventions.reading import read_all_interventions
from lightwell.server.generation.interventions.selectors import Selector, resolve
from lightwell.server.generation.prompts.inputs import read_inputs
from lightwell.server.generation.prompts.prompt import NOTHING, Prompt, check_ids
from lightwell.server.generation.prompts.text_parts import naming
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import TaskResult, Work, check_capture, counted_refusals, run_all, token_bytes
from lightwell.server.http.errors import BadRequest, PayloadTooLarge, shown
from lightwell.server.http.sse import ClientGone, unless_disconnected
from lightwell.server.http.tensor_formats import Format, NumpyArray, as_numpy, body_pieces, check_npy, negotiate
from lightwell.server.http.trace_body import DescribedArray, DescribedEntry
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import AnswerModel, InspectionAnswer, ListAnswer
from lightwell.server.schemas.inspect.attention import AttentionRequest
from lightwell.server.schemas.inspect.inputs import InspectionRequest
from lightwell.server.schemas.inspect.trace import TraceRequest

T = TypeVar("T")
Tensors = dict[str, NumpyArray]
Asked = tuple[Task, int]
"""A task, and the bytes of the tensors that answer it."""
_THREADS = ThreadPoolExecutor(4, "inspection")
"""Threads for the computations of inspection requests. A flow takes seconds: in the threads that also tokenise, a few
flows would delay all prompts.
"""
_MAX_NAMED_BYTES = 32 << 20
"""Most bytes of the tokens that an answer names in addition to its inputs. In every format they are text, which is in
memory before the first byte is sent.
"""
_MAX_TOKEN_TEXT = 1000
"""Most characters of a text that may be one token."""


def asked_of_weights(question: str, num_values: int, **options: Any) -> Asked:
    """Return a question about the weights, and the bytes of an answer with `num_values` numbers."""
    return WeightsTask(question=question, options=options), 4 * num_values


@dataclass
class Inspection:
    """One HTTP request of these routes, from its headers to its answer."""

    model: ServedModel
    request: Request
    body: InspectionRequest | AttentionRequest | TraceRequest
    wanted: Format
    inputs: list[Prompt]
    results: list[TaskResult] = field(default_factory=list)
    is_abandoned: threading.Event = field(default_factory=threading.Event)
    changes: list[tuple[Intervention, ...]] | None = None
    """The interventions of each input, once they are read."""

    def check_size(
        self, num_values: int, advice: str, reported: Sequence[Prompt] | None = None, named_bytes: int = 0
    ) -> None:
        """Raise PayloadTooLarge when an answer with `num_values` numbers, the tokens of `reported` (None is all inputs)
        and `named_bytes` of other named tokens is over the limit. `advice` names a smaller request.
        """
        if named_bytes > _MAX_NAMED_BYTES:
            with counted_refusals(self.model):
                raise PayloadTooLarge(
                    f"The tokens that the answer names would take about {named_bytes} bytes; at most "
                    f"{_MAX_NAMED_BYTES} are sent. Request {advice}.",
                    code="answer_too_large",
                )
        num_bytes = token_bytes(self.inputs if reported is None else reported) + named_bytes
        check_num_values(self.model, num_values, self.wanted, self.body.encoding_format, advice, num_bytes)

    async def positions(
        self, selector: Selector, field: str = "positions", part: Part = "decoder"
    ) -> list[tuple[int, ...]]:
        """Return the positions of a selector in each input, of the part's queries. Raises BadRequest."""
        return [
            resolve(selector, len(rows_of(prompt, part).ids), field, "position")
            async for prompt in in_turns(self.inputs, 64)
        ]

    async def run(self, asked: Sequence[Asked], questions: Sequence[Asked] = ()) -> list[Tensors]:
        """Run a task for each input, and questions about the weights, while the client waits; return the tensors of
        each, of the questions last.

        Raises PayloadTooLarge, before anything runs, if all tensors together are over the limit of captures.
        """
        check_capture(self.model, sum(num_bytes for _, num_bytes in (*asked, *questions)))
        results = await self.results_of(asked, questions)
        return [{name: as_numpy(tensor) for name, tensor in result.tensors.items()} for result in results]

    async def results_of(self, asked: Sequence[Asked], questions: Sequence[Asked] = ()) -> list[TaskResult]:
        """Run the same, and return the engine's results."""
        changes = await self.read_changes()
        works = [Work(task, NOTHING, num_bytes) for task, num_bytes in questions]
        works += [
            Work(task, prompt, num_bytes, interventions)
            for (task, num_bytes), prompt, interventions in zip(asked, self.inputs, changes, strict=True)
        ]
        results = await unless_disconnected(self.request, run_all(self.model, works))
        answers, self.results = results[: len(questions)], results[len(questions) :]
        return self.results + answers

    async def read_changes(self) -> list[tuple[Intervention, ...]]:
        """Return the interventions of each input, captured while the client waits."""
        if not self.body.interventions:
            return [()] * len(self.inputs)
        if self.changes is None:
            reading = read_all_interventions(self.model, self.body.interventions, self.inputs)
            self.changes = await unless_disconnected(self.request, reading)
        return self.changes

    async def compute(self, parts: Iterable[T]) -> list[T]:
        """Return the parts, computed one after another in a thread for inspection requests, while the client waits.

        Raises ClientGone. If the client left or the time is over, the computation does not begin, or it ends after the
        current part, or at the next `check`.
        """
        run = copy_context().run

        def computed() -> list[T]:
            found = []
            for part in parts:
                self.check()
                found.append(part)
            return found

        async def result() -> list[T]:
            return await asyncio.get_running_loop().run_in_executor(_THREADS, run, computed)

        try:
            return await unless_disconnected(self.request, result())
        except BaseException:
            self.is_abandoned.set()
            raise

    def check(self) -> None:
        """Raise ClientGone if the request has ended; a part that takes seconds must call this often."""
        if self.is_abandoned.is_set():
            raise ClientGone

    async def answer_with(self, entries: Iterable[DescribedEntry]) -> Response:
        """Return the entries, computed as `compute` does, in the wanted format."""
        found = await self.compute(entries)
        head = inspection_head(self.model, input_usage(self.inputs, self.results))
        pieces = body_pieces(self.wanted, head, found, self.body.encoding_format)
        arrays = (point.value for entry in found for point in entry.points.values())
        return await tensor_response(self.wanted, pieces, arrays)

    def not_finite(self, what: str) -> BadRequest:
        """Return the error that `what`, numbers that the answer needs, are NaN or infinite."""
        if self.body.interventions:
            advice = "the interventions make the network's numbers overflow; smaller changes are accepted"
        else:
            advice = "this input makes the model's numbers overflow, or its weights are broken; other inputs may do"
        param = "interventions" if self.body.interventions else "input"
        return BadRequest(f"{param}: {what} are not finite: {advice}.", param=param, code="not_finite")

    def entry(
        self, index: int, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, DescribedArray]
    ) -> DescribedEntry:
        """Return the entry of one input: its tokens, `fields`, and arrays."""
        reported = {"object": kind, "index": index, **both_stacks_fields(self.model, self.inputs[index]), **fields}
        return DescribedEntry(index, reported, dict(arrays), key="arrays")


def inspection_route(
    register: Callable[..., Any],
    path: str,
    summary: str,
    entry: type[AnswerModel],
    data: str = "One entry an input.",
    base: type[ListAnswer] = InspectionAnswer,
) -> Callable[[DecoratedCallable], DecoratedCallable]:
    """Decorate a route that answers with arrays in any format.

    Args:
        register: `router.get` or `router.post`.
        path: the route's path.
        summary: its line in the OpenAPI page.
        entry: schema of an entry of the answer; the answer's schema of LensEntry is named LensAnswer.
        data: description of the list of entries.
        base: the answer's other fields; ListAnswer for questions about weights only.
    """
    shown_path = path.replace("{model_id:path}", "{id}")
    answer = create_model(
        entry.__name__.replace("Entry", "Answer"),
        __base__=base,
        __doc__=f"Answer of {register.__name__.upper()} {shown_path} as JSON.",
        data=(list[entry], Field(description=data)),  # type: ignore[valid-type]
    )
    return tensor_route(register, path, summary, answer)


async def begin(
    model: ServedModel,
    request: Request,
    body: InspectionRequest | AttentionRequest | TraceRequest,
    num_arrays: int,
) -> Inspection:
    """Check the request and read its inputs, without the engine. Raises ApiError.

    `num_arrays` is the number of arrays in each input's answer: a .npy file holds one.
    """
    wanted = negotiate(request.headers.get("accept"))
    inputs = await read_inputs(model, body)
    if wanted is Format.NPY:
        check_npy(len(inputs) * num_arrays)
    return Inspection(model, request, body, wanted, inputs)


def described(value: NumpyArray, *axes: str) -> DescribedArray:
    """Return an array of an answer: whole numbers as int32, others as float32."""
    small = value.astype(np.int32 if np.issubdtype(value.dtype, np.integer) else np.float32)
    return DescribedArray({"axes": axes, "shape": small.shape, "dtype": small.dtype.name}, small)


def stack_of(part: Part) -> Stack:
    """Return the stack of a part's points: cross attention belongs to the decoder."""
    return "encoder" if part == "encoder" else "decoder"


def rows_of(prompt: Prompt, part: Part) -> Prompt:
    """Return the tokens that are the queries of a part."""
    return prompt.encoder if part == "encoder" and prompt.encoder is not None else prompt


def keys_of(prompt: Prompt, part: Part) -> Prompt:
    """Return the tokens that are the keys of a part."""
    return prompt.encoder if part != "decoder" and prompt.encoder is not None else prompt


def capture(model: ServedModel, stack: Stack, point: str, layer: int | None = None, **options: Any) -> PointCapture:
    """Return the capture of one point of a trace; `options` are the other fields of `PointCapture`."""
    return point_capture(model.config, stack, point, layer, **options)


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token that a request names."""

    token_id: int
    token: str

    def as_json(self) -> dict[str, Any]:
        """Return the token in the form of answers."""
        return {"token_id": self.token_id, "token": self.token}


def read_token(model: ServedModel, value: str | int | None, name: str) -> NamedToken | None:
    """Return the token of an id, or of a text that is one token. Raises BadRequest for a text of none or several."""
    if value is None:
        return None
    if isinstance(value, int):
        check_ids(model, (value,), name)
        return NamedToken(value, model.tokenizer.token_strings([value])[0])
    with naming(name):
        ids = model.tokenizer.encode(value, add_special_tokens=False).ids if len(value) <= _MAX_TOKEN_TEXT else []
    if len(ids) != 1 or ids[0] >= model.config.vocab_size:
        pieces = f"{len(ids)} tokens {shown(model.tokenizer.token_strings(ids))}" if ids else "not a single token"
        raise BadRequest(
            f"{name}: {shown(value)} is {pieces}; a text that is one token (many begin with a space), or a token id, "
            "is accepted.",
            param=name,
            code="not_one_token",
        )
    return NamedToken(ids[0], model.tokenizer.token_strings(ids)[0])
