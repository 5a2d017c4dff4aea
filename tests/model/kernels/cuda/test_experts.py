"""The card's experts: against the sums written out in float64, and the same bits in every batch."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.kernels.cuda.experts import ExpertWeights, Pairs
from tests.model.kernels.cuda.card import assert_close, each_dtype, fresh_draw, normal
from tests.support.interpreted_product import multiply_in_one_order


@each_dtype
def test_the_sums_of_the_chosen_experts_are_the_formula(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = fresh_draw()
    multiply_in_one_order(monkeypatch)
    num_experts, num_rows, width, ff = rng.randint(2, 5), rng.randint(1, 40), 20, 36
    num_chosen, has_bias = rng.randint(1, num_experts), rng.random() < 0.5
    x, logits = normal(num_rows, width, dtype=dtype), normal(num_rows, num_experts, dtype=dtype)
    weights = [normal(ff, width, dtype=dtype) for _ in range(num_experts)]
    biases = [normal(ff, dtype=dtype) if has_bias else None for _ in range(num_experts)]
    scales = rng.choice([None, 1 + normal(num_experts, dtype=torch.float32, scale=0.2)])
    normalized, shared = rng.random() < 0.5, rng.choice([None, normal(num_rows, ff, dtype=dtype)])
    gate = None if shared is None else rng.choice([None, normal(num_rows, 1, dtype=dtype)])

    def run(rows: slice) -> torch.Tensor:
        pairs = Pairs.choose(logits[rows].contiguous(), num_chosen, normalized=normalized, scales=scales)
        y = ExpertWeights(weights, biases).multiply(x[rows], pairs)
        return pairs.combine(y, *(None if each is None else each[rows].contiguous() for each in (shared, gate)))

    probabilities, order = torch.sort(logits.double().softmax(-1), dim=-1, descending=True, stable=True)
    factors, order = probabilities[:, :num_chosen], order[:, :num_chosen]
    factors = factors / factors.sum(-1, keepdim=True) if normalized else factors
    factors = factors if scales is None else factors * scales.double()[order]
    outputs = torch.stack([x.double() @ each.double().T for each in weights], 1)  # [R, E, N]
    outputs += torch.stack([torch.zeros(ff) if each is None else each.cpu().double() for each in biases]).to(x.device)
    chosen = outputs.gather(1, order[..., None].expand(-1, -1, ff)).to(dtype).double()
    expected = (factors[..., None] * chosen).sum(1)
    if shared is not None:
        expected += shared.double() * (1 if gate is None else gate.double().sigmoid())
    whole = run(slice(None))
    assert_close(whole, expected, 40 if dtype == torch.float32 else 3, scale=300 if dtype == torch.float32 else 3e5)
    row = rng.randrange(num_rows)
    assert torch.equal(run(slice(row, row + 1))[0], whole[row])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, of infinity - NaN
def test_a_row_of_nan_stays_nan() -> None:
    logits = normal(2, 3, dtype=torch.float32)
    logits[0] = torch.nan
    pairs = Pairs.choose(logits, 2, normalized=True)
    y = ExpertWeights([normal(4, 8, dtype=torch.float32) for _ in range(3)], [None] * 3).multiply(
        normal(2, 8, dtype=torch.float32), pairs
    )
    assert pairs.combine(y).isnan().all(1).tolist() == [True, False]
