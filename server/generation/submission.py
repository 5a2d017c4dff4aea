"""Submits the choices of a text request together, and merges or collects their pieces.

The routes define how a choice is written; this file ensures that every choice ends in an answer, an error or an abort.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from lightwell.model.tokenization.chat_formats.parser import TaggedText
from lightwell.server.engine.messages.outputs import Array, TokenLogprobs
from lightwell.server.engine.messages.request import EngineRequest, GenerateTask
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.generation.acceptance import current_request
from lightwell.server.generation.attention_rows import RowWriter, check_rows, row_writer
from lightwell.server.generation.choices import ChoiceText, Piece, Run
from lightwell.server.generation.interventions.reading import read_all_interventions
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.request import TextRequest
from lightwell.server.generation.sampling import seed_of_choice
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import check_capture, count_rejection, counted_refusals, value_bytes
from lightwell.server.http.connection import BodyWriter
from lightwell.server.http.errors import ApiError, BadRequest, answer_too_large
from lightwell.server.http.sse import TokenEvent
from lightwell.server.http.turns import in_turns

_LOGPROB_BYTES = 75
"""Bytes of one alternative of a token in an answer, approximately: its id, text, rank and number."""


@dataclass(frozen=True)
class Job:
    """One prompt of a request, with the settings that all its choices share."""

    prompt: Prompt
    task: GenerateTask
    """The engine's task, except for the seeds of further choices and the attention rows."""
    new_parser: Callable[[], TaggedText] = TaggedText
    """Makes the parser that reads the message from a choice's text."""
    kept_ids: frozenset[int] = frozenset()
    """Special tokens that the parser reads, so that they must be in the text."""

    @property
    def sampling(self) -> SamplingParams:
        return self.task.sampling

    def limited_to(self, max_tokens: int) -> "Job":
        """Return the job with this maximum of generated tokens."""
        sampling = structs.replace(self.sampling, max_tokens=max_tokens)
        return replace(self, task=structs.replace(self.task, sampling=sampling))


@dataclass
class Started:
    """The choices of a request, in flight."""

    runs: list[Run]
    rows: RowWriter | None

    def close(self) -> None:
        """Abort the unfinished choices."""
        for run in self.runs:
            run.close()


async def start(model: ServedModel, request: TextRequest, jobs: Sequence[Job]) -> Started:
    """Submit every choice of every job. Raises ApiError; then none is left running."""
    num_choices = request.num_choices
    _check_number(model, len(jobs), num_choices)
    writer = None if request.attention is None else row_writer(model, request.attention)
    with counted_refusals(model):
        jobs = _fit_logprobs(model, jobs, num_choices, request.num_logprob_forms)
        row_bytes = [0] * len(jobs)
        if writer is not None:
            whole = (len(jobs) * num_choices, request.is_stream, model.settings.max_response_bytes)
            row_bytes = [check_rows(writer, job.prompt, job.sampling.max_tokens, *whole, request.names) for job in jobs]
    changes = await read_all_interventions(model, request.interventions, [job.prompt for job in jobs])
    form_field = request.form_field
    capture_bytes = [rows + value_bytes(change) for rows, change in zip(row_bytes, changes, strict=True)]
    check_capture(model, num_choices * sum(capture_bytes))
    # All or none: a choice that is refused later would waste the work of the others.
    request_context = current_request()
    model.engine.check_room(len(jobs) * num_choices, request_context=request_context)
    started = Started([], writer)
    try:
        async for number, job in in_turns(enumerate(jobs), 16):
            ids, encoder_ids = tuple(job.prompt.ids), tuple(job.prompt.encoder_ids)
            async for choice in in_turns(range(num_choices), 16):
                sampling = structs.replace(job.sampling, seed=seed_of_choice(job.sampling.seed, choice))
                task = structs.replace(
                    job.task,
                    sampling=sampling,
                    attention=None if writer is None else writer.capture,
                    attention_prompt=writer is not None and writer.with_prompt,
                )
                text = _choice_text(model, request, job)  # a failure after submit() would leave it running
                request_context.check_time()
                engine_request = EngineRequest(
                    prompt_token_ids=ids,
                    task=task,
                    encoder_token_ids=encoder_ids,
                    interventions=changes[number],
                    capture_bytes=capture_bytes[number],
                )
                handle = await model.engine.submit(engine_request, request_context)
                index = number * num_choices + choice
                keep_rows = partial(model.engine.hold_capture, row_bytes[number], request_context=request_context)
                rest = (job.prompt.num_tokens, keep_rows, form_field)
                started.runs.append(Run(index, handle, text, model.metrics, *rest))
    except BaseException as error:
        started.close()
        if writer is not None and isinstance(error, ApiError):
            count_rejection(model, error)
        raise
    return started


def _check_number(model: ServedModel, num_prompts: int, num_choices: int) -> None:
    """Raise BadRequest for more choices than the server would ever take at once: 429 would suggest trying later."""
    limit = model.settings.max_num_seqs + model.settings.max_num_queued_requests
    if num_prompts * num_choices > limit:
        raise BadRequest(
            f"n: {num_choices} for each of {num_prompts} prompts is {num_prompts * num_choices} choices; at most "
            f"{limit} are accepted (--max-num-seqs and --max-num-queued-requests). Send fewer prompts, or a smaller n.",
            param="n",
            code="too_many_choices",
        )


def _fit_logprobs(model: ServedModel, jobs: Sequence[Job], num_choices: int, num_forms: int) -> list[Job]:
    """Return the jobs. A job that may fill the context gets the largest `max_tokens` with log-probabilities that fit
    into an answer.

    Raises PayloadTooLarge for more alternatives of the prompts' and generated tokens than fit: each choice has its own,
    and all are in memory at once, also for a stream with a slow client.
    """
    asked = [(len(job.prompt.ids), job.sampling.prompt_logprobs) for job in jobs]
    num_entries = sum(length * (1 + number) for length, number in asked if number is not None)
    a_token = num_forms * sum(1 + job.sampling.logprobs for job in jobs if job.sampling.logprobs is not None)
    limit = model.settings.max_response_bytes
    most = max(1, (limit // (_LOGPROB_BYTES * num_choices) - num_entries) // max(1, a_token))
    fitted = []
    for job in jobs:
        max_tokens = job.sampling.max_tokens
        if job.sampling.logprobs is not None:
            if len(job.prompt.ids) + max_tokens >= model.context_limit:
                max_tokens = min(max_tokens, most)
            num_entries += num_forms * max_tokens * (1 + job.sampling.logprobs)
        fitted.append(job.limited_to(max_tokens))
    if (size := num_choices * num_entries * _LOGPROB_BYTES) > limit:
        advice = "Request fewer alternatives, tokens or choices, or send fewer or shorter prompts."
        raise answer_too_large(size, limit, advice, of="The log-probabilities")
    return fitted


def _choice_text(model: ServedModel, request: TextRequest, job: Job) -> ChoiceText:
    return ChoiceText(
        model.tokenizer,
        job.prompt.ids,
        stop_strings=request.stop,
        include_stop=request.include_stop,
        min_tokens=job.sampling.min_tokens,
        skip_special_tokens=request.skip_special_tokens,
        kept_ids=job.kept_ids,
        end_of_text_ids=frozenset(job.sampling.eos_token_ids),
        exact=job.task.grammar is not None,
    )


@dataclass(frozen=True, slots=True)
class Arrived:
    """A piece and the choice it belongs to."""

    run: Run
    piece: Piece


async def merged(runs: Sequence[Run]) -> AsyncIterator[Arrived]:
    """Yield the pieces of all runs as they come. The first failure ends the iteration.

    The queue has no limit: nothing holds back the engine's output, and a stop string must end a choice even while the
    client reads nothing. `--send-timeout` limits the time for which a client may read nothing.
    """
    if len(runs) == 1:
        async for piece in runs[0].pieces():
            yield Arrived(runs[0], piece)
        return
    queue: asyncio.Queue[Arrived | BaseException | None] = asyncio.Queue()

    async def pump(run: Run) -> None:
        try:
            async for piece in run.pieces():
                queue.put_nowait(Arrived(run, piece))
        except BaseException as error:  # a panic of a library's Rust code too: it would not be waited for
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    pumps = [asyncio.create_task(pump(run)) for run in runs]
    try:
        remaining = len(pumps)
        while remaining:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                remaining -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()


async def begin(
    model: ServedModel, request: TextRequest, jobs: Sequence[Job]
) -> tuple[Started, AsyncIterator[Arrived]]:
    """Start every choice of a stream, and return its pieces. The first is awaited here: until then an error still has
    its own HTTP status.
    """
    started = await start(model, request, jobs)
    try:
        return started, await _from_first(merged(started.runs))
    except BaseException:
        started.close()
        raise


async def _from_first(arrivals: AsyncIterator[Arrived]) -> AsyncIterator[Arrived]:
    first = await anext(arrivals, None)

    async def rest() -> AsyncIterator[Arrived]:
        if first is not None:
            yield first
            async for arrived in arrivals:
                yield arrived

    return rest()


def token_writer(started: Started, event: TokenEvent) -> Callable[[BodyWriter], None] | None:
    """Return what `EventStream` calls to write each token of the only choice as this event, or None for several choices
    and for tensors.
    """
    if len(started.runs) > 1 or started.rows is not None:
        return None
    return partial(started.runs[0].write_tokens, event=event)


@dataclass
class Collected:
    """All pieces of one choice, joined."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    tensors: list[dict[str, Array]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


async def collect(started: Started) -> list[Collected]:
    """Collect every choice to its end, and return them in order. Whatever happens, none is left running."""

    async def whole(run: Run) -> Collected:
        texts: list[str] = []
        choice = Collected()

        def add(piece: Piece) -> None:
            texts.append(piece.text)
            choice.token_ids += piece.token_ids
            choice.logprobs += piece.logprobs
            choice.prompt_logprobs = piece.prompt_logprobs or choice.prompt_logprobs
            if piece.tensors:
                choice.tensors.append(piece.tensors)
            choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason

        run.gather_tokens(add)
        async for piece in run.pieces():
            add(piece)
        choice.text = "".join(texts)
        return choice

    tasks = [asyncio.ensure_future(whole(run)) for run in started.runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        started.close()
        for task in tasks:
            task.cancel()
