"""Every family answers each kind of request with the same bits on a CPU: without other requests, in a batch, in chunks,
after prefix hits and after preemption, with drafts and without.
"""

import random
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from lightwell.model.network.transformer import Transformer
from lightwell.server.engine import engine as engine_module
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.outputs import StepOutput
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    EngineRequest,
    GenerateTask,
    HeadScoresTask,
    LensTask,
    Task,
    TraceTask,
)
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import (
    Answer,
    alone,
    assert_same,
    build,
    each_kind_of_task,
    generate,
    load,
    predicted,
    request,
    run,
    two_heads,
)

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


def _in_turn(dtypes: tuple[torch.dtype, ...], name: str, turn: int = 0) -> torch.dtype:
    return dtypes[(_first + turn + list(tiny.VARIANTS).index(name)) % len(dtypes)]


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", tiny.UNLIKE)
def test_every_family_answers_a_crowd_as_each_alone(name: str, turn: int, tmp_path: Path) -> None:
    """Test all at once: arrivals while others run, small chunks, a cache too small for all, common prefixes."""
    with num_threads(random.choice((1, 2))):
        _answer_alike(load(tiny.make_variant(name, tmp_path), _in_turn(DTYPES, name, turn)))


@pytest.mark.parametrize("name", [name for name in tiny.DECODERS if name in tiny.UNLIKE])
def test_every_decoder_does_so_after_preemption_and_prefix_hits(name: str, tmp_path: Path) -> None:
    """Use prompts of 5 blocks that grow to 7, and 11 blocks: at least two fit at first, and fewer in the end."""
    model = load(tiny.make_variant(name, tmp_path), _in_turn(DTYPES, name))
    begin = _drawn(25)
    writers = [request(uid, begin + _drawn(8), generate(17, logprobs=2, ignore_eos=True)) for uid in range(3)]
    expected = alone(model, writers)
    engine = build(model, num_blocks=12)  # one of them is never given out
    assert_same(run(engine, writers), expected)
    assert engine.stats().num_preemptions_total > 0
    before = engine.stats().prefix_cache_hits_total
    if model.config.reuses_prefixes:
        _assert_same_again(engine, writers, expected)
    assert (engine.stats().prefix_cache_hits_total > before) is model.config.reuses_prefixes


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
    if isinstance(task, EmbedTask):
        return task.layer is not None
    if isinstance(task, AttentionTask | GenerateTask):
        capture = task.capture if isinstance(task, AttentionTask) else task.attention
        return capture is not None and capture.kind != "pattern"
    return isinstance(task, TraceTask | LensTask | HeadScoresTask)


def _answer_alike(model: Transformer, crowd: list[EngineRequest] | None = None, **config_of_all: Any) -> None:
    crowd = crowd or _crowd_of(model)
    expected = alone(model, crowd, **config_of_all)
    config, longest = model.config, max(len(each.prompt_token_ids) for each in crowd)
    can_draft = build(model).info.speculation == "auto"
    crowd = [predicted(each, expected[each.uid]) for each in crowd]
    tight = build(
        model,
        speculation="ngram" if can_draft else "off",
        num_blocks=34 if config.kind == "decoder" else 90,
        max_num_batched_tokens=random.choice([size for size in SMALL_STEPS if size < longest]),
        **{"max_num_seqs": random.randrange(3, 9)} | config_of_all,
    )
    step_sizes = _watch_step_sizes(tight)
    arrivals = sorted(random.randrange(9) for _ in crowd)
    order = random.sample(crowd, len(crowd))
    assert_same(run(tight, order, arrivals=arrivals), expected)
    assert not can_draft or tight.stats().drafts_accepted_total > 0
    if config.kind != "encoder":  # an encoder reads its whole input in one step
        assert 1 < max(step_sizes) < longest, "no prompt was read in pieces"
    if config.reuses_prefixes:
        _assert_same_again(tight, order, expected)


def _assert_same_again(engine: Engine, requests: list[EngineRequest], expected: dict[int, Answer]) -> None:
    """Send the requests again, to a cache that holds their prefixes, and compare their answers."""
    found = run(engine, [replace(each, uid=each.uid + 100) for each in requests])
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

    A decoder's first prompt has 80 tokens, more than a step. An encoder's input is read in one step.
    """
    config, tasks = model.config, each_kind_of_task(model.config)
    looking = AttentionCapture(pairs=two_heads(config), part="encoder" if config.kind == "encoder" else "decoder")
    tasks.append(AttentionTask(capture=replace(looking, queries=(5, 2), keys=(0, 4), kind="dots")))
    tasks.append(AttentionTask(capture=replace(looking, reduce="mean", dtype="uint8")))
    if config.kind != "encoder":
        edits = {"top_k": 20, "repetition_penalty": 1.2, "presence_penalty": 0.5}
        tasks.append(generate(9, temperature=1.3, seed=8, logprobs=0, **edits))
        tasks.append(generate(5, attention=replace(looking, kind="scores", top_k=4), ignore_eos=True))
    begin = _drawn(25)

    def words(length: int) -> list[int]:
        return (begin + _drawn(60))[:length]

    lengths = [(random.randrange(8, 60), random.randrange(8, 50)) for _ in tasks]
    if config.kind != "encoder":
        lengths[0] = (80, lengths[0][1])
    return [
        request(uid, words(length), task, encoded=words(num_encoded) if config.encoder else ())
        for uid, (task, (length, num_encoded)) in enumerate(zip(tasks, lengths, strict=True))
    ]


def _drawn(count: int) -> list[int]:
    return [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(count)]


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
    begin = _drawn(length - 30)
    last = AttentionCapture(pairs=((0, 1), (1, 0)), queries=(length - 1, 5))
    tasks: list[Task] = [generate(9, logprobs=4, ignore_eos=True)]
    tasks += [generate(5, temperature=0.9, seed=3, ignore_eos=True), AttentionTask(capture=last)]
    crowd = [request(uid, begin + _drawn(30), task) for uid, task in enumerate(tasks)]
    options = {"num_blocks": len(crowd) * (length // 8 + 4)}
    expected = alone(model, crowd, **options)
    engine = build(model, max_num_seqs=8, max_num_batched_tokens=length // 2 + 9, **options)
    assert_same(run(engine, crowd, arrivals=[0, 0, 3]), expected)
    assert engine.stats().prefix_cache_hits_total > 0


@pytest.mark.parametrize(("name", "dtype"), [("llama-gqa", torch.bfloat16), ("gpt2", torch.float32)], ids=str)
def test_small_steps_preempted_captures_and_a_slow_machine_change_nothing(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny.make_variant(name, tmp_path), dtype)
    # The first three have 5 blocks each and grow to 8: they fit into the tight cache at first, and not in the end.
    growing = [request(100 + uid, _drawn(33), generate(30, ignore_eos=True)) for uid in range(3)]
    crowd = [*growing, *(_longer(each) for each in _crowd_of(model))]
    expected = alone(model, crowd)
    for options in ({"max_num_seqs": 5, "max_num_batched_tokens": 7}, {"max_capture_tokens": 3}):
        assert_same(run(build(model, **options), crowd), expected)
    tight = build(model, num_blocks=16, max_num_batched_tokens=64)
    assert_same(run(tight, crowd), expected)
    assert tight.stats().num_preemptions_total > 0
    slow = build(model)
    sizes = _watch_step_sizes(slow)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=count(0.0, 10.0).__next__))
    assert_same(run(slow, crowd), expected)
    assert sizes[0] == 256
    assert max(sizes[1:]) <= 128 + len(crowd)


def _longer(each: EngineRequest) -> EngineRequest:
    if not isinstance(each.task, GenerateTask):
        return each
    return replace(each, task=replace(each.task, sampling=replace(each.task.sampling, max_tokens=30)))
