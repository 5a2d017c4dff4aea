"""Conversion of one text of a batch job to engine requests, and of their results to the answer of the server's route,
with the route's code.

The job's options are the fields of that route's body. Independent of the engine, files and Ray.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, cast, get_args

import pydantic

from model.hooks.point_names import stack_config
from server.dialects.inspect.attention import attention_entry, plan_of
from server.dialects.inspect.trace import asked_of, trace_entry
from server.dispatch.engine_client import EngineClient
from server.engine.outputs import EngineInfo
from server.engine.request import AttentionTask, EngineRequest
from server.generation.embeddings import embed_inputs, embed_task, embedding_entry, embedding_work
from server.generation.interventions.reading import read_all_interventions
from server.generation.interventions.selectors import select_heads
from server.generation.interventions.trace_plan import Lengths, choose_points, plan_inputs
from server.generation.prompts.inputs import read_inputs
from server.generation.prompts.prompt import Prompt
from server.generation.served_model import ModelFiles, ServedModel
from server.generation.supported_routes import check_part
from server.generation.tasks import TaskResult, Work
from server.http.error_handlers import validation_error
from server.http.errors import BadRequest, PayloadTooLarge, Unavailable
from server.http.tensor_formats import Entry, NumpyArray
from server.http.trace_body import DescribedEntry
from server.observability.metrics import Metrics
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.inspect.attention import AttentionRequest
from server.schemas.inspect.trace import TraceRequest

TaskName = Literal["embedding", "attention", "trace"]
Body = EmbeddingRequest | AttentionRequest | TraceRequest
_SCHEMAS: dict[TaskName, type[Body]] = {
    "embedding": EmbeddingRequest,
    "attention": AttentionRequest,
    "trace": TraceRequest,
}
_OF_ONE_REQUEST = ("input", "model", "timeout", "priority", "encoding_format")
"""Fields of the bodies that do not concern a data set's rows."""
_TOLD_APART = ("object", "index", "tokens", "token_ids", "offsets")
"""Fields of a route's answer that are not part of `Answered.described`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A route's answer about one input."""

    tokens: list[str] | None
    token_ids: list[int] | None
    described: dict[str, Any]
    tensors: Mapping[str, NumpyArray]


@dataclass(frozen=True, slots=True)
class Planned:
    """The request of one text, before the engine has received it."""

    work: Work
    describe: Callable[[TaskResult], Answered]

    def request(self, uid: int) -> EngineRequest:
        """Return the engine's request. A batch job has no deadline."""
        return EngineRequest(
            uid=uid,
            prompt_token_ids=tuple(self.work.prompt.ids),
            encoder_token_ids=tuple(self.work.prompt.encoder_ids),
            task=self.work.task,
            interventions=self.work.interventions,
            arrival_time=time.monotonic(),
        )


def model_of(files: ModelFiles, info: EngineInfo | None) -> ServedModel:
    """Return the model that the routes' code needs; `info` is None if there is no engine."""
    return ServedModel.of(files, cast(EngineClient, _NoEngine(info)), Metrics())


class Planner:
    """Turns texts into requests. Raises ApiError, in the constructor for options that fit no text."""

    def __init__(self, model: ServedModel, task: TaskName, options: Mapping[str, Any]) -> None:
        self._model = model
        self._body = read_options(task, options)
        self._plan = self._planner_of(self._body)

    @property
    def vector_width(self) -> int | None:
        """Return the width of every row's one vector, or None if rows are given as tensors of any shapes."""
        if not isinstance(self._body, EmbeddingRequest):
            return None
        task = embed_task(self._model, self._body)
        if task.pooling == "none":
            return None
        return task.dimensions or stack_config(self._model.config, "encoder").hidden_size

    async def plan(self, text: str) -> Planned:
        """Return the request of one text. Raises ApiError if the route would reject it or its answer is too large."""
        planned = await self._plan(text)
        limit = self._model.settings.max_response_bytes
        if planned.work.capture_bytes > limit:
            raise PayloadTooLarge(
                f"the answer has {planned.work.capture_bytes} bytes; at most {limit} are accepted "
                "(--max-response-bytes)"
            )
        return planned

    def _planner_of(self, body: Body) -> Callable[[str], Awaitable[Planned]]:
        if isinstance(body, EmbeddingRequest):
            return self._embedding(body)
        if isinstance(body, AttentionRequest):
            return self._attention(body)
        return self._trace(body)

    def _embedding(self, body: EmbeddingRequest) -> Callable[[str], Awaitable[Planned]]:
        task = embed_task(self._model, body)

        async def plan(text: str) -> Planned:
            (prompt,) = await embed_inputs(self._model, body.model_copy(update={"input": text}))
            work = embedding_work(self._model, task, prompt)
            return Planned(work, lambda result: _of_entry(embedding_entry(self._model, task, 0, prompt, result)))

        return plan

    def _attention(self, body: AttentionRequest) -> Callable[[str], Awaitable[Planned]]:
        part = check_part(self._model, body.part)
        heads = select_heads(body, stack_config(self._model.config, "encoder" if part == "encoder" else "decoder"))

        async def plan(text: str) -> Planned:
            prompt = await self._input(body, text)
            planned = plan_of(body, heads, prompt, part)
            (changes,) = await read_all_interventions(self._model, body.interventions, [prompt])
            work = Work(AttentionTask(capture=planned.capture), prompt, planned.capture_bytes, changes)
            return Planned(
                work, lambda result: _of_entry(attention_entry(self._model, body, 0, prompt, planned, result))
            )

        return plan

    def _trace(self, body: TraceRequest) -> Callable[[str], Awaitable[Planned]]:
        chosen = choose_points(body, self._model.config)

        async def plan(text: str) -> Planned:
            prompt = await self._input(body, text)
            lengths = Lengths(len(prompt.ids), len(prompt.encoder_ids))
            (points,) = plan_inputs(body, chosen, self._model.config, [lengths])
            (changes,) = await read_all_interventions(self._model, body.interventions, [prompt])
            asked, num_bytes = asked_of(points)
            work = Work(asked, prompt, num_bytes, changes)
            return Planned(work, lambda result: _of_trace(trace_entry(self._model, 0, prompt, points, result)))

        return plan

    async def _input(self, body: AttentionRequest | TraceRequest, text: str) -> Prompt:
        (prompt,) = await read_inputs(self._model, body.model_copy(update={"input": text}))
        return prompt


class _NoEngine:
    """Substitute for an engine while the routes' code reads a body: provides the limits, but runs no passes."""

    def __init__(self, info: EngineInfo | None) -> None:
        self._info = info

    def info(self) -> EngineInfo:
        if self._info is None:
            raise Unavailable("The model is not loaded yet.")
        return self._info

    async def submit(self, *arguments: object, **options: object) -> NoReturn:
        raise BadRequest(
            "interventions: numbers taken from a pass (from, mean) are not accepted in a batch job; a value is.",
            param="interventions",
        )


def read_options(task: TaskName, options: Mapping[str, Any]) -> Body:
    """Return the route's body that has these fields, and a text in place of each row's. Raises BadRequest."""
    for name in _OF_ONE_REQUEST:
        if name in options:
            raise BadRequest(f"{name}: this field of the route's body makes no sense for a data set; leave it out.")
    try:
        return _SCHEMAS[task].model_validate({**options, "input": "text"})
    except pydantic.ValidationError as error:
        raise validation_error([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None


def task_names() -> tuple[str, ...]:
    return get_args(TaskName)


def _of_entry(entry: Entry) -> Answered:
    return _answered(entry.fields, entry.arrays)


def _of_trace(entry: DescribedEntry) -> Answered:
    points = {name: point.description for name, point in entry.points.items()}
    tensors = {name: point.value for name, point in entry.points.items()}
    return _answered({**entry.fields, "points": points}, tensors)


def _answered(fields: Mapping[str, Any], tensors: Mapping[str, NumpyArray]) -> Answered:
    ids = fields.get("token_ids")
    return Answered(
        tokens=fields.get("tokens"),
        token_ids=None if ids is None else list(ids),
        described={name: value for name, value in fields.items() if name not in _TOLD_APART},
        tensors=tensors,
    )
