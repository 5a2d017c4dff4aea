"""Tells the reasons of the first tokens of a chat's answer: each one's logit against the runner-up's, or another's."""

from collections.abc import Sequence
from typing import Any

from lightwell.server.dialects.inspect.inspection import NamedToken, capture
from lightwell.server.dialects.inspect.token_reasons import explained_token, read_versus
from lightwell.server.dialects.parts.passes import ExplainedLogit
from lightwell.server.dialects.parts.reasons import check_room, explain
from lightwell.server.engine.messages.request import TraceTask
from lightwell.server.generation.prompts.prompt import Prompt, packed
from lightwell.server.generation.request import ChatRequest
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.tasks import Work, run_all
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.tensor_formats import as_numpy
from lightwell.server.schemas.judgements.reasons import MAX_EXPLAINED, Explain


def check_chat_reasons(model: ServedModel, request: ChatRequest, options: Explain | None) -> NamedToken | None:
    """Return the token that `explain` compares with, if it names one. Raises BadRequest if the request's answer cannot
    have reasons.
    """
    if options is None:
        return None
    if request.is_stream or request.num_choices > 1:
        given = "stream true" if request.is_stream else f"n {request.num_choices}"
        raise BadRequest(f"explain: reasons need one whole answer; with {given} null is accepted.", param="explain")
    return read_versus(model, options, 1, request.interventions)


def check_room_for_reasons(model: ServedModel, options: Explain | None, prompt: Prompt, max_tokens: int) -> None:
    """Raise PayloadTooLarge, before anything is generated, if the reasons of `max_tokens` tokens capture too much."""
    if options is None:
        return
    count = min(max_tokens, MAX_EXPLAINED)
    read = Prompt(prompt.ids + packed([0] * (count - 1)), encoder=prompt.encoder)
    positions = range(len(prompt.ids) - 1, len(read.ids))
    check_room(model, [ExplainedLogit(read, "words", 0, 1, position) for position in positions], options)


async def chat_reasons(
    model: ServedModel,
    options: Explain | None,
    versus: NamedToken | None,
    prompt: Prompt,
    token_ids: Sequence[int],
) -> dict[str, Any]:
    """Return the field `reasons` of a choice, with the reasons of its first tokens, or nothing without options."""
    told = tuple(token_ids[:MAX_EXPLAINED])
    if options is None or not told:
        return {} if options is None else {"reasons": []}
    read = Prompt(prompt.ids + packed(told[:-1]), encoder=prompt.encoder)
    positions = tuple(range(len(prompt.ids) - 1, len(read.ids)))
    point = capture(model, "decoder", "logits", positions=positions)
    num_bytes = 4 * len(positions) * model.config.vocab_size
    (found,) = await run_all(model, [Work(TraceTask(points=(point,)), read, num_bytes, is_sent=False)])
    logits = as_numpy(found.tensors[point.name])
    asked = [
        explained_token(model, read, position, row, options, versus, token_id)
        for position, row, token_id in zip(positions, logits, told, strict=True)
    ]
    return {"reasons": await explain(model, asked, options)}
