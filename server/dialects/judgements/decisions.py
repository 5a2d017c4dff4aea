"""POST /v1/decisions: the probability of each option of questions about one input, for OpenAI's clients."""

import asyncio
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.judgements.option_probabilities import Judgement, judge_with_reasons
from lightwell.server.dialects.judgements.questions import Option, Question, user_message
from lightwell.server.dialects.responses import large_response, model_name
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.prompts.field_names import WITHOUT_TRUNCATE
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.schemas.chat_messages import ChatMessage
from lightwell.server.schemas.judgements.decisions import (
    AnyQuestion,
    ChoiceQuestion,
    DecisionsAnswer,
    DecisionsRequest,
    FunctionCall,
    Message,
    ScoreQuestion,
    text_of,
)


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        "/v1/decisions",
        tags=["judgements"],
        summary="The probability of each option of questions about one input",
        response_model=DecisionsAnswer,
    )
    async def decisions(request: Request, body: DecisionsRequest) -> Response:
        """Return, for each question, the probability of each option: the softmax over the logits of the options' labels
        where the answer begins. The input is computed once.
        """
        model = await accept(context, body, "/v1/decisions")
        messages, questions = await asyncio.to_thread(_read, body)
        judging = judge_with_reasons(model, body, messages, questions)
        with WITHOUT_TRUNCATE.in_errors():
            found, reasons = await unless_disconnected(request, judging)
        answers = (
            _answer(question, each) | why
            for question, each, why in zip(body.questions, found.each, reasons, strict=True)
        )
        usage = {
            "input_tokens": found.num_read,
            "input_tokens_details": {"cached_tokens": found.num_cached, "cache_write_tokens": 0},
            "output_tokens": len(found.each),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": found.num_read + len(found.each),
        }
        return await large_response({"answers": answers, "model": model_name(model), "usage": usage})


def _read(body: DecisionsRequest) -> tuple[list[ChatMessage], list[Question]]:
    """Return the conversation and the questions with JSON as text, which takes long for megabytes."""
    if isinstance(body.input, str):
        messages = [user_message(body.input)]
    else:
        messages = [ChatMessage.model_validate(each) for each in _rows(body)]
    return messages, [_question(each, f"questions[{i}]") for i, each in enumerate(body.questions)]


def _rows(body: DecisionsRequest) -> Iterator[dict[str, Any]]:
    """Yield the messages of a conversation; consecutive calls are one message of the assistant."""
    calls: list[dict[str, Any]] = []
    for item in body.input:
        if isinstance(item, FunctionCall):
            function = {"name": item.name, "arguments": item.arguments}
            calls.append({"id": item.call_id, "type": "function", "function": function})
            continue
        if calls:
            yield {"role": "assistant", "tool_calls": calls}
            calls = []
        if isinstance(item, Message):
            yield {"role": item.role, "content": text_of(item.content)}
        elif not isinstance(item, str):
            yield {"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)}
    if calls:
        yield {"role": "assistant", "tool_calls": calls}


def _question(asked: AnyQuestion, field: str) -> Question:
    instructions = text_of(asked.instructions)
    if isinstance(asked, ChoiceQuestion):
        values = (str(each.value).lower() if isinstance(each.value, bool) else each.value for each in asked.choices)
        options = tuple(map(Option, values, (each.description for each in asked.choices)))
    elif isinstance(asked, ScoreQuestion):
        options = tuple(Option(level.label, level.description) for level in asked.levels)
    else:
        options = (Option("Yes"), Option("No"))
    return Question(asked.type, instructions, options, field)


def _answer(question: AnyQuestion, found: Judgement) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": question.type, "name": question.name}
    if isinstance(question, ChoiceQuestion):
        values = [choice.value for choice in question.choices]
        each = [{"value": value, "probability": p} for value, p in zip(values, found.probabilities, strict=True)]
        return answer | {"choice": values[found.best], "confidence": found.confidence, "probabilities": each}
    if isinstance(question, ScoreQuestion):
        each = [
            {"label": level.label, "value": i, "probability": p}
            for i, (level, p) in enumerate(zip(question.levels, found.probabilities, strict=True))
        ]
        return answer | {"score": found.expected, "confidence": found.confidence, "probabilities": each}
    return answer | {"probability": found.probabilities[0]}
