"""Every family answers each kind of request with the same bits, with and without other requests in the batch."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from model.network.transformer import Transformer
from server.engine.engine import Engine
from server.engine.outputs import StepOutput
from server.engine.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    EngineRequest,
    HeadScoresTask,
    LensTask,
    Task,
    TraceTask,
)
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import Answer, alone, build, everything, generate, load, request, run, two_heads
from tests.server.engine.test_batch_invariance import assert_same

DTYPES = (torch.float32, torch.bfloat16)
DTYPES_ON_REQUEST = (torch.float64, torch.float16)
"""Dtypes for which a CPU has no packed products and compiled kernels."""
WITHOUT_COMPILED_KERNELS = ("llama-gqa", "gpt2", "lfm2", "bart", "bert")
"""Archetypes for which `make test` covers these dtypes, too; each takes several times as long as with kernels."""
DTYPES_OF_A_GPU = (torch.float32, torch.bfloat16, torch.float16)
_first = random.randrange(6)
"""Index of the first variant's dtype: the variants cycle through the dtypes from here, so that every kind of model
meets each of them.
"""
SMALL_STEPS = (9, 40, 64)
"""Tokens in a step: fewer than the longest prompt of a crowd has."""


def _in_turn(dtypes: tuple[torch.dtype, ...], name: str) -> torch.dtype:
    return dtypes[(_first + list(tiny.VARIANTS).index(name)) % len(dtypes)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", tiny.UNLIKE)
def test_every_family_answers_a_crowd_as_each_alone(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Test all at once: arrivals while others run, small chunks, a cache too small for all, common prefixes."""
    with num_threads(random.choice((1, 2))):
        _answer_alike(load(tiny.make_variant(name, tmp_path), dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in tiny.DECODERS if name in tiny.UNLIKE])
def test_every_decoder_does_so_after_preemption_and_prefix_hits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Use prompts of 5 blocks that grow to 9, and 13 blocks: two fit at first, and one in the end."""
    model = load(tiny.make_variant(name, tmp_path), dtype)
    begin = [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(25)]
    prompts = [begin + [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(8)] for _ in range(3)]
    reuses = model.config.reuses_prefixes
    writers = [request(uid, prompt, generate(33, logprobs=2, ignore_eos=True)) for uid, prompt in enumerate(prompts)]
    expected = alone(model, writers)
    engine = build(model, num_blocks=14)  # one of them is never given out
    assert_same(run(engine, writers), expected)
    assert engine.stats().num_preemptions_total > 0
    before = engine.stats().prefix_cache_hits_total
    again = [replace(each, uid=each.uid + 100) for each in writers]
    found = run(engine, again)
    assert (engine.stats().prefix_cache_hits_total > before) is reuses
    assert_same({uid - 100: answer for uid, answer in found.items()}, expected)


@pytest.mark.parametrize("name", tiny.UNLIKE)
def test_every_family_does_so_with_int8_weights(name: str, tmp_path: Path) -> None:
    with num_threads(random.choice((1, 2))):
        _answer_alike(load(tiny.make_variant(name, tmp_path), _in_turn(DTYPES, name), quantize="int8"))


@pytest.mark.parametrize(
    "name",
    [
        name if name in WITHOUT_COMPILED_KERNELS else pytest.param(name, marks=pytest.mark.nightly)
        for name in tiny.UNLIKE
    ],
)
def test_every_family_does_so_without_compiled_kernels_when_asked(name: str, tmp_path: Path) -> None:
    dtype = _in_turn(DTYPES_ON_REQUEST, name)
    folder = tiny.make_variant(name, tmp_path)
    assert not load(folder, dtype).batch_invariant
    _answer_alike(load(folder, dtype, batch_invariant=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("name", tiny.UNLIKE)
def test_every_family_does_so_on_a_gpu_when_asked(name: str, tmp_path: Path) -> None:
    """Test the kernels of a GPU. Left out are tasks that read values other than patterns: they run block by block."""
    folder = tiny.make_variant(name, tmp_path)
    model = load(folder, _in_turn(DTYPES_OF_A_GPU, name), torch.device("cuda"), batch_invariant=True)
    crowd = [each for each in _crowd_of(model) if not _reads_streams(each.task)]
    _answer_alike(model, crowd, block_size=16, max_num_seqs=random.randrange(3, 9))


def _reads_streams(task: Task) -> bool:
    """Return whether a task reads values between two blocks, or attention scores."""
    return isinstance(task, TraceTask | LensTask | HeadScoresTask) or (
        isinstance(task, EmbedTask) and task.layer is not None
    )


def _answer_alike(model: Transformer, crowd: list[EngineRequest] | None = None, **config_of_all: Any) -> None:
    crowd = crowd or _crowd_of(model)
    expected = alone(model, crowd, **config_of_all)
    config, longest = model.config, max(len(each.prompt_token_ids) for each in crowd)
    tight = build(
        model,
        num_blocks=34 if config.kind == "decoder" else 90,
        max_num_batched_tokens=random.choice([size for size in SMALL_STEPS if size < longest]),
        **{"max_num_seqs": random.randrange(3, 9)} | config_of_all,
    )
    step_sizes = _watch_step_sizes(tight)
    arrivals = sorted(random.randrange(9) for _ in crowd)
    order = random.sample(crowd, len(crowd))
    assert_same(run(tight, order, arrivals=arrivals), expected)
    if config.kind != "encoder":  # an encoder reads its whole input in one step
        assert 1 < max(step_sizes) < longest, "no prompt was read in pieces"
    again = [replace(each, uid=each.uid + 100) for each in order]
    found = run(tight, again)
    assert_same({uid - 100: answer for uid, answer in found.items()}, expected)


def _watch_step_sizes(engine: Engine) -> list[int]:
    """Return a list that grows by the tokens of each step that `engine` runs from now on."""
    sizes: list[int] = []
    step = engine.step

    def watched(*arguments: Any, **options: Any) -> StepOutput:
        output = step(*arguments, **options)
        sizes.append(output.stats.iteration_tokens)
        return output

    engine.step = watched
    return sizes


def _crowd_of(model: Transformer) -> list[EngineRequest]:
    """Return requests of each kind that the model can answer, with newly drawn prompts that begin alike.

    The first prompt has 80 tokens, more than any encoder's input, which is read in one step.
    """
    config, pairs = model.config, two_heads(model.config)
    tasks: list[Task] = [everything(config), AttentionTask(capture=AttentionCapture(pairs=pairs))]
    if config.kind == "encoder":
        part = AttentionCapture(pairs=pairs, part="encoder", resize=5)
        tasks = [everything(config), AttentionTask(capture=part)]
        tasks += [EmbedTask(pooling="mean"), EmbedTask(pooling="none"), EmbedTask(pooling="cls", layer=1)]
        tasks += [EmbedTask(modes=("max", "weightedmean"))]
    else:
        looking = AttentionCapture(pairs=pairs)
        tasks += [
            generate(9, logprobs=4, prompt_logprobs=2, ignore_eos=True),
            generate(24, temperature=0.9, seed=7, top_p=0.9, ignore_eos=True),
            generate(7, attention=looking, attention_prompt=True, ignore_eos=True),
            *([LensTask(layers=(0, 1, 2), positions=(0, 5), top_k=3)] if config.altup is None else []),
            HeadScoresTask(pairs=pairs, offsets=(1,)),
        ]
    if config.kind == "decoder":
        tasks += [EmbedTask(pooling="mean"), EmbedTask(pooling="none", layer=1)]
        tasks += [EmbedTask(modes=("mean_sqrt_len_tokens", "max", "last"))]
    begin = [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(25)]

    def words(length: int) -> list[int]:
        return (begin + [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(60)])[:length]

    lengths = [80, *(random.randrange(8, 85) for _ in tasks[1:])]
    return [
        request(uid, words(length), task, encoded=words(random.randrange(8, 70)) if config.encoder else ())
        for uid, (length, task) in enumerate(zip(lengths, tasks, strict=True))
    ]


@pytest.mark.parametrize(
    ("dtype", "length", "sizes"),
    [
        *((dtype, 2200, {"max_position_embeddings": 4096}) for dtype in DTYPES),
        (torch.float64, 400, {"max_position_embeddings": 512}),  # four tiles of keys
        pytest.param(torch.float16, 400, {"max_position_embeddings": 512}, marks=pytest.mark.nightly),
        *((dtype, 70, {"head_dim": 256}) for dtype in (*DTYPES, torch.float16)),
        pytest.param(torch.float64, 70, {"head_dim": 256}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_long_contexts_and_wide_heads_are_answered_alike(
    dtype: torch.dtype, length: int, sizes: dict[str, Any], tmp_path: Path
) -> None:
    model = load(tiny.make("llama", tmp_path, **sizes), dtype, batch_invariant=True)
    begin = [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(length - 30)]
    last = AttentionCapture(pairs=((0, 1), (1, 0)), queries=(length - 1, 5))
    tasks: list[Task] = [generate(9, logprobs=4, ignore_eos=True) for _ in range(2)]
    tasks += [generate(5, temperature=0.9, seed=3, ignore_eos=True), AttentionTask(capture=last)]
    prompts = [begin + [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(30)] for _ in tasks]
    crowd = [request(uid, prompt, task) for uid, (prompt, task) in enumerate(zip(prompts, tasks, strict=True))]
    num_blocks = len(crowd) * (length // 8 + 4)
    expected: dict[int, Answer] = {}
    for each in crowd:
        expected |= run(build(model, num_blocks=num_blocks, enable_prefix_caching=False), [each])
    engine = build(model, num_blocks=num_blocks, max_num_seqs=8, max_num_batched_tokens=length // 2 + 9)
    assert_same(run(engine, crowd, arrivals=[0, 0, 3, 5]), expected)
    assert engine.stats().prefix_cache_hits_total > 0
