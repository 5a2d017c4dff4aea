"""Tells the reasons of answers to questions, and of scores and labels: the likeliest one's logit against the
runner-up's, or another's.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from server.http.errors import BadRequest, shown
from server.routes.context import AppContext
from server.routes.judgements.answering import Judgement, Judgements, judge
from server.routes.judgements.questions import Asked, Question, ask
from server.routes.judgements.scoring import Scored
from server.routes.parts.passes import ExplainedLogit
from server.routes.parts.reasons import check_explainable, explain
from server.schemas.chat_messages import ChatMessage
from server.schemas.judgements.fields import JudgementFields
from server.schemas.judgements.reasons import Explain

# ---- questions


async def judge_with_reasons(
    context: AppContext,
    body: JudgementFields,
    messages: Sequence[ChatMessage],
    questions: Sequence[Question],
    arrival: float,
) -> tuple[Judgements, list[dict[str, Any]]]:
    """Return the answers to questions about a conversation, and the additional fields of each: its reasons, if the
    body has `explain`. Raises ApiError.
    """
    options = body.explain
    if options is not None:  # before anything runs
        check_explainable(context, len(questions), "questions")
        for question in questions:
            _named(options, question)
    asked = await ask(context, messages, questions, body.chat_template_kwargs)
    found = await judge(context, asked, arrival)
    if options is None:
        return found, [{} for _ in questions]
    logits = [
        _explained(context, options, question, each, judgement)
        for question, each, judgement in zip(questions, asked, found.each, strict=True)
    ]
    return found, [{"reasons": each} for each in await explain(context, logits, options, arrival)]


def _explained(
    context: AppContext, options: Explain, question: Question, asked: Asked, found: Judgement
) -> ExplainedLogit:
    order = sorted(range(len(asked.labels)), key=lambda i: -found.probabilities[i])
    named = _named(options, question)
    target = next((i for i in order if i != named), order[0])
    versus = next((i for i in order if i != target), None) if options.versus == "next" else named
    versus = None if versus == target else versus

    def described(option: int) -> dict[str, Any]:
        token_id = asked.labels[option]
        return {
            "option": question.options[option].text,
            "token": context.tokenizer.token_strings([token_id])[0],
            "token_id": token_id,
        }

    return ExplainedLogit(
        asked.prompt,
        "words",
        asked.labels[target],
        None if versus is None else asked.labels[versus],
        described=(described(target), None if versus is None else described(versus)),
    )


def _named(options: Explain, question: Question) -> int | None:
    """Return the option that `versus` names, or None if it names none. Raises BadRequest for one that is not there."""
    if options.versus is None or options.versus == "next":
        return None
    wanted = str(options.versus).lower() if isinstance(options.versus, bool) else options.versus
    texts = [option.text for option in question.options]
    if wanted in texts:
        return texts.index(str(wanted))
    raise BadRequest(
        f'explain.versus: {shown(options.versus)} is no option of {question.field}; accepted: "next", null, '
        f"{', '.join(map(shown, texts[:20]))}{', ...' if len(texts) > 20 else ''}.",
        param="explain.versus",
    )


# ---- heads


def check_head_reasons(context: AppContext, options: Explain | None, num_explained: int) -> None:
    """Raise BadRequest, before anything runs, for reasons of scores and labels that cannot be told."""
    if options is None:
        return
    check_explainable(context, num_explained, "inputs")
    if context.score_defaults is None:
        raise BadRequest(
            "explain: this model scores by the cosine of embeddings, which is no logit; null is accepted.",
            param="explain",
            code="not_explainable",
        )
    _named_label(context, options)


async def reasons_of_scores(
    context: AppContext, options: Explain | None, scored: Sequence[Scored], arrival: float
) -> list[dict[str, Any]]:
    """Return what each score, or each input's labels, has beside itself: its reasons, or nothing if they are not asked
    for.
    """
    if options is None:
        return [{} for _ in scored]
    logits = [_explained_head(context, options, each) for each in scored]
    return [{"reasons": each} for each in await explain(context, logits, options, arrival)]


def _explained_head(context: AppContext, options: Explain, scored: Scored) -> ExplainedLogit:
    score = None if context.score_defaults is None else context.score_defaults.token_score
    if score is not None:
        false_id = None if options.versus is None else score.false_id
        ids = [score.true_id] if false_id is None else [score.true_id, false_id]
        names = context.tokenizer.token_strings(ids)
        shown_ids = [{"token_id": token_id, "token": name} for token_id, name in zip(ids, names, strict=True)]
        target, versus = (*shown_ids, None)[:2]
        return ExplainedLogit(scored.prompt, "words", score.true_id, false_id, described=(target or {}, versus))
    order = np.argsort(-scored.logits, kind="stable").tolist()
    named = _named_label(context, options)
    label = next((i for i in order if i != named), order[0])
    other = next((i for i in order if i != label), None) if options.versus == "next" else named
    labels = () if context.config.classifier is None else context.config.classifier.labels
    described = [None if i is None else {"label": labels[i], "index": i} for i in (label, other)]
    return ExplainedLogit(scored.prompt, "labels", label, other, described=(described[0] or {}, described[1]))


def _named_label(context: AppContext, options: Explain) -> int | None:
    """Return the label that `versus` names, or None if it names none. Raises BadRequest for one that is not there."""
    if options.versus is None or options.versus == "next":
        return None
    head = context.config.classifier
    labels = () if head is None or head.num_labels == 1 else head.labels
    if options.versus in labels:
        return labels.index(str(options.versus))
    accepted = ", ".join(['"next"', "null", *map(shown, labels[:20])])
    raise BadRequest(
        f"explain.versus: {shown(options.versus)} is not usable; accepted: "
        f"{accepted}{', ...' if len(labels) > 20 else ''}.",
        param="explain.versus",
    )
