"""POST /generate and /generate_stream: text that continues a prompt, in the format of TGI. POST /, which clients of TGI
and TEI both send: the kind of the model decides its meaning.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.huggingface.labels import predict
from lightwell.server.dialects.huggingface.tei import embed, similarity
from lightwell.server.dialects.judgements.ranking import rank_texts
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.completion import completion_jobs
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.logprobs import prefill_entries, token_entry
from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.generation.request import PromptRequest, sampling_of
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.submission import Arrived, Job, begin
from lightwell.server.generation.supported_routes import is_for_text, why_not
from lightwell.server.http.error_handlers import translated
from lightwell.server.http.error_shapes import error_json
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.sse import EventStream, event, unless_disconnected
from lightwell.server.schemas.base import RequestModel
from lightwell.server.schemas.huggingface import (
    EmbedRequest,
    GenerateAnswer,
    GenerateRequest,
    SimilarityRequest,
    TgiGrammar,
)
from lightwell.server.schemas.judgements.classifying import PredictRequest
from lightwell.server.schemas.judgements.reranking import TeiRerankRequest
from lightwell.server.schemas.structured_outputs import Constraint, ResponseFormat

_NAMES = FieldNames(
    {
        "prompt": "inputs",
        "max_tokens": "parameters.max_new_tokens",
        "response_format": "parameters.grammar",
        **dict.fromkeys(
            ("value", "json_schema", "response_format.value", "response_format.json_schema"), "parameters.grammar.value"
        ),
    },
    cut_advice="Set parameters.truncate to cut it.",
)
_TAGS: list[str | Enum] = ["Hugging Face"]
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router."""

    @router.post("/generate", tags=_TAGS, summary="Text (TGI)", response_model=GenerateAnswer, responses=_STREAM)
    async def text(request: Request, body: GenerateRequest) -> Response:
        """Return the text that continues the prompt; with `stream`, server-sent events."""
        return await generate(context, request, body)

    @router.post("/generate_stream", tags=_TAGS, summary="Text as a stream (TGI)", responses=_STREAM)
    async def stream(request: Request, body: GenerateRequest) -> Response:
        """Return server-sent events, one a token; the last contains the whole text."""
        return await generate(context, request, body.model_copy(update={"stream": True}))

    @router.post("/", tags=_TAGS, summary="The task of the model (TEI, TGI)", responses=_STREAM)
    async def root(request: Request, body: dict[str, Any]) -> Response:
        """Answer as POST /similarity or /rerank if the body has their fields. Otherwise the model determines the
        route: /predict for a classifier, /generate for a model that generates text, /embed for all others.
        """
        name = body.get("model")
        model, _ = await context.models.find(name if isinstance(name, str) else None)
        schema, handle = _meant(model, body)
        answer = await handle(context, request, translated(schema, body))
        is_text = schema is GenerateRequest and not isinstance(answer, EventStream)
        return Response(b"[%b]" % bytes(answer.body), media_type="application/json") if is_text else answer


def _meant(model: ServedModel, body: dict[str, Any]) -> tuple[type[RequestModel], Callable[..., Awaitable[Response]]]:
    """Return the schema and the function of the route that POST / stands for."""
    if isinstance(body.get("inputs"), dict):
        return SimilarityRequest, similarity
    if "texts" in body:
        return TeiRerankRequest, rank_texts
    if why_not(model, "/predict") is None:
        return PredictRequest, predict
    return (GenerateRequest, generate) if is_for_text(model) else (EmbedRequest, embed)


async def generate(context: AppContext, request: Request, body: GenerateRequest) -> Response:
    """Answer POST /generate."""
    asked = body.parameters
    if body.stream and asked.decoder_input_details:
        name = "parameters.decoder_input_details"
        raise BadRequest(f"{name}: a stream does not contain the prompt; false is accepted.", param=name)
    named = body if asked.adapter_id is None else body.model_copy(update={"model": asked.adapter_id})
    model = await accept(context, named, "/generate")
    prompt = _prompt_request(body)
    (job,) = await completion_jobs(model, prompt)
    if asked.max_new_tokens is None:
        job = job.limited_to(min(job.sampling.max_tokens, 100))
    started, arrivals = await unless_disconnected(request, begin(model, prompt, [job]))
    writer = _Writer(model, body, job, arrivals)
    if body.stream:
        write_error = lambda error: event(error_json(error, "/generate"))  # noqa: E731
        return EventStream(writer.events(), started.close, write_error=write_error)
    try:
        return await unless_disconnected(request, writer.whole())
    finally:
        started.close()


def _prompt_request(body: GenerateRequest) -> PromptRequest:
    """Return the request for the text. Raises BadRequest, with the names of the body's fields."""
    asked = body.parameters
    sampling = sampling_of(asked)
    if not asked.is_sampled:
        sampling["temperature"] = 0.0
    if asked.details and asked.decoder_input_details:
        sampling["prompt_logprobs"] = 0
    return PromptRequest(
        names=_NAMES,
        prompt=body.inputs,
        sampling=sampling,
        max_tokens=asked.max_new_tokens,
        is_stream=body.stream,
        stop=tuple(asked.stop),
        include_stop=True,
        num_logprobs=(asked.top_n_tokens or 0) if body.stream or asked.details else None,
        constraint=_constraint(asked.grammar),
        truncate_prompt_tokens=asked.truncate,
    )


def _constraint(grammar: TgiGrammar | None) -> Constraint | None:
    if grammar is None:
        return None
    value = "json_schema" if grammar.type == "json_schema" else "value"
    with _NAMES.in_errors():
        form = translated(ResponseFormat, {"type": grammar.type, value: grammar.value}).constraint
    return form and form._replace(field=_NAMES.of(form.field))


@dataclass
class _Writer:
    """Writes one answer, whole or as events."""

    model: ServedModel
    body: GenerateRequest
    job: Job
    arrivals: AsyncIterator[Arrived]
    texts: list[str] = field(default_factory=list)
    num_tokens: int = 0

    async def whole(self) -> Response:
        """Return the answer in one object."""
        asked, prefill, piece = self.body.parameters, None, Piece()
        found: dict[str, list[orjson.Fragment]] = {"token": [], "top_tokens": []}
        async for arrived in self.arrivals:
            piece = arrived.piece
            taken = self._take(piece)
            prefill = piece.prompt_logprobs or prefill
            for name, values in found.items():
                if name in taken:  # as JSON at once: all tokens at the end would take long
                    values.append(orjson.Fragment(orjson.dumps(taken[name])))
        answer: dict[str, Any] = {"generated_text": self._text()}
        if asked.details:
            entries = await prefill_entries(self.model.tokenizer, self.job.prompt.ids, prefill)
            answer["details"] = {**self._end(piece), "prefill": entries, "tokens": found["token"]}
            if asked.top_n_tokens:
                answer["details"]["top_tokens"] = found["top_tokens"]
        return Response(orjson.dumps(answer), media_type="application/json")

    async def events(self) -> AsyncIterator[bytes]:
        """Yield an event for each token; the last one contains the whole text."""
        async for arrived in self.arrivals:
            piece, taken = arrived.piece, self._take(arrived.piece)
            end: dict[str, Any] = {"generated_text": None, "details": None}
            if piece.finish_reason is not None:
                end["generated_text"] = self._text()
                if self.body.parameters.details:
                    end["details"] = {**self._end(piece), "input_length": self.job.prompt.num_tokens}
            if taken or piece.finish_reason is not None:
                yield event(orjson.dumps({"index": self.num_tokens, "token": None, **taken, **end}))

    def _take(self, piece: Piece) -> dict[str, Any]:
        """Note a piece, and return its token and the alternatives, if it has a token."""
        self.texts.append(piece.text)
        self.num_tokens += len(piece.token_ids)
        if not piece.logprobs:
            return {}
        (entry,), num_top, tokenizer = piece.logprobs, self.body.parameters.top_n_tokens or 0, self.model.tokenizer
        token, *top = [
            token_entry(tokenizer, *each) for each in ((entry.token_id, entry.logprob), *entry.top[:num_top])
        ]
        if not token["special"]:
            token["text"] = piece.text  # in a stream these texts join to the whole one
        return {"token": token, **({"top_tokens": top} if num_top else {})}

    def _text(self) -> str:
        return (self.body.inputs if self.body.parameters.return_full_text else "") + "".join(self.texts)

    def _end(self, last: Piece) -> dict[str, Any]:
        reason = "stop_sequence" if isinstance(last.stop_reason, str) else "eos_token"
        return {
            "finish_reason": "length" if last.finish_reason == "length" else reason,
            "generated_tokens": self.num_tokens,
            "seed": self.job.sampling.seed if self.body.parameters.is_sampled else None,
        }
