"""From a body's fields to the engine's SamplingParams, checked against the vocabulary."""

import math
import secrets
from hashlib import sha256

from server.engine.sampling_params import SamplingParams
from server.http.errors import BadRequest
from server.routes.context import AppContext
from server.schemas import GenerationFields

_SEEDS = 2**63


def sampling_params(
    context: AppContext,
    body: GenerationFields,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Gather what every choice of a request shares; what it does not say is the model's (`SamplingDefaults`).

    Raises BadRequest for token ids outside the vocabulary.
    """
    defaults = context.sampling_defaults
    bias = {int(key): value for key, value in (body.logit_bias or {}).items()}
    stop_ids = tuple(body.stop_token_ids or ())
    _check_vocabulary(context, "logit_bias", bias)
    _check_vocabulary(context, "stop_token_ids", stop_ids)
    # What the model's files forbid stays forbidden.
    bias |= {i: -math.inf for i in context.config.suppressed_token_ids if i < context.config.vocab_size}
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise BadRequest(
            f"min_tokens: {min_tokens} is over max_tokens, which is {max_tokens}; 0 to {max_tokens} are accepted.",
            param="min_tokens",
        )
    eos = (*context.tokenizer.eos_token_ids, *context.config.eos_token_ids)
    return SamplingParams(
        max_tokens=max_tokens,
        seed=secrets.randbelow(_SEEDS) if body.seed is None else body.seed % _SEEDS,
        temperature=_or(body.temperature, defaults.temperature),
        top_p=_or(body.top_p, defaults.top_p),
        top_k=defaults.top_k if body.top_k is None else max(body.top_k, 0),
        min_p=_or(body.min_p, defaults.min_p),
        repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(body.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_or(body.frequency_penalty, defaults.frequency_penalty),
        logit_bias=bias,
        min_tokens=min_tokens,
        eos_token_ids=tuple(i for i in dict.fromkeys(eos) if i < context.config.vocab_size),
        ignore_eos=body.ignore_eos,
        stop_token_ids=stop_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def seed_of_choice(seed: int, choice: int) -> int:
    """Derive the seed of one of a prompt's choices; the first has the seed that was asked for.

    It is a hash of both numbers: with seed + choice, requests with neighbouring seeds would share answers.
    """
    if choice == 0:
        return seed
    return int.from_bytes(sha256(b"%d %d" % (seed, choice)).digest()[:8], "little") % _SEEDS


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _check_vocabulary(context: AppContext, field: str, ids: dict[int, float] | tuple[int, ...]) -> None:
    size = context.config.vocab_size
    for token_id in ids:
        if token_id >= size:
            raise BadRequest(
                f"{field}: there is no token {token_id}; accepted are 0 to {size - 1}.",
                param=field,
                code="invalid_token_id",
            )
