"""The kernels draw the reference's tokens, bit for bit."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
from lightwell.model.kernels.cuda.row_max import row_max
from lightwell.model.sampling.device_rows import pack, packed_size
from lightwell.model.sampling.draw_kernels import BLOCK, drawn, scaled
from lightwell.model.sampling.sampler import Sampler, SamplerRow
from tests.model.kernels.cuda.card import DEVICE, each_dtype, fresh_draw
from tests.model.sampling.rows import params


@each_dtype
@pytest.mark.parametrize("size", [1, 300, BLOCK + 5])
def test_tokens_equal_the_reference(size: int, dtype: torch.dtype) -> None:
    draw = fresh_draw()
    numbers = draw.choice([0.1, 3.0, 50.0, 1e30]) * torch.randn(12, size)
    numbers[::3] = numbers[::3].round()  # with many equals
    numbers[1, torch.rand(size) < 0.3] = -math.inf
    numbers[2] = torch.tensor(draw.choices([0.0, -0.0], k=size))
    numbers[3] = -math.inf  # no distribution
    logits = numbers.to(DEVICE, dtype)
    rows = [
        SamplerRow(
            params(
                temperature=draw.choice([0.0, 0.01, 0.7, 1.0, 2.5, 100.0]),
                top_k=draw.choice([0, 1, 2, draw.randrange(1, size + 3)]),
                top_p=draw.choice([1.0, 0.9, draw.uniform(0.01, 1), 1e-300]),
                min_p=draw.choice([0.0, 0.0, draw.random(), 1.0]),
                seed=draw.getrandbits(63),
            ),
            draw.randrange(1000),
        )
        for _ in numbers
    ]
    packed = np.zeros(packed_size(len(rows)), np.int64)
    pack(rows, packed)
    lines, best = torch.from_numpy(packed).to(DEVICE).view(5, -1), row_max(logits)
    scores = scaled(logits, lines)
    assert (scores[:, size:] == -math.inf).all()
    if DEVICE.type == "cpu":  # its softmax of longer rows may round otherwise
        scores = scores[:, :size].contiguous()
    probabilities = torch.softmax(scores, -1)
    found = drawn(probabilities, lines, logits, best, best).cpu()
    expected = [token.token_id for token in Sampler(size, DEVICE).sample(logits, rows)]
    is_defined = ~probabilities.isnan().any(-1)
    is_defined[3] = True
    for r in is_defined.nonzero().flatten().tolist():
        assert found[r, 0] == expected[r], rows[r].params
        assert found[r, 1:].view(torch.float64).item() == logits[r, expected[r]].item()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="x is float64; float32 or bfloat16 or float16 is accepted"):
        scaled(torch.zeros(3, 3, dtype=torch.float64), torch.zeros(5, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"lines is \[4, 3\]; \[5, 3\] is accepted"):
        scaled(torch.zeros(3, 3), torch.zeros(4, 3, dtype=torch.int64))
