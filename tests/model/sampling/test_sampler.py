"""The documented effect of each sampling parameter, and that an answer does not depend on the batch."""

import math
import random
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lightwell.model.sampling.philox import random_uniform
from lightwell.model.sampling.sampler import SampledToken, Sampler, SamplerRow
from lightwell.server.engine.messages.sampling_params import SamplingParams
from tests.model.sampling.rows import distribution, make_logits, make_row, params
from tests.reference import sampling as reference
from tests.support.examples import examples

seeds = st.integers(0, 2**63 - 1)


def sample_one(logits: list[float], **options: object) -> SampledToken:
    prompt, output = (list(options.pop(f"{part}_token_ids", ())) for part in ("prompt", "output"))
    row = SamplerRow(params(**options), 0, prompt + output, len(prompt))
    return Sampler(len(logits)).sample(torch.tensor([logits]), [row])[0]


# --- the batch ---------------------------------------------------------------------------------------------------


@given(vocab_size=st.sampled_from([37, 1000, 4096]), dtype=st.sampled_from([torch.float32, torch.bfloat16]), seed=seeds)
@example(vocab_size=50257, dtype=torch.float32, seed=1)
@example(vocab_size=50257, dtype=torch.bfloat16, seed=2)
@settings(max_examples=12)
def test_a_row_answers_the_same_alone_among_others_and_with_more_threads(
    vocab_size: int, dtype: torch.dtype, seed: int
) -> None:
    rng = random.Random(seed)
    num_rows = rng.choice([2, 3, 7, 24])
    sampler, lone = Sampler(vocab_size), Sampler(vocab_size)
    logits = make_logits(num_rows, vocab_size, seed, dtype)
    rows = [make_row(vocab_size, rng) for _ in range(num_rows)]
    alone = [lone.sample(logits[r : r + 1].clone(), [rows[r]])[0] for r in range(num_rows)]
    assert sampler.sample(logits, rows) == alone
    order = rng.sample(range(num_rows), num_rows)
    assert sampler.sample(logits[order], [rows[r] for r in order]) == [alone[r] for r in order]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        assert sampler.sample(logits, rows) == alone
    finally:
        torch.set_num_threads(threads)


def test_logits_are_left_as_they_were() -> None:
    rng = random.Random(3)
    logits = make_logits(16, 500, 3)
    before = logits.clone()
    Sampler(500).sample(logits, [make_row(500, rng) for _ in range(16)])
    assert torch.equal(logits, before)


def test_an_unusable_row_gets_a_valid_id_and_leaves_its_neighbours_alone() -> None:
    logits = make_logits(3, 300, 1)
    rows = [SamplerRow(params(seed=i, top_p=0.9, top_k=40), 0) for i in range(3)]
    before = Sampler(300).sample(logits, rows)
    for bad in (math.nan, -math.inf, math.inf):
        logits[1] = bad
        after = Sampler(300).sample(logits, rows)
        assert 0 <= after[1].token_id < 300
        assert [after[0], after[2]] == [before[0], before[2]]


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(2, 10\); expected \(1, 10\)"):
        Sampler(10).sample(torch.zeros(2, 10), [SamplerRow(params(), 0)])


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(10).sample(torch.zeros(0, 10), []) == []


# --- greedy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
@pytest.mark.parametrize("extra", [{}, {"logit_bias": {0: -1.0}}, {"logprobs": 1}])
def test_temperature_zero_takes_the_lowest_id_among_the_largest_logits(
    temperature: float, extra: dict[str, object]
) -> None:
    logits = [0.0] * 200
    for i in (70, 71, 150):
        logits[i] = 4.0
    assert sample_one(logits, temperature=temperature, **extra).token_id == 70


# --- edits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logit_bias_forces_and_forbids(temperature: float) -> None:
    assert sample_one([0.0, 5.0, 1.0], temperature=temperature, logit_bias={2: 100.0}).token_id == 2
    assert sample_one([0.0, 90.0, -20.0], temperature=temperature, logit_bias={1: -100.0, 2: -100.0}).token_id == 0


def test_presence_counts_once_and_frequency_every_time_and_only_what_was_generated() -> None:
    history = {"prompt_token_ids": [1, 1, 1], "output_token_ids": [0, 0, 0, 2]}
    assert sample_one([5.0, 4.0, 4.5], temperature=0.0, presence_penalty=0.25, **history).token_id == 0
    chosen = sample_one([5.0, 4.0, 4.5], temperature=0.0, frequency_penalty=0.3, **history).token_id
    assert chosen == 2  # 5 - 3 * 0.3 = 4.1; 4.0; 4.5 - 0.3 = 4.2
    assert sample_one([5.0, 4.0, 4.5], temperature=0.0, presence_penalty=1.5, **history).token_id == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_counts_what_was_generated_only(temperature: float) -> None:
    options = {"temperature": temperature, "min_tokens": 1, "stop_token_ids": (1,), "prompt_token_ids": [0, 0]}
    assert sample_one([0.0, 90.0], **options).token_id == 0
    assert sample_one([0.0, 90.0], output_token_ids=[0], **options).token_id == 1


# --- the distribution drawn from ---------------------------------------------------------------------------------


@given(seed=seeds, vocab_size=st.sampled_from([1, 2, 10, 64, 65, 300]), has_ties=st.booleans())
@settings(max_examples=examples(150))
def test_the_distribution_and_the_draw_are_the_references(seed: int, vocab_size: int, has_ties: bool) -> None:
    """Compare in float64: an edge of top_p or min_p falls on the other side of a token with odds of about 1e-11 an
    example.
    """
    row = make_row(vocab_size, random.Random(seed))
    prompt, output = row.token_ids[: row.num_prompt_tokens], row.token_ids[row.num_prompt_tokens :]
    logits = make_logits(1, vocab_size, seed, torch.float64)
    if has_ties:
        logits = (logits * 4).round() / 4
    sampler = Sampler(vocab_size)
    assert isinstance(row.params, SamplingParams)
    expected = reference.distribution(logits[0].tolist(), row.params, prompt, output)
    np.testing.assert_allclose(distribution(sampler, logits[0], row).numpy(), expected, rtol=1e-9, atol=1e-14)
    if expected.any():
        possible = reference.draw(expected, random_uniform(row.params.seed, row.position))
        assert sampler.sample(logits, [row])[0].token_id in possible


@given(seed=seeds, top_p=st.floats(0.001, 0.999), vocab_size=st.sampled_from([5, 1000, 50257]))
@settings(max_examples=20)
def test_a_float32_nucleus_holds_top_p_and_not_a_token_more(seed: int, top_p: float, vocab_size: int) -> None:
    logits = make_logits(1, vocab_size, seed)[0]
    kept = distribution(Sampler(vocab_size), logits, SamplerRow(params(top_p=top_p), 0)) > 0
    p = logits.double().softmax(-1)
    assert p[kept].sum() > top_p - 1e-5
    assert p[kept].sum() - p[kept].min() < top_p + 1e-5
    if kept.all():
        return
    assert p[kept].min() >= p[~kept].max()


@given(seed=seeds, vocab_size=st.sampled_from([10, 300, 4096]), dtype=st.sampled_from([torch.float32, torch.float64]))
@example(seed=0, vocab_size=50257, dtype=torch.float32)
@settings(max_examples=30)
def test_kept_tokens_are_those_of_transformers(seed: int, vocab_size: int, dtype: torch.dtype) -> None:
    """Check that the same tokens survive top_k, min_p and temperature, and in float64 top_p.

    Two differences are on purpose. transformers keeps only some of several equal tokens at the edge of top_p, chosen by
    its unstable sort; we keep all (the logits here have no ties). Its float32 sums move that edge by about 1e-6 of the
    mass; so top_p is compared in float64.
    """
    rng = random.Random(seed)
    logits = make_logits(1, vocab_size, seed, dtype)
    top_k, top_p, min_p = rng.randrange(1, vocab_size), rng.uniform(0.01, 0.99), rng.uniform(0.001, 0.9)
    temperature = rng.uniform(0.2, 3)
    cases: list[tuple[SamplingParams, LogitsProcessor]] = [
        (params(top_k=top_k), TopKLogitsWarper(top_k)),
        (params(min_p=min_p), MinPLogitsWarper(min_p)),
        (params(temperature=temperature), TemperatureLogitsWarper(temperature)),
    ]
    if dtype == torch.float64:
        cases.append((params(top_p=top_p), TopPLogitsWarper(top_p)))
    for filtered, warper in cases:
        theirs = warper(torch.empty(1, 0, dtype=torch.long), logits.clone()).softmax(-1)[0].double()
        ours = distribution(Sampler(vocab_size), logits[0], SamplerRow(filtered, 0))
        assert not ours[theirs == 0].any(), filtered
        assert ours[theirs > 1e-17].all(), filtered  # ours are multiples of 2**-60
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-12)


def test_top_k_keeps_ties_at_its_edge_as_transformers_does() -> None:
    logits = torch.tensor([3.0, 1.0, 2.0, 2.0, 2.0, 0.0])
    kept = distribution(Sampler(6), logits, SamplerRow(params(top_k=2), 0)) > 0
    theirs = TopKLogitsWarper(2)(torch.empty(1, 0, dtype=torch.long), logits[None].clone())[0] > -torch.inf
    assert kept.tolist() == theirs.tolist() == [True, False, True, True, True, False]


@pytest.mark.parametrize("strict", [params(top_p=0.0), params(top_p=1e-300), params(min_p=1.0), params(top_k=1)])
def test_the_strictest_filters_keep_the_likeliest_and_its_equals(strict: SamplingParams) -> None:
    logits = torch.tensor([0.0, 1.5, -3.0, 1.5])
    assert distribution(Sampler(4), logits, SamplerRow(strict, 0)).tolist() == [0.0, 0.5, 0.0, 0.5]


@given(seed=seeds, penalty=st.floats(0.3, 3))
@settings(max_examples=30)
def test_the_repetition_penalty_is_that_of_transformers(seed: int, penalty: float) -> None:
    rng = random.Random(seed)
    prompt, output = ([rng.randrange(300) for _ in range(40)] for _ in range(2))
    logits = make_logits(1, 300, seed)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    row = SamplerRow(params(repetition_penalty=penalty), 0, prompt + output, len(prompt))
    expected = distribution(Sampler(300), theirs[0], SamplerRow(params(), 0))
    assert torch.equal(distribution(Sampler(300), logits[0], row), expected)


# --- grammars ----------------------------------------------------------------------------------------------------


@given(vocab_size=st.sampled_from([37, 1000]), rows=st.integers(1, 9), seed=seeds)
@settings(max_examples=examples(60), deadline=None)
def test_forbidden_tokens_are_as_if_their_logits_were_minus_infinity(vocab_size: int, rows: int, seed: int) -> None:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    logits = make_logits(rows, vocab_size, seed)
    plain = [replace_logprobs(make_row(vocab_size, rng)) for _ in range(rows)]
    masks = [draw.random(vocab_size) < 0.9 if rng.random() < 0.7 else None for _ in plain]
    for mask in masks:
        if mask is not None:
            mask[rng.randrange(vocab_size)] = False
    found = Sampler(vocab_size).sample(
        logits, [row._replace(forbidden=mask) for row, mask in zip(plain, masks, strict=True)]
    )
    hidden = logits.clone()
    for r, mask in enumerate(masks):
        if mask is not None:
            hidden[r, torch.from_numpy(mask)] = -math.inf
    expected = Sampler(vocab_size).sample(hidden, plain)
    for mask, one, other in zip(masks, found, expected, strict=True):
        assert mask is None or not mask[one.token_id]
        assert mask is not None or one == other
        # A row in which every token is banned has no token to compare with.
        assert (mask is not None and mask[other.token_id]) or one.token_id == other.token_id


def replace_logprobs(row: SamplerRow) -> SamplerRow:
    """Return the row without a request for log-probabilities, which are computed from the original logits."""
    assert isinstance(row.params, SamplingParams)
    return row._replace(params=replace(row.params, logprobs=None))


class Even:
    """A grammar that allows the even tokens of a vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def allows(self, token_id: int) -> bool:
        return token_id % 2 == 0

    def forbidden(self) -> npt.NDArray[np.bool_]:
        odd: npt.NDArray[np.bool_] = np.arange(self.vocab_size) % 2 == 1
        return odd


def test_under_a_grammar_tokens_come_as_often_as_among_the_allowed_ones_alone() -> None:
    num, size, temperature, seed = 20_000, 8, 0.7, random.randrange(2**40)
    logits = make_logits(1, size, seed)
    options = params(temperature=temperature)
    rows = [SamplerRow(replace(options, seed=seed + i), 3, (), 0, Even(size)) for i in range(num)]
    found = Counter(token.token_id for token in Sampler(size).sample(logits.expand(num, size), rows))
    weights = torch.softmax(logits[0].double() / temperature, -1)[::2]
    for token_id, share in zip(range(0, size, 2), (weights / weights.sum()).tolist(), strict=True):
        deviation = math.sqrt(num * share * (1 - share))
        assert abs(found.pop(token_id, 0) - num * share) < 5 * deviation + 1
    assert not found
