"""Reasons of scores and labels: the likeliest label's logit against the runner-up's, or another's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightwell.server.dialects.judgements.scoring import Scored, labels_of
from lightwell.server.dialects.parts.passes import ExplainedLogit
from lightwell.server.dialects.parts.reasons import check_explainable, explain
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest, shown
from lightwell.server.schemas.judgements.reasons import Explain


def check_head_reasons(model: ServedModel, options: Explain | None, num_explained: int) -> None:
    """Raise BadRequest for scores and labels without available reasons."""
    if options is None:
        return
    check_explainable(model, num_explained, "inputs")
    if model.score_defaults is None:
        raise BadRequest(
            "explain: this model scores by the cosine of embeddings, which is not a logit; null is accepted.",
            param="explain",
            code="not_explainable",
        )
    _named_label(model, options)


async def reasons_of_scores(
    model: ServedModel, options: Explain | None, scored: Sequence[Scored]
) -> list[dict[str, Any]]:
    """Return the additional field of each score, or of each input's labels: its reasons; {} without `options`."""
    if options is None:
        return [{} for _ in scored]
    logits = [_explained_head(model, options, each) for each in scored]
    return [{"reasons": each} for each in await explain(model, logits, options)]


def _explained_head(model: ServedModel, options: Explain, scored: Scored) -> ExplainedLogit:
    score = None if model.score_defaults is None else model.score_defaults.token_score
    if score is not None:
        false_id = None if options.versus is None else score.false_id
        ids = [score.true_id] if false_id is None else [score.true_id, false_id]
        names = model.tokenizer.token_strings(ids)
        shown_ids = [{"token_id": token_id, "token": name} for token_id, name in zip(ids, names, strict=True)]
        target, versus = (*shown_ids, None)[:2]
        return ExplainedLogit(scored.prompt, "words", score.true_id, false_id, described=(target or {}, versus))
    order = np.argsort(-scored.logits, kind="stable").tolist()
    named = _named_label(model, options)
    label = next((i for i in order if i != named), order[0])
    other = next((i for i in order if i != label), None) if options.versus == "next" else named
    labels = labels_of(model)
    described = [None if i is None else {"label": labels[i], "index": i} for i in (label, other)]
    return ExplainedLogit(scored.prompt, "labels", label, other, described=(described[0] or {}, described[1]))


def _named_label(model: ServedModel, options: Explain) -> int | None:
    """Return the label named by `versus`, or None if it names none. Raises BadRequest for an unknown label."""
    if options.versus is None or options.versus == "next":
        return None
    head = model.config.classifier
    labels = () if head is None or head.num_labels == 1 else head.labels
    if options.versus in labels:
        return labels.index(str(options.versus))
    accepted = ", ".join(['"next"', "null", *map(shown, labels[:20])])
    raise BadRequest(
        f"explain.versus: {shown(options.versus)} is not usable; accepted: "
        f"{accepted}{', ...' if len(labels) > 20 else ''}.",
        param="explain.versus",
    )
