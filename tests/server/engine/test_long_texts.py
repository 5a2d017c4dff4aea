"""LongRoPE: a text is rotated by the factors for its own length, alone, in a batch and with cached prefixes. It is
computed again when it outgrows the short factors. `transformers` gives the expected numbers.
"""

from typing import Any

import pytest
import torch

from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.messages.request import EngineRequest
from tests import tiny
from tests.server.engine.driving import Answer, build, generate, load, request, run

MOST = 32
"""The tokens of the longest text that has the short factors."""
VARIANTS = ("phi3-long", "llama-longrope")


@pytest.fixture(scope="module", params=VARIANTS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Any]:
    """Our network, and the same one in `transformers`."""
    folder = tiny.make_variant(request.param, tmp_path_factory.mktemp("model"))
    return load(folder), tiny.theirs(folder, torch.float32)


def prompt(length: int, seed: int = 0) -> list[int]:
    return torch.randint(5, tiny.VOCAB_SIZE - 20, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def written(uid: int, ids: list[int], max_tokens: int) -> EngineRequest:
    return request(uid, ids, generate(max_tokens, logprobs=1, prompt_logprobs=0 if uid % 2 else None))


@torch.no_grad()
def check(network: Any, asked: EngineRequest, answer: Answer) -> None:
    """Compare each token's log-probability with `transformers`, which reads the whole text without a cache."""
    ids = list(asked.prompt_token_ids)
    assert answer.error is None
    for token, logprobs in zip(answer.tokens, answer.logprobs, strict=True):
        expected = network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        assert logprobs is not None
        assert abs(logprobs.logprob - float(expected[token])) < 1e-4, len(ids)
        ids.append(token)
    if answer.prompt_logprobs is not None:
        ids = list(asked.prompt_token_ids)
        expected = network(torch.tensor([ids])).logits[0].log_softmax(-1)
        for i, logprobs in enumerate(answer.prompt_logprobs[1:]):
            assert logprobs is not None
            assert abs(logprobs.logprob - float(expected[i, ids[i + 1]])) < 1e-4


@pytest.mark.parametrize("length", [1, MOST - 1, MOST, MOST + 1, 50])
def test_a_text_has_the_factors_of_its_length_also_where_it_outgrows_them(
    both: tuple[Transformer, Any], length: int
) -> None:
    asked = written(1, prompt(length), 12)
    answer = run(build(both[0]), [asked])[1]
    assert len(answer.tokens) == 12
    check(both[1], asked, answer)


def test_short_and_long_texts_share_a_batch_and_no_cached_prefix(both: tuple[Transformer, Any]) -> None:
    """Use texts with the same beginning, so that a wrong prefix is detected; in a small cache some are preempted."""
    model, network = both
    text = prompt(60)
    lengths = (20, MOST - 4, MOST - 1, MOST, MOST + 1, 48, 60)
    for options in ({}, {"num_blocks": 24}, {"max_num_batched_tokens": 16, "max_num_seqs": 8}):
        engine = build(model, **options)
        for start in (0, 10):
            asked = [written(start + i, text[:length], 9) for i, length in enumerate(lengths)]
            found = run(engine, asked, arrivals=[i // 2 for i in range(len(asked))])
            for each in asked:
                check(network, each, found[each.uid])
    engine = build(model)
    run(engine, [written(0, text, 1)])
    before = engine.stats().prefix_cache_hits_total
    run(engine, [written(2, text[:MOST], 1)])
    assert engine.stats().prefix_cache_hits_total == before
    run(engine, [written(4, text, 1)])
    assert engine.stats().prefix_cache_hits_total > before
