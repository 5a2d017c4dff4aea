"""The device's sampler chooses the same tokens as the plain one, bit for bit, and never makes a host wait."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from lightwell.model.sampling.device_edits import EditCapacity, PackedEdits, RowEdits, edited
from lightwell.model.sampling.device_rows import (
    Kind,
    chosen_logits,
    num_alternatives,
    pack,
    packed_size,
    result_width,
    unpack,
)
from lightwell.model.sampling.device_sampler import DeviceSampler, score_type
from lightwell.model.sampling.logit_edits import LogitEdits
from lightwell.model.sampling.sampler import SampledToken, Sampler, SamplerRow
from lightwell.server.engine.messages.sampling_params import SamplingParams
from tests.model.sampling.rows import make_logits, make_params, make_row, params
from tests.support.examples import examples

seeds = st.integers(0, 2**63 - 1)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])
EVERY_KIND = Kind.RANDOM | Kind.TOP_K | Kind.TOP_P
KINDS = [Kind.GREEDY, Kind.RANDOM, Kind.RANDOM | Kind.TOP_K, Kind.RANDOM | Kind.TOP_P, EVERY_KIND]


def sample(
    logits: torch.Tensor, rows: Sequence[SamplerRow], kind: Kind | None = None, padding: int = 0
) -> list[SampledToken]:
    """Choose tokens as an engine would, in a graph of `padding` more rows than are used."""
    num_rows, vocab_size = len(rows) + padding, logits.shape[1]
    logits = torch.cat([logits, logits[:1].expand(padding, -1)])
    packed = np.full(packed_size(num_rows), -1, np.int64)
    pack(rows, packed)
    edits = PackedEdits(vocab_size)
    for r, row in enumerate(rows):
        edits.add(r, RowEdits(row.params, vocab_size, row.num_prompt_tokens), row.token_ids)
    scores = None
    least = edits.least_capacity(num_rows)
    if least.biases or least.tokens:
        capacity = EditCapacity(num_rows, least.biases + padding, least.tokens + padding)
        places = np.full(capacity.packed_size, -1, np.int64)
        edits.pack(places, capacity)
        scores = edited(logits, torch.from_numpy(places), capacity, score_type(logits))
    result = DeviceSampler(vocab_size).sample(
        Kind.of(rows) if kind is None else kind,
        logits,
        torch.from_numpy(packed),
        edited=scores,
        logprobs=num_alternatives(rows),
    )
    tokens = unpack(result.numpy()[: len(rows)], rows)
    numbers = chosen_logits(result.numpy(), len(rows))
    found = logits[range(len(rows)), [token.token_id for token in tokens]].double()
    np.testing.assert_array_equal(numbers, found.numpy())
    return tokens


def plain(options: SamplingParams, **changed: Any) -> SamplingParams:
    """The same parameters without edits."""
    return replace(
        options,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias={},
        min_tokens=0,
        **changed,
    )


# --- equality ----------------------------------------------------------------------------------------------------


@given(vocab_size=st.sampled_from([1, 2, 10, 64, 65, 300, 4096]), dtype=dtypes, has_ties=st.booleans(), seed=seeds)
@example(vocab_size=50257, dtype=torch.bfloat16, has_ties=False, seed=1)
@settings(max_examples=examples(150))
def test_tokens_and_log_probabilities_are_those_of_the_plain_sampler(
    vocab_size: int, dtype: torch.dtype, has_ties: bool, seed: int
) -> None:
    rng = random.Random(seed)
    logits = make_logits(rng.choice([1, 2, 7, 20]), vocab_size, seed, dtype)
    if has_ties:
        logits = (logits * rng.choice([0, 1, 4])).round() / -4  # some of them -0
    rows = [make_row(vocab_size, rng) for _ in logits]
    expected = Sampler(vocab_size).sample(logits, rows)
    assert sample(logits, rows, rng.choice([None, EVERY_KIND]), rng.choice([0, 3])) == expected


@given(vocab_size=st.sampled_from([10, 300, 5000]), dtype=dtypes, seed=seeds)
@settings(max_examples=20)
def test_rows_without_a_distribution_get_the_same_token_and_leave_others_alone(
    vocab_size: int, dtype: torch.dtype, seed: int
) -> None:
    rng = random.Random(seed)
    logits = make_logits(6, vocab_size, seed, dtype)
    logits[1] = -torch.inf
    for r, bad, times in ((2, torch.nan, 1), (3, torch.inf, 3), (4, -torch.nan, 1), (5, -torch.inf, 3)):
        logits[r, [rng.randrange(vocab_size) for _ in range(times)]] = bad  # of several NaNs any may be chosen
    rows = [SamplerRow(plain(make_params(vocab_size, rng), logprobs=None), r) for r in range(6)]
    assert sample(logits, rows, rng.choice([None, EVERY_KIND])) == Sampler(vocab_size).sample(logits, rows)


def test_bans_of_every_token_leave_the_largest_logit() -> None:
    rows = [
        SamplerRow(params(temperature=t, min_tokens=1, stop_token_ids=tuple(range(70))), 0, [3], 1) for t in (0.0, 1.0)
    ]
    logits = make_logits(2, 70, 1)
    assert sample(logits, rows) == Sampler(70).sample(logits, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "strict",
    [{"top_p": 0.0}, {"top_p": 1e-300}, {"top_p": 1 - 2.0**-53}, {"min_p": 1.0}, {"top_k": 1}, {"top_k": 69},
     {"top_k": 70}, {"top_k": 71}, {"temperature": 1e-5}, {"temperature": 1e30}],
)  # fmt: skip
def test_filters_at_their_limits(strict: dict[str, Any], dtype: torch.dtype) -> None:
    logits = make_logits(200, 70, 5, dtype)
    logits[100:] = logits[100:].round()
    rows = [SamplerRow(params(seed=r, **strict), r) for r in range(200)]
    assert sample(logits, rows) == Sampler(70).sample(logits, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_k_finds_its_edge_among_numbers_of_any_size(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    ends = [0.0, -0.0, limits.tiny, limits.smallest_normal, limits.max / 2, 1.0, 1 + limits.eps]
    row = torch.tensor([*ends, *(-x for x in ends), -torch.inf], dtype=dtype)
    logits = row.expand(15, -1)
    for temperature in (1.0, 0.7, limits.max / 4):
        rows = [SamplerRow(params(top_k=k, seed=k, temperature=temperature), 0) for k in range(1, 16)]
        assert sample(logits, rows) == Sampler(15).sample(logits, rows)


def test_many_rows_are_processed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    logits = make_logits(11, 100, 4)
    rows = [make_row(100, rng) for _ in logits]
    expected = Sampler(100).sample(logits, rows)
    monkeypatch.setattr("lightwell.model.sampling.device_sampler._CHUNK_ELEMENTS", 400)
    assert sample(logits, rows) == expected


# --- edits that are kept -----------------------------------------------------------------------------------------


@given(vocab_size=st.sampled_from([2, 64, 4096]), dtype=dtypes, seed=seeds)
@settings(max_examples=20)
def test_edits_follow_a_growing_history(vocab_size: int, dtype: torch.dtype, seed: int) -> None:
    rng = random.Random(seed)
    rows = [make_row(vocab_size, rng) for _ in range(3)]
    kept = [RowEdits(row.params, vocab_size, row.num_prompt_tokens) for row in rows]
    histories = [list(row.token_ids) for row in rows]
    num_read = [row.num_prompt_tokens for row in rows]
    for step in range(12):
        logits = make_logits(4, vocab_size, seed + step, dtype)
        expected = logits.to(score_type(logits), copy=True)
        plain_edits, edits = LogitEdits(vocab_size), PackedEdits(vocab_size)
        places, last_tokens = rng.sample(range(4), 3), [rng.randrange(vocab_size) for _ in range(5)]
        for i, (r, row, edit, history) in enumerate(zip(places, rows, kept, histories, strict=True)):
            plain_edits.add(r, row.params, history, row.num_prompt_tokens)
            if len(history) > num_read[i] and rng.random() < 0.5:  # only the device has the newest token
                last_tokens[r + 1] = history[-1]
                edits.add(r, edit, [*history[:-1], -1], newest=r + 1)
            else:
                edits.add(r, edit, history)
                num_read[i] = len(history)
        plain_edits.apply(expected)
        rows_needed, *needed = edits.least_capacity(4)
        capacity = EditCapacity(rows_needed, *(places + rng.choice([0, 5]) for places in needed))
        packed = torch.full((capacity.packed_size,), -1, dtype=torch.int64)
        edits.pack(packed.numpy(), capacity)
        assert torch.equal(edited(logits, packed, capacity, expected.dtype, torch.tensor(last_tokens)), expected)
        for history in histories:
            history += [rng.randrange(vocab_size) for _ in range(rng.choice([0, 1, 1, 9]))]


@pytest.mark.parametrize(
    "capacity", [EditCapacity(1, 2, 1, 1), EditCapacity(2, 1, 1, 1), EditCapacity(2, 2, 0, 1), EditCapacity(2, 2, 1, 0)]
)
def test_edits_that_do_not_fit_are_refused(capacity: EditCapacity) -> None:
    edits = PackedEdits(10)
    edits.add(1, RowEdits(params(logit_bias={1: 1.0, 2: 1.0}, repetition_penalty=2.0), 10, 1), [3, -1], newest=0)
    with pytest.raises(ValueError, match=r"rows=2, biases=2, tokens=1, unknown=1"):
        edits.pack(np.zeros(capacity.packed_size, np.int64), capacity)


# --- operations allowed in a graph -------------------------------------------------------------------------------

WAITING = {
    "_local_scalar_dense", "item", "nonzero", "masked_select", "bincount", "unique", "_unique2", "unique_consecutive",
    "unique_dim", "repeat_interleave", "equal", "is_nonzero", "tensor_split", "lift_fresh", "_to_cpu",
}  # fmt: skip
"""Operations that read values on the host, that make a tensor from numbers of the host, or with result sizes that
depend on values.
"""


class NothingWaits(TorchDispatchMode):
    """Refuses operations for which a host waits, and copies between devices."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        assert name not in WAITING, name
        assert "device" not in (kwargs or {}) or kwargs["device"] == self.device, f"{name} to {kwargs['device']}"
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        assert all(each.dtype == torch.int64 for each in indices), f"{name} by a mask"
        return func(*args, **(kwargs or {}))


def whole_step(kind: Kind, k: int | None, dtype: torch.dtype, device: torch.device, vocab_size: int) -> torch.Tensor:
    """Run one step with edits, on tensors of this device with arbitrary values."""
    capacity = EditCapacity(3, 4, 5)
    logits = torch.zeros(3, vocab_size, dtype=dtype, device=device)
    packed = torch.zeros(packed_size(3), dtype=torch.int64, device=device)
    cells = torch.zeros(capacity.packed_size, dtype=torch.int64, device=device)
    with NothingWaits(device):
        scores = edited(logits, cells, capacity, score_type(logits))
        return DeviceSampler(vocab_size).sample(kind, logits, packed, edited=scores, logprobs=k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("k", [None, 0, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_makes_a_host_wait(kind: Kind, k: int | None, dtype: torch.dtype) -> None:
    """Check also on the device "meta", which has tensors without values."""
    for vocab_size in (37, 128):
        for name in ("cpu", "meta"):
            result = whole_step(kind, k, dtype, torch.device(name), vocab_size)
            assert result.shape == (3, result_width(k))
            assert result.dtype == torch.int64
            assert result.is_contiguous()


def test_the_check_above_sees_a_read_and_a_mask() -> None:
    with NothingWaits(torch.device("cpu")):
        x = torch.zeros(3)
        with pytest.raises(AssertionError, match="_local_scalar_dense"):
            x.sum().item()
        with pytest.raises(AssertionError, match="mask"):
            x[x > 0]
        with pytest.raises(AssertionError, match="lift_fresh"):
            torch.tensor([1.0])
        with pytest.raises(AssertionError, match="to meta"):
            x.to("meta")


# --- copies between host and device ------------------------------------------------------------------------------


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 10\).*\(2, 9\)"):
        DeviceSampler(9).sample(Kind.GREEDY, torch.zeros(2, 10), torch.zeros(packed_size(2), dtype=torch.int64))
    with pytest.raises(ValueError, match="2 rows do not fit 1"):
        pack([SamplerRow(params(), 0)] * 2, np.zeros(packed_size(1), np.int64))
    with pytest.raises(ValueError, match="vocab_size is 0"):
        DeviceSampler(0)
