"""Says which two tokens are compared when the reasons of a token are asked for. It knows logits, not where they come
from.
"""

from collections.abc import Sequence

import numpy as np

from server.http.errors import BadRequest, shown
from server.http.tensor_formats import NumpyArray
from server.routes.context import AppContext
from server.routes.inspect.inspection import NamedToken, read_token
from server.routes.parts.passes import ExplainedLogit
from server.routes.parts.reasons import check_explainable
from server.routes.prompts import Prompt
from server.schemas.judgements.reasons import Explain

_SOME = 8
"""Likeliest tokens among which the first three are looked for: of equals the first."""


def read_versus(
    context: AppContext, options: Explain, num_inputs: int, interventions: Sequence[object] | None
) -> NamedToken | None:
    """Return the token that `versus` names, if it names one. Raises BadRequest, also for what cannot be explained."""
    check_explainable(context, num_inputs, "inputs")
    if interventions:
        raise BadRequest(
            "explain: passes with interventions have no reasons; without interventions it is accepted (POST "
            "/v1/contributions analyses such a pass).",
            param="explain",
        )
    if isinstance(options.versus, bool):
        raise BadRequest(
            f'explain.versus: {shown(options.versus)} is no token; "next", a text that is one token, a token id or '
            "null is accepted.",
            param="explain.versus",
        )
    return None if options.versus == "next" else read_token(context, options.versus, "explain.versus")


def explained_token(
    context: AppContext,
    prompt: Prompt,
    position: int,
    logits: NumpyArray,
    options: Explain,
    versus: NamedToken | None,
    token_id: int | None = None,
) -> ExplainedLogit:
    """Return what is explained of a position whose logits [vocab] are known: `token_id`, or the likeliest token.

    `versus` is what `read_versus` returned. If it is the token itself, that is compared with the runner-up.
    """
    some = np.argpartition(-logits, min(_SOME, len(logits)) - 1)[:_SOME].tolist()  # sorting all takes milliseconds
    order = sorted(some, key=lambda token: (-logits[token], token))[:3]
    named = None if versus is None else versus.token_id
    target = next(each for each in order if each != named) if token_id is None else token_id
    other = named
    if options.versus == "next" or named == target:
        other = next(each for each in order if each != target)
    names = context.tokenizer.token_strings([target] if other is None else [target, other])
    described = NamedToken(target, names[0]).as_json(), None if other is None else NamedToken(other, names[1]).as_json()
    return ExplainedLogit(prompt, "words", target, other, position, described)
