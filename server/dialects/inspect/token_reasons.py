"""The two compared tokens of a request for the reasons of a token, chosen by the logits."""

from collections.abc import Sequence

import numpy as np

from lightwell.server.dialects.inspect.inspection import NamedToken, read_token
from lightwell.server.dialects.parts.passes import ExplainedLogit
from lightwell.server.dialects.parts.reasons import check_explainable
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest, shown
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.schemas.judgements.reasons import Explain

_SOME = 8
"""Number of likeliest tokens that are sorted to find the first three."""


def read_versus(
    model: ServedModel, options: Explain, num_inputs: int, interventions: Sequence[object] | None
) -> NamedToken | None:
    """Return the token named by `versus`, or None. Raises BadRequest, also for a model or request without reasons."""
    check_explainable(model, num_inputs, "inputs")
    if interventions:
        raise BadRequest(
            "explain: reasons are not available with interventions; leave out one of them (POST /v1/contributions "
            "accepts interventions).",
            param="explain",
        )
    if isinstance(options.versus, bool):
        raise BadRequest(
            f'explain.versus: {shown(options.versus)} is not a token; "next", a text that is one token, a token id or '
            "null is accepted.",
            param="explain.versus",
        )
    return None if options.versus == "next" else read_token(model, options.versus, "explain.versus")


def likeliest(logits: NumpyArray) -> list[int]:
    """Return the three likeliest tokens of logits [vocab]."""
    some = np.argpartition(-logits, min(_SOME, len(logits)) - 1)[:_SOME].tolist()  # sorting all takes milliseconds
    return sorted(some, key=lambda token: (-logits[token], token))[:3]


def explained_token(
    model: ServedModel,
    prompt: Prompt,
    position: int,
    order: Sequence[int],
    options: Explain,
    versus: NamedToken | None,
    token_id: int | None = None,
) -> ExplainedLogit:
    """Return the logit to explain at a position with these three likeliest tokens: of `token_id`, or of the likeliest.

    `versus` is the token of `read_versus`. If it is the explained token itself, the runner-up is compared.
    """
    named = None if versus is None else versus.token_id
    target = next(each for each in order if each != named) if token_id is None else token_id
    other = named
    if options.versus == "next" or named == target:
        other = next(each for each in order if each != target)
    names = model.tokenizer.token_strings([target] if other is None else [target, other])
    described = NamedToken(target, names[0]).as_json(), None if other is None else NamedToken(other, names[1]).as_json()
    return ExplainedLogit(prompt, "words", target, other, position, described)
