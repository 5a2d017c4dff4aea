"""A text is scored (max_tokens 0 with echo) up to the very last token of the context, and no further."""

import math

import openai
import pytest

from tests.support.processes import Server

CONTEXT = 512


def test_a_text_as_long_as_the_context_is_scored_whole(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    ids = [5 + 7 * i % 4000 for i in range(CONTEXT)]
    answer = client.completions.create(model="fables", prompt=ids, max_tokens=0, echo=True, logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.token_logprobs) == CONTEXT
    shorter = client.completions.create(model="fables", prompt=ids[:-1], max_tokens=1, echo=True, logprobs=0)
    assert shorter.choices[0].logprobs is not None
    assert shorter.choices[0].logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[1:-1] == shorter.choices[0].logprobs.token_logprobs[1:-1]
    assert math.isfinite(logprobs.token_logprobs[-1])
    with pytest.raises(openai.BadRequestError, match="513 tokens; at most 512 are accepted"):
        client.completions.create(model="fables", prompt=[*ids, 5], max_tokens=0, echo=True, logprobs=0)
    with pytest.raises(openai.BadRequestError, match="at most 511 are accepted"):
        client.completions.create(model="fables", prompt=ids, max_tokens=1, echo=True, logprobs=0)
