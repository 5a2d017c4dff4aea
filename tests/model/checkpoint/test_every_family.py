"""The fast network against the slow reference, point by point, for every kind of checkpoint."""

from functools import cache
from pathlib import Path

import pytest
import torch

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.hooks.point_names import full_name, stacks
from lightwell.model.loading.loader import load_model
from lightwell.model.network.transformer import Transformer
from tests import reference, tiny
from tests.network import CPU, FLOAT32_BOUND, WHOLE, logits_alone, look_at_everything, worst
from tests.support import families

pytestmark = pytest.mark.every_family


def _drawn(count: int) -> list[int]:
    """Return ordinary tokens, different ones in every run."""
    return torch.randint(5, tiny.VOCAB_SIZE, (count,)).tolist()


TOKENS, ENCODER_TOKENS = _drawn(45), _drawn(43)


@pytest.fixture(scope="module", params=list(tiny.VARIANTS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param))


@cache
def _model(folder: Path, dtype: torch.dtype) -> Transformer:
    return load_model(folder, read_config(folder), dtype, CPU)


@cache
def _looked(folder: Path, dtype: torch.dtype, chunk: int = WHOLE) -> dict[str, torch.Tensor]:
    return look_at_everything(_model(folder, dtype), TOKENS, _encoder_tokens(folder), chunk=chunk)


@cache
def _expected(folder: Path) -> dict[str, torch.Tensor]:
    config = read_config(folder)
    weights = load_weights(folder, config, torch.float64)
    return reference.run(config, weights, TOKENS, _encoder_tokens(folder)).points


def _encoder_tokens(folder: Path) -> list[int]:
    return ENCODER_TOKENS if read_config(folder).encoder else []


@pytest.mark.parametrize(
    ("folder", "chunk"),
    [
        pytest.param(name, chunk, marks=pytest.mark.nightly if chunk == 1 else ())
        for name in tiny.VARIANTS
        for chunk in ((WHOLE,) if name in tiny.ENCODERS else (WHOLE, 7, 1))
    ],
    indirect=["folder"],
)
def test_every_point_equals_the_reference_in_float64(folder: Path, chunk: int) -> None:
    """`make test` leaves steps of one token to float32, where they have the same bits as the whole."""
    assert worst(_looked(folder, torch.float64, chunk), _expected(folder)) <= 1e-10


def test_every_point_equals_the_reference_in_float32(folder: Path) -> None:
    assert worst(_looked(folder, torch.float32), _expected(folder), relative=True) <= FLOAT32_BOUND


@pytest.mark.parametrize(
    ("folder", "chunk"),
    [
        pytest.param(name, chunk, marks=() if chunk == 7 or families.is_chosen(name) else pytest.mark.nightly)
        for name in tiny.VARIANTS
        for chunk in (() if name in tiny.ENCODERS else (7, 1))  # an encoder reads its input whole
    ],
    indirect=["folder"],
)
def test_chunks_do_not_change_a_bit_in_float32(folder: Path, chunk: int) -> None:
    whole, points = _looked(folder, torch.float32), _looked(folder, torch.float32, chunk)
    assert set(whole) == set(points)
    assert [name for name in whole if not torch.equal(whole[name], points[name])] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_looking_does_not_change_a_bit_of_the_answer(folder: Path, dtype: torch.dtype) -> None:
    model, points = _model(folder, dtype), _looked(folder, dtype)
    seen = logits_alone(model, TOKENS, _encoder_tokens(folder))
    config = model.config
    if config.has_head:
        assert torch.equal(seen, points[full_name(config, stacks(config)[-1], "logits", None)])
    else:
        name = "ln_final.hook_out" if config.final_norm else f"blocks.{config.num_layers - 1}.hook_resid_post"
        assert torch.equal(seen, points[name])


def test_the_lens_on_the_last_block_gives_the_logits(folder: Path) -> None:
    for dtype in (torch.float32, torch.float64):
        model, points = _model(folder, dtype), _looked(folder, dtype)
        if not model.config.has_head or model.config.altup is not None:
            with pytest.raises(ValueError, match=r"no language-model head|several streams"):
                model.lens(torch.zeros(1, model.config.hidden_size, dtype=dtype))
            return
        stack = stacks(model.config)[-1]
        last = points[full_name(model.config, stack, "hook_resid_post", model.config.num_layers - 1)]
        assert torch.equal(model.lens(last), points[full_name(model.config, stack, "logits", None)])
