"""The largest number of each row is torch's, the first among equals, and NaN before all."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
from lightwell.model.kernels.cuda.row_max import BLOCK, row_max
from tests.model.kernels.cuda.card import DEVICE, each_dtype, fresh_draw


@each_dtype
@pytest.mark.parametrize("size", [1, 300, BLOCK, 2 * BLOCK + 5])
def test_the_largest_number_of_each_row_is_found(size: int, dtype: torch.dtype) -> None:
    draw = fresh_draw()
    numbers = (4 * torch.randn(7, size)).round() / 4  # with many equals
    numbers[1] = torch.tensor(draw.choices([0.0, -0.0, -1.0], k=size))
    numbers[2] = -torch.inf
    numbers[3, draw.randrange(size)] = torch.inf
    numbers[4, draw.randrange(size)] = torch.nan
    numbers[5] -= 1000.0
    numbers[6, -1] = 1000.0
    x = numbers.to(dtype)
    wide = torch.cat([x, x.new_full((7, 3), torch.inf)], 1).to(DEVICE)  # rows are a slice of longer ones
    found = row_max(wide[:, :size]).cpu()
    expected = x.max(-1)
    assert found[:, 0].tolist() == expected.indices.tolist()
    values = found[:, 1].view(torch.float64).to(dtype)
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x is \[3\]; \[any, any\] is accepted"):
        row_max(torch.zeros(3))
    with pytest.raises(ValueError, match="x is float64; float32 or bfloat16 or float16 is accepted"):
        row_max(torch.zeros(3, 3, dtype=torch.float64))
