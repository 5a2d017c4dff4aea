"""On a CPU an answer has the same bits without other requests, in a batch, in chunks, after a prefix hit and after
preemption.
"""

import random
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from model.network.transformer import Transformer
from server.engine import engine as engine_module
from server.engine.outputs import StepOutput
from server.engine.request import AttentionCapture, AttentionTask, EmbedTask, EngineRequest, Task
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import Answer, alone, assert_same, build, generate, load, request, run


@pytest.fixture(scope="module", autouse=True, params=[pytest.param(1, marks=pytest.mark.nightly), 2], ids=str)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    with num_threads(request.param):
        yield


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    dtype: torch.dtype = request.param
    return dtype


@pytest.fixture(scope="module", params=["llama-gqa", "llama-biases", "gpt2"])
def model(request: pytest.FixtureRequest, dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    return load(tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param)), dtype)


@pytest.fixture(scope="module")
def crowd(model: Transformer) -> list[EngineRequest]:
    """One of each kind of request, with newly drawn prompts; some prompts begin alike."""
    shared = [0, *(random.randrange(2, tiny.VOCAB_SIZE) for _ in range(30))]
    pairs = ((0, 1), (1, 0), (1, 3))
    tasks: list[Task] = [
        generate(20, logprobs=5, ignore_eos=True),
        generate(20, logprobs=5, temperature=0.9, seed=7, top_p=0.9, ignore_eos=True),
        generate(9, temperature=1.3, seed=8, top_k=20, repetition_penalty=1.2, presence_penalty=0.5, logprobs=0),
        generate(20, logprobs=2, prompt_logprobs=3, ignore_eos=True),
        generate(20, attention=AttentionCapture(pairs=pairs), attention_prompt=True, ignore_eos=True),
        generate(5, attention=AttentionCapture(pairs=pairs, kind="scores", top_k=4), ignore_eos=True),
        AttentionTask(capture=AttentionCapture(pairs=pairs)),
        AttentionTask(capture=AttentionCapture(pairs=((0, 0), (0, 2)), queries=(5, 2, 9), keys=(0, 4, 8), kind="dots")),
        AttentionTask(capture=AttentionCapture(pairs=pairs, reduce="mean", dtype="uint8")),
        AttentionTask(capture=AttentionCapture(pairs=pairs, resize=6)),
        EmbedTask(pooling="mean"),
        EmbedTask(pooling="none", normalize=False, layer=1),
        EmbedTask(pooling="last", dimensions=16),
        EmbedTask(pooling="cls", layer=0),
    ]
    lengths = [random.randrange(11, 60) for _ in tasks]
    return [
        request(i, (shared + [random.randrange(2, tiny.VOCAB_SIZE) for _ in range(64)])[:length], task)
        for i, (task, length) in enumerate(zip(tasks, lengths, strict=True))
    ]


@pytest.fixture(scope="module")
def expected(model: Transformer, crowd: list[EngineRequest]) -> dict[int, Answer]:
    return alone(model, crowd)


Expected = dict[int, Answer]


def test_a_crowd_is_answered_as_each_alone_also_from_the_prefix_cache(
    model: Transformer, crowd: list[EngineRequest], expected: Expected
) -> None:
    order = random.sample(crowd, len(crowd))
    engine = build(model)
    assert_same(run(engine, order, arrivals=sorted(random.randrange(12) for _ in order)), expected)
    before = engine.stats().prefix_cache_hits_total
    found = run(engine, [replace(each, uid=each.uid + 100) for each in crowd])
    assert engine.stats().prefix_cache_hits_total > before
    assert_same({uid - 100: answer for uid, answer in found.items()}, expected)


@pytest.mark.parametrize("options", [{"max_num_seqs": 5, "max_num_batched_tokens": 7}, {"max_capture_tokens": 3}])
def test_chunks_and_inspections_that_get_little_of_each_step_change_nothing(
    model: Transformer, crowd: list[EngineRequest], expected: Expected, options: dict[str, int]
) -> None:
    assert_same(run(build(model, **options), crowd), expected)


def test_the_smaller_steps_of_a_slow_machine_change_nothing(
    model: Transformer, crowd: list[EngineRequest], expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, sizes = build(model), list[int]()
    step = slow.step

    def noted() -> StepOutput:
        output = step()
        sizes.append(output.stats.iteration_tokens)
        return output

    monkeypatch.setattr(slow, "step", noted)
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=count(0.0, 10.0).__next__))
    assert_same(run(slow, crowd), expected)
    assert sizes[0] == 256
    assert max(sizes[1:]) <= 128 + len(crowd)


def test_preemption_changes_nothing(model: Transformer, crowd: list[EngineRequest], expected: Expected) -> None:
    engine = build(model, num_blocks=12, max_num_batched_tokens=64)
    assert_same(run(engine, crowd), expected)
    assert engine.stats().num_preemptions_total > 0
