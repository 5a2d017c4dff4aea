"""A decoder's program against the same network block by block: hidden states, points, attention rows."""

import random
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.config import (
    ClampedGate,
    DeltaNetConfig,
    ExpertsConfig,
    ModelConfig,
    Recurrence,
    RopeConfig,
    ShortConvConfig,
)
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.hooks.hooks import AttentionTap, Change, Hooks, Read, RowSink
from lightwell.model.kernels import library
from lightwell.model.kernels.choice import ArithmeticChoice, KernelConfig
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import Adapter, LowRank
from lightwell.model.loading.loader import build_model
from lightwell.model.network import fused_decoder
from lightwell.model.network.stack import Stack
from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.invariance import num_threads
from tests.model.kernels.levels import at_level
from tests.model.random_weights import draw_weights
from tests.model.watching import BLOCK, CPU, Watched, load, points, run
from tests.network import CallingSink

VOCAB_SIZE, CONTEXT = 50, 400
DTYPES = (torch.float32, torch.bfloat16)
GEMMAS = ("gemma4", "gemma4-e2b", "gemma4-experts", "gemma3n")


def draw_config(rng: random.Random) -> ModelConfig:
    """Draw a network with options that the one call supports: Llama, GPT-2, GPT-NeoX, Gemma 2, OLMo 2, BLOOM, ..."""
    kv_heads, group, head_dim = rng.choice([1, 2, 4]), rng.choice([1, 2, 3]), rng.choice([16, 32, 48, 64])
    num_layers = rng.randint(1, 4)
    turned = RopeConfig(max_position=CONTEXT, original_max_position=CONTEXT, dims=rng.choice([None, 8]))
    rope = rng.choice([turned, turned, None])
    options: dict[str, Any] = {
        "norm_weight_offset": rng.choice([0.0, 1.0]),
        "final_norm": rng.random() < 0.8,
        "qk_norm": rng.choice([None, "head", "full"]),
        "attention_bias": rng.random() < 0.5,
        "attention_out_bias": rng.random() < 0.5,
        "mlp_bias": rng.random() < 0.5,
        "rope": rope,
        "local_rope": replace(rope, theta=100.0) if rope is not None and rng.random() < 0.5 else None,
        "unrotated_layers": tuple(n for n in range(num_layers) if rng.random() < 0.2),
        "attn_logit_softcap": rng.choice([None, 2.0]),
        "residual_scale": rng.choice([1.0, 0.3]),
        "sliding_windows": tuple(rng.choice([None, rng.randint(1, 100)]) for _ in range(num_layers)),
        "norm": rng.choice(["rmsnorm", "layernorm"]),
        "norm_bias": rng.random() < 0.5,
        "norm_placement": rng.choice(["pre", "pre", "post", "sandwich", "output"]),
        "activation": rng.choice(["silu", "gelu", "gelu_tanh", "relu"]),
        "gated_mlp": rng.random() < 0.7,
        "learned_positions": rope is None and rng.random() < 0.5,
        "alibi": rope is None and rng.random() < 0.3,
        "attention_sinks": rng.random() < 0.2,
        "v_norm": rng.random() < 0.2,
        "stream_scales": rng.random() < 0.2,
    }
    if options["norm"] == "layernorm":
        options |= {"qk_norm": None, "v_norm": False, "norm_weight_offset": 0.0}
    else:
        options |= {"norm_bias": False}
    if rng.random() < 0.2:
        options |= {"parallel_blocks": True, "norm_placement": "pre", "residual_scale": 1.0, "stream_scales": False}
    if options["norm_placement"] in ("pre", "sandwich") and not options.get("parallel_blocks") and rng.random() < 0.4:
        options |= {"gated_mlp": True}
        options |= {"experts": draw_experts(rng, num_layers)}
    if not options.get("parallel_blocks"):
        options |= {"attention_gate": rng.random() < 0.3, "recurrence": draw_recurrence(rng, num_layers)}
    if options["gated_mlp"] and rng.random() < 0.2:
        options |= {"clamped_gate": ClampedGate(limit=2.0, alpha=1.7)}
    return ModelConfig(
        architecture="Random",
        family="llama",
        vocab_size=VOCAB_SIZE,
        hidden_size=rng.choice([32 * rng.randint(2, 12), rng.randint(30, 200)]),
        num_layers=num_layers,
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=rng.choice([96, 200, 688]),
        max_model_len=CONTEXT,
        norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_scale=head_dim**-0.5,
        **options,
    )


def draw_recurrence(rng: random.Random, num_layers: int) -> Recurrence | None:
    """Draw the layers without attention, one less than all or fewer."""
    layers = tuple(n for n in range(num_layers - 1) if rng.random() < 0.3)
    if not layers:
        return None
    if rng.random() < 0.5:
        return ShortConvConfig(layers=layers, kernel_size=rng.randint(2, 4), bias=rng.random() < 0.5)
    key_heads = rng.choice([1, 2, 3])
    return DeltaNetConfig(
        layers=layers,
        kernel_size=rng.randint(2, 4),
        num_key_heads=key_heads,
        num_value_heads=key_heads * rng.choice([1, 2]),
        key_dim=rng.choice([8, 17, 64]),
        value_dim=rng.choice([8, 23, 64, 80]),
    )


def draw_experts(rng: random.Random, num_layers: int) -> ExpertsConfig:
    num_experts, shared = rng.choice([1, 4, 9]), rng.choice([None, 40])
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=rng.randint(1, min(3, num_experts)),
        intermediate_size=rng.choice([24, 96, 130]),
        normalized=rng.random() < 0.5,
        shared_intermediate_size=shared,
        shared_gate=shared is not None and rng.random() < 0.5,
        dense_layers=tuple(n for n in range(num_layers) if rng.random() < 0.2),
    )


def draw_network(rng: random.Random, dtype: torch.dtype, quantize: Quantization) -> Transformer:
    config = draw_config(rng)
    print(config)  # shown when it fails
    share_of_narrow = rng.choice([0, 0.5, 1])  # weights that are exact in bfloat16 are multiplied in another way
    drawn = draw_weights(config)
    names = {name: re.sub(r"experts\.\d+", "experts", name) for name in drawn}  # experts are stored alike
    narrow = {name for name in sorted({*names.values()}) if rng.random() < share_of_narrow}
    weights = {
        name: (weight.bfloat16() if names[name] in narrow else weight).to(dtype) for name, weight in drawn.items()
    }
    arithmetic: ArithmeticChoice = rng.choice(["float32", "bf16-dot"])
    kernels = KernelConfig(arithmetic=arithmetic, activations="int8" if rng.random() < 0.3 else "dtype")
    return build_model(config, weights, context=CONTEXT, quantize=quantize, kernels=kernels)


def draw_texts(rng: random.Random, chunk: int) -> list[list[int]]:
    """Draw texts that end with one row in a step, or with several."""
    count = rng.randint(1, 6)
    lengths = [rng.choice([1 + chunk * rng.randint(0, 150 // chunk), rng.randint(1, 150)]) for _ in range(count)]
    return [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def draw_adapter(rng: random.Random, decoder: Stack, dtype: torch.dtype) -> Adapter:
    """Draw an adapter's weights for some layers."""

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear((torch.randn(outputs, inputs) / inputs**0.5).to(dtype))

    changed = [each for block in decoder.blocks for each in block.linears.values() if rng.random() < 0.8]
    ranks = {each: rng.choice([1, 7, 16, 70]) for each in changed}
    changes = {}
    for each, rank in ranks.items():
        up = torch.randn(each.out_features, rank) / rank**0.5
        if rng.random() < 0.5:  # two parts, as gate and up, each with ranks of its own
            row, column = rng.randrange(each.out_features), rng.randrange(rank)
            up[:row, column:], up[row:, :column] = 0, 0
        changes[each] = LowRank(linear(rank, each.in_features), Linear(up.to(dtype)))
    return Adapter(changes)


@pytest.fixture
def rng() -> random.Random:
    seed = secrets.randbits(32)
    print(seed)
    torch.manual_seed(seed)
    return random.Random(seed)


def block_by_block(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.decoder is not None
    monkeypatch.setattr(model, "decoder", replace(model.decoder, decode_step=None))


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attempt", range(4))
def test_one_call_gives_the_bits_of_the_blocks_one_by_one(
    attempt: int, dtype: torch.dtype, quantize: Quantization, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the layers in one call, or in one call each, as in large networks."""
    if attempt % 2:
        monkeypatch.setattr(fused_decoder, "_WORK_BETWEEN_CHECKS", 1)
    level, chunk = library.levels()[attempt % len(library.levels())], rng.choice([20, 50, 100])
    with at_level(level):
        model = draw_network(rng, dtype, quantize)
    assert model.decoder is not None
    kinds = [(), ("pattern", "scores", "dots") if attempt % 3 == 0 else ()]
    adapters = [None, *(draw_adapter(rng, model.decoder, dtype) for _ in range(attempt % 3))]
    texts = draw_texts(rng, chunk)
    watched = [Watched(text, kinds=rng.choice(kinds), adapter=rng.choice(adapters)) for text in texts]
    with at_level(level), num_threads(1 + attempt % 3):
        assert_same_bits_block_by_block(model, watch_points(model, watched, rng), chunk, monkeypatch)


def watch_points(model: Transformer, watched: list[Watched], rng: random.Random) -> list[Watched]:
    """Return the sequences, some with reads of points, and some with a changed point."""
    of_model, found = points(model, "decoder"), []
    changeable = [(point.name, layer) for point, layer in of_model if point.changeable and point.in_block]
    stream = [(name, layer) for name, layer in changeable if "resid" in name]
    for each in watched:
        reads = [(point.name, layer) for point, layer in of_model if rng.random() < 0.4] if rng.random() < 0.5 else []
        edits = {rng.choice(own): lambda x: 1.5 * x for own in (changeable, stream) if rng.random() < 0.2}
        found.append(replace(each, reads=reads, edits=edits))
    return found


def assert_same_bits_block_by_block(
    model: Transformer, watched: list[Watched], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.inference_mode():
        found = run(model, watched, chunk=chunk)
        block_by_block(model, monkeypatch)
        for one, other in zip(found, run(model, watched, chunk=chunk), strict=True):
            assert torch.equal(one.hidden, other.hidden)
            for mine, others in ((one.points, other.points), (one.attention, other.attention)):
                assert mine.keys() == others.keys()
                for at, numbers in mine.items():
                    assert torch.equal(numbers, others[at]), at


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["t5", "t5-gated-untied", "bart", "marian", "lfm2", "qwen3_5", *GEMMAS])
def test_cross_attention_and_convolutions_have_the_same_bits_in_one_call(
    family: str, dtype: torch.dtype, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny.make_variant(family, tmp_path), dtype)
    texts = [text[:60] for text in draw_texts(rng, 20)]
    encoder_tokens = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 9]))] for _ in texts]
    watched = [
        Watched(text, encoder_tokens=own, kinds=rng.choice([(), ("pattern",)]))
        for text, own in zip(texts, encoder_tokens, strict=True)
    ]
    watched = watch_points(model, watched, rng)
    monkeypatch.setattr(fused_decoder, "_WORK_BETWEEN_CHECKS", rng.choice([1, 1 << 25]))
    with num_threads(rng.choice([1, 3])):
        assert_same_bits_block_by_block(model, watched, rng.choice([1, 7, 20]), monkeypatch)


@pytest.fixture(scope="module")
def default_model() -> Transformer:
    return load(PACKAGED)


def tokens(config: ModelConfig, num_sequences: int, num_layers: int | None = None) -> Batch:
    """Return a batch of sequences of one row each after 40 others; `num_layers` are the layers of the last one."""
    layers = [*[config.num_layers] * (num_sequences - 1), num_layers or config.num_layers]
    spans = [Span([7], 40, range(1 + i * 6, 7 + i * 6), count) for i, count in enumerate(layers)]
    return Batch(spans, BLOCK, CPU)


def test_a_run_ends_where_rows_end_or_numbers_change(default_model: Transformer) -> None:
    config, step = default_model.config, default_model.decoder and default_model.decoder.decode_step
    assert step is not None
    every, two = config.num_layers, tokens(config, 2)
    assert step.end_of_run(0, tokens(config, 300), None) == every
    assert [step.end_of_run(n, tokens(config, 2, num_layers=2), None) for n in (0, 2)] == [2, every]
    reading = Hooks(reads=[Read("hook_resid_post", 0, [0], None, lambda x: None)])
    pairs = HeadPairs.of([(0, 0)], every, config.num_heads)
    looking = Hooks(attention=[AttentionTap(0, range(1), pairs, "pattern", CallingSink(lambda *piece: None))])
    steering, changing = (
        Hooks(changes=[Change(name, 1, [0], None, abs)]) for name in ("hook_resid_mid", "attn.hook_z")
    )
    assert [step.end_of_run(0, two, hooks) for hooks in (reading, looking, steering)] == [every] * 3
    assert [step.end_of_run(n, two, changing) for n in range(3)] == [1, 1, every]
    default_model.forward(two, KVCache(config, 13, BLOCK, torch.float32, CPU), looking)
    assert looking.attention_seconds > 0


def test_a_step_is_abandoned_before_it_is_run(default_model: Transformer) -> None:
    class AbandonedError(Exception):
        pass

    def check() -> None:
        raise AbandonedError

    config = default_model.config
    cache = KVCache(config, 7, BLOCK, torch.float32, CPU)
    with pytest.raises(AbandonedError):
        default_model.forward(Batch([Span([7], 40, range(1, 7), config.num_layers)], BLOCK, CPU, check), cache)
    assert not any(layer.keys.any() for layer in cache.layers)


class KeptSink(RowSink):
    """A sink with room for its patterns."""

    def __init__(self, pairs: HeadPairs, num_keys: int) -> None:
        self.pairs, self.patterns = pairs, torch.zeros(len(pairs.numbers), 1, num_keys)

    def room(self, num_keys: int) -> torch.Tensor:
        return self.patterns


def test_attention_writes_the_patterns_of_all_layers(
    default_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, cache = default_model.config, KVCache(default_model.config, 13, BLOCK, torch.float32, CPU)
    chosen = [(layer, head) for layer in range(config.num_layers) for head in range(config.num_heads) if head != 1]
    sinks = [KeptSink(HeadPairs.of(chosen, config.num_layers, config.num_heads), 41) for _ in range(2)]
    for sink in sinks:
        hooks = Hooks(attention=[AttentionTap(0, range(1), sink.pairs, "pattern", sink)])
        default_model.forward(tokens(config, 2), cache, hooks)
        block_by_block(default_model, monkeypatch)
    first, second = (sink.patterns for sink in sinks)
    assert torch.equal(first, second)
    torch.testing.assert_close(first.sum(-1), torch.ones(len(chosen), 1))
