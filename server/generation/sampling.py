"""Completes the sampling parameters of a request with the model's own, and checks them against the vocabulary."""

import logging
import math
import secrets
from dataclasses import fields
from hashlib import sha256
from typing import Any

from lightwell.model.checkpoint.generation_defaults import SamplingDefaults
from lightwell.server.engine.messages.sampling_params import SamplingParams
from lightwell.server.generation.prompts.prompt import check_ids
from lightwell.server.generation.request import TextRequest
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest

logger = logging.getLogger(__name__)

_SEEDS = 2**63


def sampling_params(model: ServedModel, request: TextRequest, *, max_tokens: int) -> SamplingParams:
    """Return the sampling parameters that all choices of a request share; absent ones are the model's.

    Raises BadRequest for token ids outside the vocabulary, and for a `min_tokens` over `max_tokens`.
    """
    asked: dict[str, Any] = {**_values(model.sampling_defaults), **request.sampling}
    asked["logit_bias"] = bias = {int(key): value for key, value in asked.get("logit_bias", {}).items()}
    asked["stop_token_ids"] = stop_ids = tuple(asked.get("stop_token_ids", ()))
    for field, ids in (("logit_bias", tuple(bias)), ("stop_token_ids", stop_ids)):
        if ids:
            check_ids(model, ids, field)
    # Tokens that the model's files forbid stay forbidden.
    bias |= {i: -math.inf for i in model.config.suppressed_token_ids if i < model.config.vocab_size}
    min_tokens = asked.get("min_tokens", 0)
    if min_tokens > max_tokens:
        raise BadRequest(
            f"min_tokens: {min_tokens} is larger than {request.names.of('max_tokens')}, which is {max_tokens}; 0 to "
            f"{max_tokens} are accepted.",
            param="min_tokens",
        )
    asked["top_k"] = max(asked["top_k"], 0)  # -1 keeps all tokens, as 0 does
    seed = asked.get("seed")
    asked["seed"] = secrets.randbelow(_SEEDS) if seed is None else seed % _SEEDS
    eos = (*model.tokenizer.eos_token_ids, *model.config.eos_token_ids)
    asked["eos_token_ids"] = tuple(i for i in dict.fromkeys(eos) if i < model.config.vocab_size)
    params = SamplingParams(**asked, max_tokens=max_tokens, logprobs=request.num_logprobs)
    if logger.isEnabledFor(logging.DEBUG):
        told = (f"{field.name}={getattr(params, field.name):g}" for field in fields(SamplingDefaults))
        logger.debug("the text is sampled with %s", ", ".join(told))
    return params


def _values(defaults: SamplingDefaults) -> dict[str, Any]:
    return {field.name: getattr(defaults, field.name) for field in fields(defaults)}


def seed_of_choice(seed: int, choice: int) -> int:
    """Derive the seed of one of a prompt's choices; the first has the seed of the request.

    It is a hash of both numbers: with seed + choice, requests with neighbouring seeds would share answers.
    """
    if choice == 0:
        return seed
    return int.from_bytes(sha256(b"%d %d" % (seed, choice)).digest()[:8], "little") % _SEEDS
