"""The engine in process: its results, its counters and the ends of requests."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.request import AttentionCapture, AttentionTask, EmbedTask, Task
from tests import tiny
from tests.server.engine.driving import build, generate, load, request, run

PROMPT = [0, *range(20, 45)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant("llama-gqa", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Transformer:
    return load(folder)


def test_selections_and_reductions_are_those_of_the_whole(model: Transformer) -> None:
    pairs = tuple((layer, head) for layer in (1, 0) for head in range(4))
    options: list[dict[str, Any]] = [
        {"pairs": pairs},
        {"pairs": pairs[::-1], "queries": (20, 3), "keys": (2, 0, 19)},
        {"pairs": pairs, "top_k": 5},
        {"pairs": pairs, "reduce": "mean"},
        {"pairs": pairs, "reduce": "max"},
    ]
    tasks = [AttentionTask(capture=AttentionCapture(**each)) for each in options]
    answers = run(build(model), [request(i, PROMPT, task) for i, task in enumerate(tasks)])
    whole, part, largest, mean, most = (answers[i].array("attention") for i in range(5))
    assert (part == whole[::-1][:, [20, 3]][:, :, [2, 0, 19]]).all()
    indices = answers[2].array("attention.indices")
    assert (largest[:, 10] == np.sort(whole[:, 10])[:, ::-1][:, :5]).all()
    assert (np.take_along_axis(whole, indices.astype(np.int64), 2)[:, 10] == largest[:, 10]).all()
    assert (indices[:, 1, 2:] == -1).all(), "the row has two keys"
    assert (largest[:, 1, 2:] == 0).all()
    of_layers = whole.reshape(2, 4, len(PROMPT), len(PROMPT))
    np.testing.assert_allclose(mean, of_layers.mean(1), atol=1e-6)
    assert (most == of_layers.max(1)).all()


@pytest.mark.parametrize(("size", "queries"), [(1, None), (5, None), (5, (11, 3, 24, 0, 7)), (40, (11, 3, 24, 0, 7))])
def test_a_thumbnail_is_the_same_however_its_prompt_was_cut(
    model: Transformer, size: int, queries: tuple[int, ...] | None
) -> None:
    pairs = ((1, 1), (0, 2), (1, 0))
    wanted = [
        request(i, PROMPT, AttentionTask(capture=AttentionCapture(pairs=pairs, queries=queries, resize=n)))
        for i, n in enumerate((None, size))
    ]
    answers = run(build(model), wanted)
    expected = torch.nn.functional.adaptive_avg_pool2d(torch.tensor(answers[0].array("attention")), (size, size))
    np.testing.assert_allclose(answers[1].array("attention"), expected, atol=1e-6)
    in_chunks = run(build(model, max_num_seqs=1, max_num_batched_tokens=4), wanted[1:])
    assert in_chunks[1] == answers[1]


@pytest.mark.parametrize(
    ("task", "most"),
    [
        (EmbedTask(pooling="mean"), 64 * 48 * 4 + 48 * 8),
        (EmbedTask(pooling="last"), 48 * 4),
        (EmbedTask(pooling="none", dimensions=2), 120 * 2 * 4),
        (AttentionTask(capture=AttentionCapture(pairs=((0, 0),), resize=3)), 3 * 3 * 4),
    ],
)
def test_an_answer_under_way_holds_no_more_of_a_long_prompt_than_it_needs(
    model: Transformer, task: Task, most: int
) -> None:
    engine = build(model, max_num_seqs=1, max_num_batched_tokens=17)
    engine.add_request(request(0, (PROMPT * 5)[:120], task))
    held = [0]
    while engine.has_work:
        engine.step()
        held.append(engine.capture_bytes)
    assert 0 < max(held) <= most


def test_one_step_mixes_prefill_decode_capture_and_embedding(model: Transformer) -> None:
    engine = build(model, enable_prefix_caching=False)
    engine.add_request(request(0, PROMPT, generate(30, ignore_eos=True)))
    engine.step()
    engine.step()
    capture = AttentionCapture(pairs=((0, 0),))
    engine.add_request(request(1, PROMPT[:7], generate(3, attention=capture, ignore_eos=True)))
    engine.add_request(request(2, PROMPT[:9], AttentionTask(capture=capture)))
    engine.add_request(request(3, PROMPT[:11], EmbedTask()))
    before = engine.stats()
    step = engine.step()
    assert step.stats.engine_steps_total == before.engine_steps_total + 1
    assert step.stats.computed_tokens_total == before.computed_tokens_total + 1 + 7 + 9 + 11
    assert {output.uid for output in step.outputs if output.token_id is not None} == {0, 1}
    shapes = {(output.uid, name): array.shape for output in step.outputs for name, array in output.tensors.items()}
    assert shapes == {
        (1, "attention"): (1, 7),
        (2, "attention"): (1, 9, 9),
        (3, "embedding"): (model.config.hidden_size,),
    }


def test_rows_of_generated_tokens_need_no_second_forward_pass(model: Transformer) -> None:
    for capture in (None, AttentionCapture(pairs=((0, 0), (1, 3)))):
        engine = build(model)
        answer = run(engine, [request(0, PROMPT, generate(10, attention=capture, ignore_eos=True))])[0]
        assert engine.stats().computed_tokens_total == len(PROMPT) + len(answer.tokens) - 1


def test_counters_add_up(model: Transformer) -> None:
    engine = build(model)
    answers = run(engine, [request(i, PROMPT[: 5 + i], generate(6, seed=i, temperature=1.0)) for i in range(6)])
    stats = engine.stats()
    assert stats.prompt_tokens_total == sum(5 + i for i in range(6))
    assert stats.generation_tokens_total == sum(len(answer.tokens) for answer in answers.values())
    assert stats.num_requests_running == stats.num_requests_waiting == 0
    assert stats.kv_cache_usage_ratio == 0


def test_an_end_token_stops_and_min_tokens_delays_it(model: Transformer) -> None:
    free = run(build(model), [request(0, PROMPT, generate(20, ignore_eos=True))])[0].tokens
    end = free[3]
    first = free.index(end)
    stopped = run(build(model), [request(0, PROMPT, generate(20, stop_token_ids=(end,)))])[0]
    assert (stopped.tokens, stopped.finish_reason) == (free[: first + 1], "stop")
    later = run(build(model), [request(0, PROMPT, generate(20, stop_token_ids=(end,), min_tokens=first + 3))])[0]
    assert len(later.tokens) >= first + 3


def test_an_aborted_request_frees_its_blocks_at_once_and_is_reported(model: Transformer) -> None:
    engine = build(model)
    engine.add_request(request(0, PROMPT, generate(50, ignore_eos=True)))
    engine.step()
    engine.abort(0)
    assert engine.stats().kv_cache_usage_ratio == 0
    assert [output.finish_reason for output in engine.step().outputs] == ["abort"]
    engine.abort(0)  # a second one has nothing to end
    assert not engine.has_work


def test_a_request_past_its_deadline_ends(model: Transformer) -> None:
    engine = build(model)
    engine.add_request(request(0, PROMPT, generate(50, ignore_eos=True), deadline=time.monotonic()))
    assert [output.finish_reason for output in engine.step().outputs] == ["deadline"]


def test_a_request_that_cannot_be_answered_is_refused_or_ends_and_the_next_one_runs(model: Transformer) -> None:
    engine, size = build(model, num_blocks=6), model.config.vocab_size
    refused = [
        ([*PROMPT, token], 3, f"there is no token {token}; 0 to {size - 1} are") for token in (-1, size, 1 << 40)
    ]
    for prompt, max_tokens, complaint in [(PROMPT, 50, "KV cache holds 40 tokens"), *refused]:
        with pytest.raises(ValueError, match=complaint):
            engine.add_request(request(0, prompt, generate(max_tokens)))
        assert not engine.has_work
    capture = AttentionCapture(pairs=((0, 0),), top_k=1 << 44)  # 16 TiB per row, more than a machine can allocate
    engine.add_request(request(0, PROMPT, AttentionTask(capture=capture)))
    assert [output.finish_reason for output in engine.step().outputs] == ["memory"]
    assert run(engine, [request(1, PROMPT, generate(3, ignore_eos=True))])[1].finish_reason == "length"


@pytest.mark.parametrize(
    ("dtype", "asked", "invariant"),
    [
        ("float32", None, True),
        ("bfloat16", None, True),
        ("float32", False, False),
        ("float16", None, False),
        ("float16", True, True),
    ],
)
def test_an_engine_from_a_folder_says_whether_its_answers_depend_on_the_batch(
    dtype: str, asked: bool | None, invariant: bool, folder: Path
) -> None:
    config = EngineConfig(model=folder, dtype=dtype, batch_invariant=asked, max_model_len=64, threads=1)
    engine = Engine.from_folder(config)
    assert (engine.info.dtype, engine.info.max_model_len, engine.info.batch_invariant) == (dtype, 64, invariant)
    assert run(engine, [request(0, PROMPT, generate(3, ignore_eos=True))])[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"quantize": "int2"}, "quantize is 'int2'; expected one of none, int8, int4, fp8"),
        ({"quantize": "fp8"}, "quantize is 'fp8', which needs a GPU, and the device is cpu; int8, int4 and none are"),
        (
            {"quantize": "int8", "dtype": "float64"},
            "quantize is 'int8', which needs dtype float32, bfloat16 or float16, not float64",
        ),
        (
            {"kv_cache_bytes": 100 << 40},
            r"--kv-cache-memory 109951162777600 \(bytes\), 102400\.0 GiB, is more than the free memory of this machine "
            r"or its container, \d+(\.\d)? [GM]iB; at most that is accepted",
        ),
        (
            {"kv_cache_bytes": 8 << 20, "max_num_seqs": 1 << 40},
            r"lower --max-num-batched-tokens \(2048\), --max-num-seqs \(1099511627776\)",
        ),
    ],
)
def test_a_start_that_cannot_succeed_is_refused_with_what_is_accepted(
    options: dict[str, Any], complaint: str, folder: Path
) -> None:
    with pytest.raises(ModelLoadError, match=complaint):
        Engine.from_folder(EngineConfig(model=folder, threads=1, **options))


def test_a_cache_smaller_than_one_context_is_refused_with_the_size_given_and_the_size_needed(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"--kv-cache-memory 1000 .*at least \d+") as refused:
        Engine.from_folder(EngineConfig(model=folder, kv_cache_bytes=1000, threads=1))
    needed = int(str(refused.value).rpartition("at least ")[2].split()[0])
    Engine.from_folder(EngineConfig(model=folder, kv_cache_bytes=needed, threads=1))  # that much is enough
    with pytest.raises(ValueError, match="--kv-cache-memory"):
        Engine.from_folder(EngineConfig(model=folder, kv_cache_bytes=needed - 1, threads=1))


def test_a_start_says_how_much_memory_the_cache_takes_and_which_flag_lowers_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        Engine.from_folder(EngineConfig(model=folder, kv_cache_bytes=8 << 20, threads=1))
    (line,) = [line for line in caplog.messages if line.startswith("the KV cache has ")]
    assert re.fullmatch(r"the KV cache has 8 MiB for \d+ tokens: a smaller --kv-cache-memory lowers it", line)
