"""The card's sums and norms: against the layers, and the same bits in every batch."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda.add_norm import MAX_WIDTH, add_norm
from lightwell.model.kernels.program.steps import NormWeights
from lightwell.model.layers.norm import LayerNorm, Norm, RmsNorm
from tests.model.kernels.cuda.card import DEVICE, assert_close, each_dtype, fresh_draw, normal

TORCH = KernelConfig("torch")
KINDS = ("rms", "rms, rounded once", "layer", "layer without bias")


def make(kind: str, width: int, dtype: torch.dtype, eps: float = 1e-5) -> tuple[NormWeights, Norm]:
    """Return a random norm for the card, and the layer that it stands for."""
    weight = 1 + normal(width, dtype=dtype, scale=0.3)
    if kind == "rms":
        return NormWeights(weight, eps), RmsNorm(weight, eps, kernels=TORCH)
    if kind == "rms, rounded once":
        layer = RmsNorm(weight - 1, eps, weight_offset=1.0, kernels=TORCH)
        return NormWeights(layer.weight, eps), layer
    bias = normal(width, dtype=dtype) if kind == "layer" else None
    return NormWeights(weight, eps, bias, is_centred=True), LayerNorm(weight, bias, eps, kernels=TORCH)


def normed(norm: NormWeights, x: torch.Tensor) -> torch.Tensor:
    """Return the norm of the rows, computed one row at a time by the card."""
    stream, result = add_norm(x, [], before=norm)
    assert stream is x
    assert result is not None
    return result


@each_dtype
@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_is_the_layers(kind: str, dtype: torch.dtype) -> None:
    rng = fresh_draw()
    # The mean of a short row may be far larger than its spread, and torch's own LayerNorm loses digits there.
    widths = [100, rng.randint(40, 600), rng.choice([768, 4096, 5120]), rng.choice([1024, MAX_WIDTH])]
    for width in widths + [1, 2, 7] * kind.startswith("rms"):
        ours, layer = make(kind, width, dtype, rng.choice([1e-5, 1e-6, 0.3]))
        x = normal(rng.randint(1, 4), width, dtype=dtype, scale=rng.choice([0.01, 1.0, 30.0]))
        result = normed(ours, x)
        assert result.dtype == dtype
        assert_close(result, layer(x), roundings=2.1 if dtype != torch.float32 else 10, scale=4)


@each_dtype
def test_one_launch_has_the_bits_of_its_steps(dtype: torch.dtype) -> None:
    rng = fresh_draw()
    for _ in range(5):
        num_rows, width = rng.randint(1, 3), rng.choice([48, 100, 768, 2048, rng.randint(1, 3000)])
        x, y = normal(num_rows, width, dtype=dtype), normal(num_rows, width, dtype=dtype)
        after, of_sum, before = (
            None if rng.random() < 0.4 else make(rng.choice(KINDS), width, dtype)[0] for _ in range(3)
        )
        scale, stream_scale = rng.choice([1.0, 0.22]), rng.choice([1.0, 0.07])
        stream, result = add_norm(
            x, [y], scale=scale, stream_scale=stream_scale, after=after, of_sum=of_sum, before=before
        )
        expected = x + (y if after is None else normed(after, y)) * scale
        expected = (expected if of_sum is None else normed(of_sum, expected)) * stream_scale
        assert torch.equal(stream, expected)
        assert stream.dtype == dtype
        assert (result is None) == (before is None)
        if before is not None and result is not None:
            assert torch.equal(result, normed(before, expected))


@each_dtype
def test_parallel_blocks_add_both_sublayers_before_the_stream(dtype: torch.dtype) -> None:
    rng = fresh_draw()
    num_rows, width = 3, rng.choice([768, 1000])
    x, mlp, attention = (normal(num_rows, width, dtype=dtype) for _ in range(3))
    before, _ = make(rng.choice(KINDS), width, dtype)
    stream, result = add_norm(x, [mlp, attention], before=before)
    assert torch.equal(stream, mlp + attention + x)
    assert result is not None
    assert torch.equal(result, normed(before, stream))
    assert torch.equal(add_norm(x, (mlp, attention))[0], stream)


@each_dtype
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("widths", [(100,), pytest.param((768, 2048), marks=pytest.mark.nightly)])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_as_a_slice(
    widths: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    fresh_draw()
    for width in widths:
        x, y = normal(5, width, dtype=dtype, scale=5), normal(5, width, dtype=dtype)
        after, before = make(kind, width, dtype)[0], make(kind, width, dtype)[0]
        stream, result = add_norm(x, [y], after=after, before=before)
        assert result is not None
        wide_x, wide_y = normal(5, width + 32, dtype=dtype), normal(5, width + 7, dtype=dtype)
        wide_x[:, 16 : width + 16], wide_y[:, 3 : width + 3] = x, y
        others = [(x[i : i + 1], y[i : i + 1], slice(i, i + 1)) for i in range(5)]
        others += [(x[1:4], y[1:4], slice(1, 4)), (x[::2], y[::2], slice(0, 5, 2))]
        others += [(wide_x[:, 16 : width + 16], wide_y[:, 3 : width + 3], slice(0, 5))]
        for some_x, some_y, rows in others:
            some_stream, some_result = add_norm(some_x, [some_y], after=after, before=before)
            assert torch.equal(some_stream, stream[rows])
            assert some_result is not None
            assert torch.equal(some_result, result[rows])


def test_rows_without_spread_are_divided_by_eps_alone() -> None:
    x = torch.full((2, 40), 3.0, device=DEVICE)
    layer, rms = make("layer", 40, torch.float32)[0], make("rms", 40, torch.float32)[0]
    assert layer.bias is not None
    assert_close(normed(layer, x)[0], layer.bias, roundings=10, scale=3 / layer.eps**0.5)
    assert torch.equal(normed(rms, torch.zeros_like(x)), torch.zeros_like(x))


def test_no_rows_and_no_norms_cost_no_launch() -> None:
    x, norm = normal(0, 16, dtype=torch.float32), make("rms", 16, torch.float32)[0]
    stream, result = add_norm(x, [x], before=norm)
    assert result is not None
    assert stream.shape == result.shape == (0, 16)
    assert add_norm(x, []) == (x, None)


def test_what_does_not_fit_is_refused() -> None:
    x, norm = normal(2, 16, dtype=torch.float32), make("rms", 16, torch.float32)[0]
    for message, call in (
        ("added is", lambda: add_norm(x, [x[:1]])),
        ("added is", lambda: add_norm(x, [x.half()])),
        ("x is float64", lambda: add_norm(x.double(), [])),
        ("rows of 16385", lambda: add_norm(normal(1, MAX_WIDTH + 1, dtype=torch.float32), [])),
        ("3 tensors", lambda: add_norm(x, [x, x, x])),
        ("with the norms", lambda: add_norm(x, [x, x], after=norm)),
        (r"before\.weight is", lambda: add_norm(x, [], before=make("rms", 17, torch.float32)[0])),
        (r"before\.weight is bfloat16", lambda: add_norm(x, [], before=make("rms", 16, torch.bfloat16)[0])),
    ):
        with pytest.raises(ValueError, match=message):
            call()
