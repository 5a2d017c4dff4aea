"""POST /v1/systemone: the probability of each option of questions about one state, for TypeSafe's clients."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.judgements.option_probabilities import Judgement, judge_with_reasons
from lightwell.server.dialects.judgements.questions import Option, Question, user_message
from lightwell.server.dialects.responses import large_response, model_name
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.schemas.chat_messages import ChatMessage
from lightwell.server.schemas.judgements.fields import json_text
from lightwell.server.schemas.judgements.systemone import (
    ChoiceOfCriteria,
    ScoreOfCriteria,
    SystemOneAnswer,
    SystemOneQuestion,
    SystemOneRequest,
)


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.post(
        "/v1/systemone",
        tags=["judgements"],
        summary="The same, as TypeSafe's clients ask",
        response_model=SystemOneAnswer,
    )
    async def systemone(request: Request, body: SystemOneRequest) -> Response:
        """Return, by the name of each question, the probability of each option, as POST /v1/decisions finds it."""
        model = await accept(context, body, "/v1/systemone")
        message, questions = await asyncio.to_thread(_read, body)
        names = {"input": "state"} | {f"questions[{i}]": f"questions.{name}" for i, name in enumerate(body.questions)}
        judging = judge_with_reasons(model, body, [message], questions)
        with FieldNames(names, cut_advice="").in_errors():
            found, reasons = await unless_disconnected(request, judging)
        named = list(zip(body.questions.items(), found.each, strict=True))
        answer = {
            "model": model_name(model),
            "answers": {
                name: _answer(question, each) | why
                for ((name, question), each), why in zip(named, reasons, strict=True)
            },
            "usage": {
                "input_tokens": found.num_read,
                "output_tokens": len(found.each),
                "cached_tokens": found.num_cached,
            },
            "diagnostics": {
                name: {"label_mass": each.label_mass, "argmax_is_label": each.is_label} for (name, _), each in named
            },
        }
        return await large_response(answer)


def _read(body: SystemOneRequest) -> tuple[ChatMessage, list[Question]]:
    """Return the state and the questions with JSON as text, which takes long for megabytes."""
    texts = [json_text(body.state)] if body.instructions is None else [body.instructions, json_text(body.state)]
    questions = [_question(each, f"questions.{name}") for name, each in body.questions.items()]
    return user_message("\n\n".join(texts)), questions


def _text(content: Any) -> str | None:
    return None if content is None else json_text(content)


def _question(asked: SystemOneQuestion, field: str) -> Question:
    instructions = _text(asked.instructions)
    if isinstance(asked, ChoiceOfCriteria):
        options = tuple(Option(name, _text(described)) for name, described in asked.criteria.items())
        return Question("choice", instructions, options, field)
    if isinstance(asked, ScoreOfCriteria):
        return Question("score", instructions, tuple(Option(json_text(level)) for level in asked.criteria), field)
    yes, no = (None, None) if asked.criteria is None else (asked.criteria.yes, asked.criteria.no)
    return Question("predicate", instructions, (Option("Yes", _text(yes)), Option("No", _text(no))), field)


def _answer(question: SystemOneQuestion, found: Judgement) -> dict[str, Any]:
    if isinstance(question, ChoiceOfCriteria):
        names = list(question.criteria)
        each = dict(zip(names, found.probabilities, strict=True))
        fields = {"choice": names[found.best], "confidence": found.confidence, "probabilities": each}
    elif isinstance(question, ScoreOfCriteria):
        each = {str(i): probability for i, probability in enumerate(found.probabilities)}
        legend = {str(i): level for i, level in enumerate(question.criteria)}
        fields = {"score": found.expected, "confidence": found.confidence, "legend": legend, "probabilities": each}
    else:
        fields = {"noul": found.probabilities[0]}
    return {"type": question.type, **fields}
