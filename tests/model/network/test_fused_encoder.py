"""Layers of an encoder in one call each: bits that do not depend on captures or on the other texts of the batch.

The numbers are checked in tests/model/checkpoint/test_every_family.py.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightwell.model.batch import Batch
from lightwell.model.hooks.hooks import Hooks, Read
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.layers.linear import Linear
from lightwell.model.network import fused_encoder
from lightwell.model.network.fused_encoder import fits_encode_step
from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.invariance import num_threads
from tests.model.watching import BLOCK, CPU, load, token_ids


@pytest.fixture(params=["float32", "bfloat16", "float32 int8", "bfloat16 int8"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """An encoder with a check after every 40 rows of each thread."""
    monkeypatch.setattr(fused_encoder, "_ROWS_BETWEEN_CHECKS", 40)
    monkeypatch.setattr(fused_encoder, "_WORK_BETWEEN_CHECKS", 0)
    dtype, *in_int8 = request.param.split()
    quantize: Quantization = "int8" if in_int8 else "none"
    kernels = KernelConfig(activations="int8" if in_int8 else "dtype")
    loaded = load(tiny.make_variant("bert", tmp_path), getattr(torch, dtype), kernels, quantize)
    assert loaded.encoder is not None
    assert loaded.encoder.encode_step is not None
    return loaded


def _encode(model: Transformer, texts: list[list[int]], hooks: Hooks | None = None) -> torch.Tensor:
    return model.encode(Batch.unchunked(texts, BLOCK, CPU, [model.config.num_layers] * len(texts)), hooks)


def test_a_text_has_the_same_bits_alone_and_among_others_looked_at_or_not(model: Transformer) -> None:
    texts = [token_ids(length) for length in (60, 1, 16, 17, 31, 33, 32, 50, 2, 40)]
    seen: list[torch.Tensor] = []
    rows, last = list(range(sum(map(len, texts)))), model.config.num_layers - 1
    hooks = Hooks([Read("hook_resid_post", layer, rows, None, lambda x: seen.append(x.clone())) for layer in (0, last)])
    looked = _encode(model, texts, hooks)
    for threads in (1, 2):
        with num_threads(threads):
            together = _encode(model, texts)
            assert torch.equal(together, looked)
            assert torch.equal(seen[-1], looked)
            alone = torch.cat([_encode(model, [text]) for text in texts])
            assert torch.equal(alone, together)


def test_a_pass_over_many_texts_can_be_left_before_its_end(model: Transformer) -> None:
    calls = iter(range(2))

    def check() -> None:
        next(calls)

    batch = Batch.unchunked([token_ids(30)] * 10, BLOCK, CPU, [model.config.num_layers] * 10, check)
    with num_threads(1), pytest.raises(StopIteration):
        model.encode(batch)


def test_gelu_is_as_precise_as_torch_and_exact_far_out() -> None:
    pre = torch.cat([torch.linspace(-7, 7, 6400), torch.tensor([-1e30, -50.0, -0.0, 0.0, 50.0, 1e30])])
    eye = Linear(torch.eye(32), activation="gelu")
    x = torch.zeros(len(pre), 32)
    x[:, 5] = pre
    found, exact = eye(x)[:, 5], torch.nn.functional.gelu(pre.double())
    assert (found - exact)[:6400].abs().max() <= 1.2e-6
    assert torch.equal(found[6400:], exact[6400:].float())


def test_only_plain_encoders_are_one_call(model: Transformer) -> None:
    config = model.config
    assert fits_encode_step(config)
    assert not fits_encode_step(replace(config, gated_mlp=True))
    assert model.encoder is not None
    assert (model.encoder.encode_step is None, model.encoder.decode_step is None) == (False, True)
