"""A step of few rows in one call, against the same network block by block: hidden states, caches, attention rows."""

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from model.batch import Batch, Span
from model.checkpoint.folder import PACKAGED
from model.checkpoint.registry import read_config
from model.config import ModelConfig, RopeConfig
from model.hooks.head_pairs import HeadPairs
from model.hooks.hooks import AttentionTap, Hooks, Read
from model.kernels import library
from model.kernels.int8_rows import Quantization
from model.kv_cache import KVCache
from model.layers.linear import Linear
from model.layers.lora import Adapter, LowRank
from model.loading.loader import build_model, load_model
from model.network import fused_decoder
from model.network.fused_decoder import MOST_ROWS, DecodeStep
from model.network.stack import Stack
from model.network.transformer import Transformer
from tests.invariance import num_threads
from tests.model.kernels.levels import at_level
from tests.model.random_weights import draw_weights
from tests.network import CPU, CallingSink

VOCAB_SIZE, CONTEXT, BLOCK_SIZE, NUM_BLOCKS = 50, 400, 32, 40
DTYPES = (torch.float32, torch.bfloat16)


def draw_config(rng: random.Random) -> ModelConfig:
    """Draw a network like Llama, with options that the one call supports."""
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
    }
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
        norm="rmsnorm",
        norm_bias=False,
        norm_eps=1e-5,
        activation="silu",
        gated_mlp=True,
        learned_positions=False,
        tie_word_embeddings=True,
        attention_scale=head_dim**-0.5,
        **options,
    )


def draw_counts(rng: random.Random) -> list[int]:
    """Draw the rows of each sequence, up to MOST_ROWS together: tokens that follow a text, and pieces of prompts."""
    total = rng.choice([1, 2, 8, 16, 17, 33, 64, rng.randint(1, 100), MOST_ROWS])
    counts: list[int] = []
    while total > sum(counts):
        counts.append(min(rng.choice([1, 1, 1, rng.randint(1, 150)]), total - sum(counts)))
    return counts


def block_by_block(decoder: Stack) -> Stack:
    return replace(decoder, decode_step=None)


def filled_caches(config: ModelConfig, dtype: torch.dtype, num_blocks: int, copies: int) -> list[KVCache]:
    """Return caches with the same keys and values everywhere."""
    caches = [KVCache(config, num_blocks, BLOCK_SIZE, dtype, CPU) for _ in range(copies)]
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        keys, values = torch.randn(layers[0].keys.shape), torch.randn(layers[0].values.shape)
        for layer in layers:
            layer.keys.copy_(keys)
            layer.values.copy_(values)
    return caches


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


def draw_batch(
    rng: random.Random,
    config: ModelConfig,
    counts: Sequence[int],
    num_blocks: int,
    adapters: Sequence[Adapter | None] = (None,),
) -> Batch:
    """Draw sequences of any length, with their blocks anywhere in the cache, each with one of the adapters."""
    blocks, spans = rng.sample(range(num_blocks), num_blocks), []
    for count in counts:
        start = rng.randint(0, BLOCK_SIZE * rng.choice([1, 6]))
        table = [blocks.pop() for _ in range((start + count - 1) // BLOCK_SIZE + 1)]
        token_ids, adapter = [rng.randrange(VOCAB_SIZE) for _ in range(count)], rng.choice(adapters)
        spans.append(Span(token_ids, start, table, config.num_layers, adapter=adapter))
    return Batch(spans, BLOCK_SIZE, CPU)


@dataclass(frozen=True)
class Case:
    """A network, a step, and two equal caches."""

    network: Transformer
    step: DecodeStep
    batch: Batch
    caches: list[KVCache]


def draw_case(dtype: torch.dtype, quantize: Quantization = "none") -> Case:
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    config, counts = draw_config(rng), draw_counts(rng)
    print(seed, counts, config)  # shown when it fails
    share_of_narrow = rng.choice([0, 0.5, 1])  # weights that are exact in bfloat16 are multiplied in another way
    weights = {
        name: (weight.bfloat16() if rng.random() < share_of_narrow else weight).to(dtype)
        for name, weight in draw_weights(config).items()
    }
    network = build_model(config, weights, context=CONTEXT, quantize=quantize)
    assert network.decoder is not None
    assert network.decoder.decode_step is not None
    num_blocks = 8 * len(counts) + 2
    drawn = [draw_adapter(rng, network.decoder, dtype) for _ in range(rng.randrange(3))]
    batch = draw_batch(rng, config, counts, num_blocks, [None, *drawn])
    return Case(network, network.decoder.decode_step, batch, filled_caches(config, dtype, num_blocks, 2))


def assert_same_caches(one: KVCache, other: KVCache) -> None:
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert torch.equal(mine.keys, theirs.keys)
        assert torch.equal(mine.values, theirs.values)


def assert_same_bits_in_one_call(case: Case) -> None:
    decoder, (ours, theirs) = case.network.decoder, case.caches
    assert decoder is not None
    assert case.step.can_run(case.batch, None)
    expected = block_by_block(decoder)(case.batch, theirs.layers)
    assert torch.equal(decoder(case.batch, ours.layers), expected)
    assert_same_caches(ours, theirs)


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attempt", range(6))
def test_one_call_gives_the_bits_of_the_blocks_one_by_one(
    attempt: int, dtype: torch.dtype, quantize: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the layers in one call, or in one call each, as in large networks."""
    if attempt % 2:
        monkeypatch.setattr(fused_decoder, "_WORK_BETWEEN_CHECKS", 1)
    level = library.levels()[attempt % len(library.levels())]
    with at_level(level), num_threads(1 + attempt % 3), torch.inference_mode():
        assert_same_bits_in_one_call(draw_case(dtype, quantize))


@pytest.mark.parametrize("kind", ["pattern", "scores", "dots"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_rows_of_one_call_are_those_of_the_blocks(dtype: torch.dtype, kind: str) -> None:
    with torch.inference_mode():
        case = draw_case(dtype)
        decoder, batch, config = case.network.decoder, case.batch, case.network.config
        assert decoder is not None
        rng = random.Random()

        span = rng.randrange(len(batch.spans))
        rows = range(batch.first_rows[span], batch.first_rows[span + 1])
        layers = sorted(rng.sample(range(config.num_layers), rng.randint(1, config.num_layers)))
        heads = {layer: rng.sample(range(config.num_heads), rng.randint(1, config.num_heads)) for layer in layers}
        every_pair = [(layer, head) for layer in layers for head in heads[layer]]
        pairs = HeadPairs.of(every_pair, config.num_layers, config.num_heads)

        def seen_by(stack: Stack, cache: KVCache) -> list[tuple[int, int, torch.Tensor]]:
            found: list[tuple[int, int, torch.Tensor]] = []
            tap = AttentionTap(span, rows, pairs, kind, CallingSink(lambda *piece: found.append(piece)))
            hooks = Hooks(attention=[tap])
            assert case.step.can_run(batch, hooks)
            stack(batch, cache.layers, hooks)
            assert hooks.attention_seconds > 0
            return found

        ours, theirs = seen_by(decoder, case.caches[0]), seen_by(block_by_block(decoder), case.caches[1])
        assert [(layer, i) for layer, i, _ in ours] == [(layer, i) for layer, i, _ in theirs]
        assert [layer for layer, *_ in ours] == layers
        for (*_, mine), (*_, other) in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other)
        assert_same_caches(*case.caches)


@pytest.fixture(scope="module")
def default_model() -> Transformer:
    config = read_config(PACKAGED)
    return load_model(PACKAGED, config, torch.float32, CPU, max_model_len=CONTEXT)


def tokens(config: ModelConfig, num_sequences: int, start: int = 40, num_layers: int | None = None) -> list[Span]:
    per = start // BLOCK_SIZE + 1
    layers = config.num_layers if num_layers is None else num_layers
    return [Span([7], start, range(1 + i * per, 1 + (i + 1) * per), layers) for i in range(num_sequences)]


@pytest.mark.parametrize("more", [-MOST_ROWS, 0, 1])
def test_the_default_model_decodes_few_sequences_in_one_call(
    default_model: Transformer, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    config, run, calls = default_model.config, DecodeStep.__call__, []
    assert default_model.decoder is not None
    assert default_model.decoder.decode_step is not None
    num_sequences, is_one_call = max(1, MOST_ROWS + more), more <= 0

    def counted(*given: Any) -> torch.Tensor:
        calls.append(given)
        return run(*given)

    monkeypatch.setattr(DecodeStep, "__call__", counted)
    spans = tokens(config, num_sequences)
    cache = KVCache(config, 2 * num_sequences + 1, BLOCK_SIZE, torch.float32, CPU)
    default_model.forward(Batch(spans, BLOCK_SIZE, CPU), cache)
    assert len(calls) == is_one_call


def test_what_one_call_cannot_do_goes_block_by_block(default_model: Transformer) -> None:
    assert default_model.decoder is not None
    step, config = default_model.decoder.decode_step, default_model.config
    assert step is not None
    whole = Batch(tokens(config, 2), BLOCK_SIZE, CPU)
    assert step.can_run(whole, None)
    reading = Hooks(reads=[Read("hook_resid_post", 0, [0], None, lambda x: None)])
    assert not step.can_run(whole, reading)
    shallow = Batch([*tokens(config, 1), *tokens(config, 1, num_layers=2)], BLOCK_SIZE, CPU)
    assert not step.can_run(shallow, None)


def test_a_step_is_abandoned_before_it_is_run(default_model: Transformer) -> None:
    class AbandonedError(Exception):
        pass

    def check() -> None:
        raise AbandonedError

    config = default_model.config
    cache = KVCache(config, 3, BLOCK_SIZE, torch.float32, CPU)
    with pytest.raises(AbandonedError):
        default_model.forward(Batch(tokens(config, 1), BLOCK_SIZE, CPU, check), cache)
    assert not any(layer.keys.any() for layer in cache.layers)
