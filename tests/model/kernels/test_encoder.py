"""An encoder's layers in one call: the same bits as the single steps' kernels one after the other, for a text in any
batch, in any number of threads; attention within texts against float64.
"""

import dataclasses
import random

import pytest
import torch
from torch import Tensor

from lightwell.model.kernels import library, rows
from lightwell.model.kernels.encoder import Encoder, EncoderLayer, attend_texts
from lightwell.model.kernels.forms import lay_weight
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.kernels.products import DOT, WIDEN, Arithmetic, LaidWeight
from tests.model.kernels.everywhere import assert_same_bits, draw_numbers, everywhere
from tests.model.kernels.levels import at_level, each_level

_KINDS: dict[str, tuple[torch.dtype, Arithmetic]] = {
    "float32": (torch.float32, WIDEN),
    "bfloat16": (torch.bfloat16, WIDEN),
    "dot": (torch.bfloat16, DOT),
    "float32 int8": (torch.float32, WIDEN),
    "dot int8": (torch.bfloat16, DOT),
}
_SHAPES = ((3, 32, 160), (2, 64, 96), (1, 128, 33), (1, 20, 7), (5, 7, 65))
"""Heads, head dimension, width of the MLP."""
_EPS = 1e-12

pytestmark = pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")
every_kind = pytest.mark.parametrize("kind", _KINDS)
_LENGTHS = [1, 2, 15, 16, 17, 32, 33, 65, 150, *[30] * 3]


def _layer(
    heads: int, dim: int, ff: int, dtype: torch.dtype, arithmetic: Arithmetic = WIDEN, *, in_bytes: bool = False
) -> EncoderLayer:
    d = heads * dim

    def weight(outputs: int, inputs: int) -> LaidWeight:
        numbers = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        quantize: Quantization = "int8" if in_bytes else "none"
        return lay_weight(numbers, quantize, arithmetic=arithmetic, keep_dtype=True, int8_activations=True)

    def vector(count: int, mean: float = 0.0) -> Tensor:
        return (mean + torch.randn(count) / 3).to(dtype)

    products = weight(3 * d, d), vector(3 * d), weight(d, d), vector(d)
    mlp = weight(ff, d), vector(ff), weight(d, ff), vector(d)
    return EncoderLayer(*products, vector(d, 1), vector(d), *mlp, vector(d, 1), vector(d))


def _encoder(layers: list[EncoderLayer], heads: int, arithmetic: Arithmetic) -> Encoder:
    scale = (layers[0].out.num_outputs // heads) ** -0.5
    return Encoder(layers, num_heads=heads, scale=scale, eps=_EPS, arithmetic=arithmetic)


def _first_rows(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def _step_by_step(
    layers: list[EncoderLayer], x: Tensor, first_rows: Tensor, heads: int, arithmetic: Arithmetic
) -> Tensor:
    for layer in layers:
        qkv = layer.qkv.multiply(x, layer.qkv_bias).view(len(x), 3, heads, -1)
        mixed = attend_texts(qkv, first_rows, arithmetic=arithmetic).view(x.shape)
        added = layer.out.multiply(mixed, layer.out_bias)
        x = rows.layer_norm(x + added, layer.norm, layer.norm_bias, _EPS)
        added = layer.down.multiply(layer.up.multiply(x, layer.up_bias, "gelu"), layer.down_bias)
        x = rows.layer_norm(x + added, layer.last_norm, layer.last_norm_bias, _EPS)
    return x


def _encoded(encoder: Encoder, x: Tensor, first_rows: Tensor, *, first_alone: bool = False) -> Tensor:
    stream = x.clone()
    encoder(stream, first_rows, first_alone=first_alone)
    return stream


def _plainly(qkv: Tensor, first_rows: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return attention in float64, and the attention for the values' absolute values."""
    mixed, size = [], []
    for first, end in zip(first_rows.tolist(), first_rows[1:].tolist(), strict=False):
        q, k, v = qkv[first:end].double().unbind(1)
        pattern = (torch.einsum("qhd,khd->hqk", q, k) * scale).softmax(-1)
        mixed.append(torch.einsum("hqk,khd->qhd", pattern, v))
        size.append(torch.einsum("hqk,khd->qhd", pattern, v.abs()))
    return torch.cat(mixed), torch.cat(size)


@every_kind
@each_level
def test_a_call_has_the_bits_of_its_steps_one_after_the_other(level: str, kind: str) -> None:
    dtype, arithmetic = _KINDS[kind]
    lengths = [150, 1, 16, 17, 33, 65, 128, 2, random.randrange(1, 131)]
    first_rows = _first_rows(lengths)
    for heads, dim, ff in _SHAPES:
        layers = [_layer(heads, dim, ff, dtype, arithmetic, in_bytes="int8" in kind) for _ in range(2)]
        encoder, x = _encoder(layers, heads, arithmetic), draw_numbers(int(first_rows[-1]), heads * dim, dtype=dtype)
        with at_level(level):
            wanted = _step_by_step(layers, x, first_rows, heads, arithmetic)
            assert bool(wanted.isfinite().all())
            for threads in (1, 3):
                library.set_num_threads(threads)
                assert_same_bits((_encoded(encoder, x, first_rows),), (wanted,))
                first = _encoded(encoder, x, first_rows, first_alone=True)[first_rows[:-1]]
                assert_same_bits((first,), (wanted[first_rows[:-1]],))


@every_kind
@each_level
def test_a_text_has_the_same_bits_alone_and_among_others_in_any_number_of_threads(level: str, kind: str) -> None:
    dtype, arithmetic = _KINDS[kind]
    lengths = random.sample(_LENGTHS, len(_LENGTHS))
    first_rows = _first_rows(lengths)
    encoder = _encoder([_layer(2, 32, 96, dtype, in_bytes="int8" in kind) for _ in range(3)], 2, arithmetic)
    x = draw_numbers(int(first_rows[-1]), 64, dtype=dtype)
    with at_level(level):
        together = _encoded(encoder, x, first_rows)
        for threads in (1, 3, 8):
            library.set_num_threads(threads)
            assert_same_bits((_encoded(encoder, x, first_rows),), (together,))
            firsts = _encoded(encoder, x, first_rows, first_alone=True)
            alone, firsts_alone = x.clone(), x.clone()
            for text in range(len(lengths)):
                encoder(alone, first_rows[text : text + 2])
                encoder(firsts_alone, first_rows[text : text + 2], first_alone=True)
            assert_same_bits((alone,), (together,))
            for found in (firsts, firsts_alone):
                assert_same_bits((found[first_rows[:-1]],), (together[first_rows[:-1]],))


@pytest.mark.parametrize("in_bytes", [False, True], ids=["dense", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_are_the_same_at_every_level(dtype: torch.dtype, in_bytes: bool) -> None:
    for lengths in ([130], [7, 45], [30] * 10):
        first_rows = _first_rows(lengths)
        encoder = _encoder([_layer(3, 32, 160, dtype, in_bytes=in_bytes)], 3, WIDEN)
        x = draw_numbers(int(first_rows[-1]), 96, dtype=dtype)
        qkv = draw_numbers(int(first_rows[-1]), 3, 3, 20, dtype=dtype)
        everywhere(
            lambda x=x, qkv=qkv, encoder=encoder, first_rows=first_rows: (
                _encoded(encoder, x, first_rows),
                attend_texts(qkv, first_rows),
            )
        )


@every_kind
@each_level
def test_attention_is_that_of_float64_within_what_its_numbers_may_lose(level: str, kind: str) -> None:
    dtype, arithmetic = _KINDS[kind]
    lengths = [*random.sample(range(1, 131), 3), 1, 64, 300]
    first_rows = _first_rows(lengths)
    for heads, dim in ((3, 32), (1, 64), (1, 80), (2, 7), (1, 1)):
        qkv = draw_numbers(int(first_rows[-1]), 3, heads, dim, dtype=dtype)
        scale = dim**-0.5 / 3
        with at_level(level):
            mixed = attend_texts(qkv, first_rows, scale, arithmetic).double()
        wanted, size = _plainly(qkv, first_rows, scale)
        rounding = 2**-8 * (wanted.abs() + (size if arithmetic == DOT else 0)) if dtype == torch.bfloat16 else 0
        assert bool(((mixed - wanted).abs() <= 3e-5 * size + rounding).all())


@every_kind
def test_scores_however_large_give_patterns_and_one_bad_text_leaves_the_others(kind: str) -> None:
    dtype, arithmetic = _KINDS[kind]
    first_rows = _first_rows([20, 33, 5])
    qkv = draw_numbers(58, 3, 2, 32, dtype=dtype)
    whole = attend_texts(qkv, first_rows, arithmetic=arithmetic)
    qkv[:20] = torch.nan
    qkv[53:, :2] *= 1e4
    mixed = attend_texts(qkv, first_rows, arithmetic=arithmetic)
    assert bool(mixed[:20].isnan().all())
    assert_same_bits((mixed[20:53],), (whole[20:53],))
    largest = torch.einsum("qhd,khd->hqk", *qkv[53:, :2].double().unbind(1)).argmax(-1)  # far ahead: all of the pattern
    values = torch.stack([qkv[53:, 2, head][largest[head]] for head in range(2)], 1)
    assert_same_bits((mixed[53:],), (values,))


def test_rows_outside_the_texts_stay_as_they_are() -> None:
    encoder, x = _encoder([_layer(1, 32, 64, torch.float32)], 1, WIDEN), draw_numbers(60, 32)
    y = _encoded(encoder, x, torch.tensor([10, 25, 50]))
    assert_same_bits((y[:10], y[50:]), (x[:10], x[50:]))
    assert not bool((y[10:50] == x[10:50]).all(1).any())
    assert_same_bits((_encoded(encoder, x, torch.tensor([60])),), (x,))


def test_wrong_arguments_are_refused_by_name() -> None:
    layer = _layer(2, 16, 48, torch.float32)
    encoder, x = _encoder([layer], 2, WIDEN), torch.randn(9, 32)
    for wrong in (torch.randn(9, 31), torch.randn(32), x.double(), torch.randn(32, 9).T):
        with pytest.raises(ValueError, match=r"^stream "):
            encoder(wrong, torch.tensor([0, 9]))
    for bounds in ([], [0, 10], [-1, 9], [0, 4, 4], [5, 3]):
        with pytest.raises(ValueError, match=r"^first_rows "):
            encoder(x, torch.tensor(bounds, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^first_rows "):
        encoder(x, torch.tensor([0, 9], dtype=torch.int32))
    for wrong in (
        torch.randn(9, 2, 2, 16),
        torch.randn(9, 3, 32),
        torch.randn(9, 3, 2, 16).half(),
        torch.randn(9, 3, 2, 0),
    ):
        with pytest.raises(ValueError, match=r"^qkv "):
            attend_texts(wrong, torch.tensor([0, 9]))
    in_bytes = _layer(2, 16, 48, torch.float32, in_bytes=True)
    for change in (
        {"qkv": layer.out},
        {"qkv": in_bytes.qkv},
        {"down": layer.up},
        {"up_bias": torch.randn(47)},
        {"norm": torch.randn(33)},
    ):
        with pytest.raises(ValueError, match=rf"^{next(iter(change))} "):
            _encoder([dataclasses.replace(layer, **change)], 2, WIDEN)
    with pytest.raises(ValueError, match=r"^num_heads is 3"):
        Encoder([layer], num_heads=3, scale=1.0, eps=_EPS)
    with pytest.raises(ValueError, match=r"^layers "):
        Encoder([], num_heads=2, scale=1.0, eps=_EPS)
    with pytest.raises(ValueError, match=r"^arithmetic is 2"):
        Encoder([layer], num_heads=2, scale=1.0, eps=_EPS, arithmetic=2)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [[300], [40] * 30], ids=["one text", "many texts"])
def test_a_call_counts_every_step_of_every_layer_as_progress(lengths: list[int], threads: int) -> None:
    encoder = _encoder([_layer(3, 32, 160, torch.float32) for _ in range(3)], 3, WIDEN)
    library.set_num_threads(threads)
    done = library.progress()
    encoder(torch.randn(sum(lengths), 96), _first_rows(lengths))
    assert library.progress() - done >= 3 * 7
