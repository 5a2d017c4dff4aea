"""Layers of an encoder in one call each: the numbers of the slow reference, and bits that do not depend on captures or
on the other texts of the batch.
"""

import secrets

import pytest
import torch

from model.batch import Batch
from model.config import ModelConfig
from model.hooks.hooks import Hooks, Read
from model.layers.linear import Linear
from model.loading.loader import build_model
from model.network.fused_encoder import why_not_whole
from model.network.transformer import Transformer
from tests import reference
from tests.invariance import num_threads
from tests.network import CPU, look_at_everything, worst

DTYPES = (torch.float32, torch.bfloat16)
VOCAB_SIZE = 50


def _config(heads: int = 3, head_dim: int = 32, ff: int = 160) -> ModelConfig:
    """Return a config with BERT's options."""
    return ModelConfig(
        architecture="BertModel",
        family="bert",
        kind="encoder",
        vocab_size=VOCAB_SIZE,
        hidden_size=heads * head_dim,
        num_layers=3,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=ff,
        max_model_len=300,
        norm="layernorm",
        norm_eps=1e-12,
        norm_placement="post",
        final_norm=False,
        embedding_norm=True,
        activation="gelu",
        gated_mlp=False,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        rope=None,
        learned_positions=True,
        num_token_types=2,
        tie_word_embeddings=True,
        has_head=False,
        attention_scale=head_dim**-0.5,
        causal=False,
    )


def _weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Draw weights under our names, float64, so large that no part of the network is lost in the others."""
    d, ff = config.hidden_size, config.intermediate_size
    tables = {"embed": VOCAB_SIZE, "pos_embed": config.max_model_len, "token_type_embed": 2}
    weights = {f"{name}.weight": torch.randn(rows, d).double() for name, rows in tables.items()}

    def norm(name: str) -> None:
        weights.update({f"{name}.weight": 1 + torch.randn(d).double() / 3, f"{name}.bias": torch.randn(d).double() / 3})

    norm("embed_norm")
    for layer in range(config.num_layers):
        for name, outputs, inputs in (("qkv", 3 * d, d), ("attn_out", d, d), ("up", ff, d), ("down", d, ff)):
            weights[f"layers.{layer}.{name}.weight"] = torch.randn(outputs, inputs).double() / inputs**0.5
            weights[f"layers.{layer}.{name}.bias"] = torch.randn(outputs).double() / 3
        norm(f"layers.{layer}.attn_norm")
        norm(f"layers.{layer}.mlp_norm")
    return weights


def _texts(*lengths: int) -> list[list[int]]:
    return [torch.randint(VOCAB_SIZE, (length,)).tolist() for length in lengths]


def _model(config: ModelConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype) -> Transformer:
    model = build_model(config, {name: w.to(dtype) for name, w in weights.items()}, context=config.max_model_len)
    assert model.encoder is not None
    assert model.encoder.encode_step is not None
    return model


def _encode(model: Transformer, texts: list[list[int]], hooks: Hooks | None = None) -> torch.Tensor:
    return model.encode(Batch.unchunked(texts, 16, CPU, [model.config.num_layers] * len(texts)), hooks)


@pytest.mark.parametrize(("heads", "head_dim", "ff"), [(3, 32, 160), (2, 64, 96), (1, 128, 32), (5, 8, 33)])
def test_a_network_equals_the_reference_in_float32(heads: int, head_dim: int, ff: int) -> None:
    torch.manual_seed(seed := secrets.randbits(32))
    config = _config(heads, head_dim, ff)
    weights, (tokens,) = _weights(config), _texts(77)
    model, expected = _model(config, weights, torch.float32), reference.run(config, weights, tokens, []).points
    assert worst(look_at_everything(model, tokens), expected, "hook_pattern") <= 1e-5, seed
    last = expected[f"blocks.{config.num_layers - 1}.hook_resid_post"]
    torch.testing.assert_close(_encode(model, [tokens]).double(), last, rtol=0, atol=1e-4, msg=f"seed {seed}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_text_has_the_same_bits_alone_and_among_others_looked_at_or_not(dtype: torch.dtype) -> None:
    config = _config()
    model, texts = _model(config, _weights(config), dtype), _texts(300, 1, 16, 17, 31, 33, 32, 66, 2, 129, 40)
    seen: list[torch.Tensor] = []
    rows = list(range(sum(map(len, texts))))
    hooks = Hooks([Read("hook_resid_post", layer, rows, None, lambda x: seen.append(x.clone())) for layer in (0, 2)])
    looked = _encode(model, texts, hooks)
    for threads in (1, 2):
        with num_threads(threads):
            together = _encode(model, texts)
            assert torch.equal(together, looked)
            assert torch.equal(seen[-1], looked)
            alone = torch.cat([_encode(model, [text]) for text in texts])
            assert torch.equal(alone, together)


def test_texts_that_need_fewer_layers_leave_the_others_as_they_are() -> None:
    config = _config()
    model, texts = _model(config, _weights(config), torch.float32), _texts(40, 50, 60)
    whole = _encode(model, texts[:2])
    assert torch.equal(model.encode(Batch.unchunked(texts, 16, CPU, [3, 3, 1])), whole)


def test_a_pass_over_many_texts_can_be_left_before_its_end() -> None:
    config, calls = _config(heads=12, head_dim=64, ff=3072), iter(range(2))
    model, texts = _model(config, _weights(config), torch.float32), _texts(*[100] * 40)

    def check() -> None:
        next(calls)

    batch = Batch.unchunked(texts, 16, CPU, [config.num_layers] * len(texts), check)
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


def test_what_cannot_be_one_call_says_why() -> None:
    config = _config()
    assert why_not_whole(config, torch.float32, CPU, "none") is None
    assert why_not_whole(config, torch.float64, CPU, "none") == "the kernels take float32 or bfloat16, not float64"
    assert why_not_whole(config, torch.float32, CPU, "int8") == "weights are quantised"
