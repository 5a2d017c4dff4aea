"""The fast network against the slow reference, point by point, for every kind of checkpoint, and the relations between
points that hold for any numbers.
"""

from functools import cache
from pathlib import Path

import pytest
import torch

from model.checkpoint.registry import read_config
from model.checkpoint.weight_files import load_weights
from model.config import DeltaNetConfig
from model.hooks.point_names import full_name, stack_config, stacks
from model.hooks.points import Stack
from model.loading.loader import load_model
from model.network.transformer import Transformer
from tests import reference, tiny
from tests.network import CPU, FLOAT32_BOUND, WHOLE, logits_alone, look_at_everything, value_heads, worst

pytestmark = pytest.mark.every_family


def _drawn(count: int) -> list[int]:
    """Return ordinary tokens, different ones in every run."""
    return torch.randint(5, tiny.VOCAB_SIZE, (count,)).tolist()


TOKENS, ENCODER_TOKENS = _drawn(50), _drawn(43)


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


def _chunks(folder: Path) -> tuple[int, ...]:
    """Return numbers of tokens per step to test; an encoder reads its input whole."""
    return (WHOLE,) if read_config(folder).kind == "encoder" else (WHOLE, 7, 1)


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


def test_patterns_and_logits_equal_the_reference_in_float32(folder: Path) -> None:
    for chunk in _chunks(folder):
        ours, expected = _looked(folder, torch.float32, chunk), _expected(folder)
        for ending in ("hook_pattern", "logits", "hook_out", "hook_resid_post"):
            assert worst(ours, expected, ending, relative=True) <= FLOAT32_BOUND


def test_chunks_do_not_change_a_bit_in_float32(folder: Path) -> None:
    whole, *chunked = [_looked(folder, torch.float32, chunk) for chunk in _chunks(folder)]
    for points in chunked:
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


class Identities:
    """The points of one stack, in float64, by short name and layer."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        self.model = _model(folder, torch.float64)
        self.stack, self.config = stack, stack_config(self.model.config, stack)
        self.points = _looked(folder, torch.float64)
        prefix = "encoder." if stack == "encoder" and self.model.config.encoder else ""
        weights = load_weights(folder, self.model.config, torch.float64)
        self.weights = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        self.layers = range(self.config.num_layers)

    def at(self, point: str, layer: int | None = None) -> torch.Tensor:
        return self.points[full_name(self.model.config, self.stack, point, layer)]

    def attentions_of(self, layer: int) -> list[str]:
        if not self.config.has_attention(layer):
            return []
        return ["attn", "cross_attn"] if self.config.cross_attention else ["attn"]

    def has(self, point: str, layer: int) -> bool:
        return full_name(self.model.config, self.stack, point, layer) in self.points


@pytest.fixture
def every_stack(folder: Path) -> list[Identities]:
    return [Identities(folder, stack) for stack in stacks(read_config(folder))]


def test_rows_of_a_pattern_and_the_sink_sum_to_one_and_are_the_softmax_of_the_scores(
    every_stack: list[Identities],
) -> None:
    for found in every_stack:
        for layer in found.layers:
            for name in found.attentions_of(layer):
                pattern, scores = found.at(f"{name}.hook_pattern", layer), found.at(f"{name}.hook_attn_scores", layer)
                assert (pattern[scores.isinf()] == 0).all()
                sinks = torch.full((len(scores),), -torch.inf)  # sinks without weight
                if found.config.attention_sinks:
                    sinks = found.weights[f"layers.{layer}.sinks.weight"]
                    assert (pattern.sum(-1) < 1).all()
                whole = torch.softmax(torch.cat((scores, sinks.view(-1, 1, 1).expand(*scores.shape[:2], 1)), -1), -1)
                torch.testing.assert_close(pattern, whole[..., :-1])
                torch.testing.assert_close(pattern.sum(-1) + whole[..., -1], torch.ones_like(pattern[..., 0]))


def test_the_pattern_times_the_values_is_z(every_stack: list[Identities]) -> None:
    for found in every_stack:
        for layer in found.layers:
            for name in found.attentions_of(layer):
                v = value_heads(found.config.at(layer), found.at(f"{name}.hook_v", layer))
                z = torch.einsum("hqk,khd->qhd", found.at(f"{name}.hook_pattern", layer), v)
                torch.testing.assert_close(z, found.at(f"{name}.hook_z", layer))


def test_scaled_capped_and_biased_dots_are_the_scores(every_stack: list[Identities]) -> None:
    for found in every_stack:
        config = found.config
        for layer in found.layers:
            for name in found.attentions_of(layer):
                q = found.at(f"{name}.hook_rot_q", layer)
                k = value_heads(config.at(layer), found.at(f"{name}.hook_rot_k", layer))
                scores = torch.einsum("qhd,khd->hqk", q, k) * config.attention_scale
                if (cap := config.attn_logit_softcap) is not None:
                    scores = cap * torch.tanh(scores / cap)
                seen = found.at(f"{name}.hook_attn_scores", layer)
                if config.position_bias is not None and name == "attn":
                    table = found.weights["position_bias.weight"]
                    length = range(seen.shape[-1])
                    buckets = [[reference.formulas.bucket(k - q, config.position_bias) for k in length] for q in length]
                    scores = scores + table[torch.tensor(buckets)].permute(2, 0, 1)
                if config.alibi:
                    away = [abs(k - q) for q in range(seen.shape[-2]) for k in range(seen.shape[-1])]
                    bias = torch.stack([reference.formulas.alibi(config.num_heads, distance) for distance in away])
                    scores = scores + bias.T.reshape(scores.shape)
                torch.testing.assert_close(scores.masked_fill(seen.isinf(), float("-inf")), seen)


def test_the_results_of_all_heads_and_the_bias_are_what_attention_adds(every_stack: list[Identities]) -> None:
    for found in every_stack:
        normed_after = found.config.norm_placement in ("sandwich", "output")
        for layer in found.layers:
            for name, out in zip(found.attentions_of(layer), ("attn", "cross"), strict=False):
                results = found.at(f"{name}.hook_result", layer)
                if found.config.attention_gate:
                    z = found.at(f"{name}.hook_z", layer) * found.at(f"{name}.hook_gate", layer).sigmoid()
                    w_o = found.weights[f"layers.{layer}.{out}_out.weight"]
                    each = [z[:, i] @ part.T for i, part in enumerate(torch.split(w_o, found.config.head_dim, 1))]
                    torch.testing.assert_close(torch.stack(each, 1), results)
                total = results.sum(1)
                total = total + found.weights.get(f"layers.{layer}.{out}_out.bias", torch.zeros(()))
                if normed_after:
                    point = "ln1_post" if found.config.norm_placement == "sandwich" else "ln1"
                    weight = found.weights[f"layers.{layer}.attn_post_norm.weight"] + found.config.norm_weight_offset
                    total = total / found.at(f"{point}.hook_scale", layer) * weight
                total = total * found.config.residual_scale
                torch.testing.assert_close(total, found.at(f"hook_{name}_out", layer))


def test_what_stands_in_place_of_attention_goes_through_its_matrix(every_stack: list[Identities]) -> None:
    for found in every_stack:
        name = "delta" if isinstance(found.config.recurrence, DeltaNetConfig) else "conv"
        for layer in set(found.layers) - set(found.config.attention_layers):
            weight, bias = (found.weights.get(f"layers.{layer}.{name}_out.{kind}") for kind in ("weight", "bias"))
            assert weight is not None
            added = found.at(f"{name}.hook_out", layer).flatten(1) @ weight.T + (0 if bias is None else bias)
            torch.testing.assert_close(added, found.at("hook_attn_out", layer))


def test_the_stream_is_the_sum_of_what_is_added_to_it(every_stack: list[Identities]) -> None:
    for found in every_stack:
        config = found.config
        is_post = config.norm_placement == "post"
        for layer in found.layers:
            x = found.at("hook_resid_pre", layer)
            if layer > 0:
                torch.testing.assert_close(x, found.at("hook_resid_post", layer - 1))
            if config.altup is not None:  # only one of its residual streams is shown
                parts = [found.at(each, layer) for each in ("hook_predicted", "hook_attn_out", "hook_laurel_out")]
                torch.testing.assert_close(torch.stack(parts).sum(0) / 2**0.5, found.at("hook_resid_mid", layer))
                x = found.at("hook_resid_mid", layer) + found.at("hook_mlp_out", layer)
                torch.testing.assert_close(x, found.at("hook_resid_mid_mlp", layer))
                continue
            for added, norm, stream in (
                ("hook_attn_out", "ln1", "hook_resid_mid"),
                ("hook_cross_attn_out", "ln_cross", "hook_resid_mid_cross"),
                ("hook_mlp_out", "ln2", "hook_resid_post" if config.per_layer_size is None else "hook_resid_mid_mlp"),
                ("hook_per_layer_out", "ln_per_layer", "hook_resid_post"),
            ):
                if not found.has(added, layer):
                    continue
                x = x + found.at(added, layer)
                if is_post:  # the stream has the normed sum
                    std = x.var(-1, correction=0, keepdim=True).add(config.norm_eps).sqrt()
                    torch.testing.assert_close(std, found.at(f"{norm}.hook_scale", layer))
                    x = found.at(f"{norm}.hook_out", layer)
                if stream == "hook_resid_post" and config.stream_scales:
                    x = x * found.weights[f"layers.{layer}.stream_scale.weight"]
                if found.has(stream, layer):
                    torch.testing.assert_close(x, found.at(stream, layer))


def test_the_lens_on_the_last_block_gives_the_logits(folder: Path) -> None:
    for dtype in (torch.float32, torch.float64):
        model, points = _model(folder, dtype), _looked(folder, dtype)
        if not model.config.has_head or model.config.altup is not None:
            with pytest.raises(ValueError, match=r"no head|several streams"):
                model.lens(torch.zeros(1, model.config.hidden_size, dtype=dtype))
            return
        stack = stacks(model.config)[-1]
        last = points[full_name(model.config, stack, "hook_resid_post", model.config.num_layers - 1)]
        assert torch.equal(model.lens(last), points[full_name(model.config, stack, "logits", None)])
