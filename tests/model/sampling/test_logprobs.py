"""Log-probabilities are computed from the model's own logits, at every position, and do not depend on the batch."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.model.sampling.logprobs import TokenLogprob, logprob_rows, prompt_logprobs
from lightwell.model.sampling.sampler import Sampler, SamplerRow
from tests.model.sampling.rows import make_logits, params


def test_they_ignore_everything_a_request_does_to_the_scores() -> None:
    logits = make_logits(1, 100, 1)
    sampling = params(
        temperature=0.3, top_k=3, top_p=0.5, logit_bias={7: 100.0}, repetition_penalty=2.0, logprobs=4, min_tokens=3
    )
    token = Sampler(100).sample(logits, [SamplerRow(sampling, 5, [1, 2, 3], 2)])[0]
    expected = logits[0].double().log_softmax(-1)
    assert token.token_id == 7
    assert token.logprob == pytest.approx(expected[7].item(), abs=1e-5)
    assert token.rank == 1 + (expected > expected[7]).sum().item()
    assert [i for i, _ in token.top] == expected.topk(4).indices.tolist()
    assert TokenLogprob(token.token_id, token.logprob or 0, token.rank, token.top) == logprob_rows(logits, [7], [4])[0]
    assert [p for _, p in token.top] == pytest.approx(expected.topk(4).values.tolist(), abs=1e-5)


def test_none_asked_none_given_and_zero_gives_the_chosen_token_alone() -> None:
    rows = [SamplerRow(params(logprobs=n, seed=1), 3) for n in (None, 0)]
    none, chosen = Sampler(50).sample(make_logits(1, 50, 2).expand(2, 50), rows)
    assert (none.logprob, none.rank, none.top) == (None, 0, ())
    assert chosen.token_id == none.token_id
    assert chosen.logprob is not None
    assert chosen.logprob < 0
    assert chosen.rank >= 1
    assert chosen.top == ()


def test_equal_alternatives_come_lowest_id_first() -> None:
    logits = torch.zeros(1, 500)
    logits[0, 300] = 1
    entry = logprob_rows(logits, [4], [3])[0]
    assert [i for i, _ in entry.top] == [300, 0, 1]
    assert entry.rank == 2


def test_more_alternatives_than_tokens_give_every_token() -> None:
    assert len(logprob_rows(make_logits(1, 10, 3), [0], [20])[0].top) == 10


@pytest.mark.parametrize("vocab_size", [37, 1000, 4096, 50257])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=5)
def test_a_row_reports_the_same_alone_and_among_others(vocab_size: int, seed: int) -> None:
    rng = random.Random(seed)
    num_rows = rng.choice([2, 5, 30])
    logits = make_logits(num_rows, vocab_size, seed)
    ids = [rng.randrange(vocab_size) for _ in range(num_rows)]
    ks = [rng.choice([0, 1, 5, 20]) for _ in range(num_rows)]
    alone = [logprob_rows(logits[r : r + 1].clone(), [ids[r]], [ks[r]])[0] for r in range(num_rows)]
    assert logprob_rows(logits, ids, ks) == alone


def test_prompt_logprobs_judge_each_next_token_across_chunks() -> None:
    logits = make_logits(600, 2000, 4)  # more than two chunks
    next_ids = [random.Random(5).randrange(2000) for _ in range(600)]
    entries = prompt_logprobs(logits, next_ids, 2)
    expected = logits.double().log_softmax(-1)
    assert [e.token_id for e in entries] == next_ids
    assert [e.logprob for e in entries] == pytest.approx(expected[range(600), next_ids].tolist(), abs=1e-5)
    assert [e.top[0][0] for e in entries] == logits.argmax(-1).tolist()


def test_half_precision_logits_are_widened_first() -> None:
    logits = make_logits(2, 100, 6).bfloat16()
    assert logprob_rows(logits, [1, 2], [3, 3]) == logprob_rows(logits.float(), [1, 2], [3, 3])


def test_float64_logits_keep_their_precision() -> None:
    logits = make_logits(1, 100, 7).double()
    expected = TokenLogprob(5, logits[0].log_softmax(-1)[5].item(), int((logits[0] > logits[0, 5]).sum()) + 1)
    assert logprob_rows(logits, [5], [0]) == [expected]


def test_an_empty_prompt_has_none() -> None:
    assert prompt_logprobs(torch.zeros(0, 10), [], 3) == []


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows of logits, 1 token_ids"):
        prompt_logprobs(torch.zeros(2, 10), [1], 0)
