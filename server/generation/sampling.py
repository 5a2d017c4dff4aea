"""Converts a body's fields to the engine's SamplingParams, checked against the vocabulary."""

import logging
import math
import secrets
from collections.abc import Iterator
from dataclasses import fields
from hashlib import sha256
from typing import Any

from model.checkpoint.generation_defaults import SamplingDefaults
from server.engine.sampling_params import SamplingParams
from server.http.errors import BadRequest
from server.routes.context import AppContext
from server.routes.prompts import check_ids
from server.schemas.generation import ChatCompletionRequest, CompletionRequest, GenerationFields

logger = logging.getLogger(__name__)

_SEEDS = 2**63

_SHARED = {*SamplingParams.__struct_fields__} & GenerationFields.model_fields.keys()
"""Parameters whose field of a body has their name."""


def sampling_params(
    context: AppContext,
    body: CompletionRequest | ChatCompletionRequest,
    *,
    max_tokens: int,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Gather what every choice of a request shares; what it does not say is the model's (`SamplingDefaults`).

    Raises BadRequest for token ids outside the vocabulary.
    """
    bias = {int(key): value for key, value in (body.logit_bias or {}).items()}
    stop_ids = tuple(body.stop_token_ids or ())
    for field, ids in (("logit_bias", tuple(bias)), ("stop_token_ids", stop_ids)):
        if ids:
            check_ids(context, ids, field)
    # What the model's files forbid stays forbidden.
    bias |= {i: -math.inf for i in context.config.suppressed_token_ids if i < context.config.vocab_size}
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise BadRequest(
            f"min_tokens: {min_tokens} is over max_tokens, which is {max_tokens}; 0 to {max_tokens} are accepted.",
            param="min_tokens",
        )
    eos = (*context.tokenizer.eos_token_ids, *context.config.eos_token_ids)
    read: dict[str, Any] = {
        "max_tokens": max_tokens,
        "seed": secrets.randbelow(_SEEDS) if body.seed is None else body.seed % _SEEDS,
        "logit_bias": bias,
        "min_tokens": min_tokens,
        "eos_token_ids": tuple(i for i in dict.fromkeys(eos) if i < context.config.vocab_size),
        "stop_token_ids": stop_ids,
        "logprobs": body.num_logprobs,
        "prompt_logprobs": prompt_logprobs,
    }
    params = SamplingParams(**read, **{name: value for name, value in _as_named(context, body) if name not in read})
    if logger.isEnabledFor(logging.DEBUG):
        told = (f"{field.name}={getattr(params, field.name):g}" for field in fields(SamplingDefaults))
        logger.debug("the text is sampled with %s", ", ".join(told))
    return params


def _as_named(context: AppContext, body: GenerationFields) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that are taken as they are: the body's, else the model's, else `SamplingParams`' default."""
    for name in _SHARED:
        value = getattr(body, name)
        if value is None:
            value = getattr(context.sampling_defaults, name, None)
        if value is not None:
            yield name, value


def seed_of_choice(seed: int, choice: int) -> int:
    """Derive the seed of one of a prompt's choices; the first has the seed that was asked for.

    It is a hash of both numbers: with seed + choice, requests with neighbouring seeds would share answers.
    """
    if choice == 0:
        return seed
    return int.from_bytes(sha256(b"%d %d" % (seed, choice)).digest()[:8], "little") % _SEEDS
