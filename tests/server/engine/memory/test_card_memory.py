"""Division of a GPU's memory, with the numbers of fake GPUs and with networks that run on a CPU."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightwell.model.batch import Batch
from lightwell.model.checkpoint.folder import PACKAGED, ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine import loading
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.execution.cuda_graphs import kept_bytes
from lightwell.server.engine.execution.profile_run import ProfileRun
from lightwell.server.engine.loading import measure
from lightwell.server.engine.memory.card_memory import CAPTURE_BYTES, CardMemory, CardUse, no_room_for_weights
from lightwell.server.engine.memory.kv_cache_size import fitting_model_len, num_cache_blocks
from tests import tiny
from tests.server.engine.driving import Load

GIB, MIB = 1 << 30, 1 << 20
CPU = torch.device("cpu")
ALONE = CardUse(
    total=80 * GIB, utilization=0.9, free=64 * GIB, weights=15 * GIB, activations=2 * GIB, other=GIB // 2, graphs=GIB
)
"""Memory of a GPU without other processes: CUDA takes half a GiB of it, and libraries another half."""


@dataclass
class FakeCard:
    """A GPU with fixed numbers of bytes: each step states the bytes of its tensors, which are freed after it."""

    size: int = 80 * GIB
    others: int = 0
    weights: int = 0
    kept: int = 0
    """Bytes that libraries other than torch have taken."""
    highest: int = 0
    cached: int = 0

    def total(self) -> int:
        return self.size

    def free(self) -> int:
        return self.size - self.others - self.kept - self.reserved()

    def reserved(self) -> int:
        return self.weights + self.cached

    def allocated(self) -> int:
        return self.weights

    def peak(self) -> int:
        return self.highest

    def reset_peak(self) -> None:
        self.highest = self.weights

    def release(self) -> None:
        self.cached = 0

    def step(self, num_bytes: int, libraries: int = 0) -> None:
        self.highest = max(self.highest, self.weights + num_bytes)
        self.cached = num_bytes
        self.kept += libraries


def test_the_cache_gets_what_the_share_of_the_card_and_other_processes_leave() -> None:
    assert ALONE.kv_cache == 72 * GIB - (15 + 2 + 1) * GIB - GIB // 2
    assert not ALONE.is_short_of_free
    assert replace(ALONE, utilization=0.5).kv_cache == ALONE.kv_cache - 32 * GIB
    shared = replace(ALONE, free=20 * GIB)
    assert shared.is_short_of_free
    assert shared.kv_cache == replace(shared, utilization=1.0).kv_cache == (20 - 2 - 1) * GIB


def test_the_line_of_a_start_has_every_figure() -> None:
    shares = ("15.0 GiB of weights", "2.0 GiB of peak", "512 MiB of lib")
    assert all(figure in str(ALONE) for figure in ("72.0 GiB", "80.0 GiB", "utilization 0.9", *shares)), str(ALONE)


def test_peaks_are_measured_step_by_step_beside_the_weights() -> None:
    card = FakeCard(others=GIB)
    memory = CardMemory(card, 0.9)
    assert memory.before_loading().kv_cache == 72 * GIB
    card.weights, card.cached = 15 * GIB, 3 * GIB  # the bytes that loading left in torch's cache are freed first
    use = memory.measure(lambda: card.step(2 * GIB, libraries=GIB // 2), lambda: card.step(GIB), 100 * MIB)
    assert (use.weights, use.activations, use.other) == (15 * GIB, 2 * GIB, GIB // 2)
    assert use.graphs == CAPTURE_BYTES + GIB + 100 * MIB
    assert use.free == (80 - 1 - 15) * GIB - GIB // 2
    without = CardMemory(card, 0.9).measure(lambda: card.step(2 * GIB), None, 100 * MIB)
    assert (without.graphs, without.other) == (CAPTURE_BYTES, 0)


def test_a_step_that_finds_no_memory_is_refused_with_the_settings_that_bound_it() -> None:
    card = FakeCard(weights=70 * GIB)

    def prefill() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    with pytest.raises(ModelLoadError, match=r"70\.0 GiB.*10\.0 GiB.*--max-num-batched-tokens") as caught:
        CardMemory(card, 0.9).measure(prefill, None, 0)
    assert "\n" not in str(caught.value)


def test_weights_that_find_no_memory_are_refused_with_the_files_that_would_fit() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory.\nmore")
    told = no_room_for_weights(8_000_000_000, torch.bfloat16, 11 * GIB, error)
    assert re.search(r"into the 11\.0 GiB .* 14\.9 GiB in bfloat16, 7\.9 GiB in .* would fit: .*8 bits.*4 bits", told)
    assert "14.9 GiB)" not in told.split("would fit")[1]
    assert "choose a smaller one" in no_room_for_weights(8_000_000_000, torch.bfloat16, 5 * GIB, error)


def test_a_model_whose_weights_find_no_memory_ends_the_start_with_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading, "load_model", fail)
    with pytest.raises(ModelLoadError, match="the weights do not fit"):
        loading.load(EngineConfig(model=PACKAGED))


def test_graphs_keep_what_the_largest_leaves_and_the_drivers_part_of_each() -> None:
    config = read_config(PACKAGED)
    row = 4 * config.vocab_size + 2 * config.hidden_size
    few, many = (kept_bytes(config, torch.bfloat16, rows, 8) for rows in (8, 16))
    parts = many - few - 8 * row  # the bytes of one more number of rows
    assert 0 < parts < few
    assert kept_bytes(config, torch.bfloat16, 256, 8) == few + (256 - 8) * row + 31 * parts  # 16, 24 ... 256
    longer = kept_bytes(config, torch.bfloat16, 8, 128) - few - 120 * 2 * config.hidden_size
    assert 0 < longer < parts  # 64 and 128 instead of 8, without heads


# ---- blocks


def blocks(use: CardUse, **changes: int) -> int:
    config = EngineConfig(model=PACKAGED, **changes)
    return num_cache_blocks(config, read_config(PACKAGED), torch.bfloat16, torch.device("cuda"), 512, use)


def test_blocks_are_as_many_as_fit_and_no_more_than_all_sequences_can_fill() -> None:
    block = KVCache.bytes_per_block(read_config(PACKAGED), 32, torch.bfloat16)
    room = replace(ALONE, weights=0, activations=0, other=0, graphs=0, utilization=1.0)
    assert blocks(replace(room, free=100 * block), max_num_seqs=1000) == 101
    assert blocks(room, max_num_seqs=3) == 3 * 16 + 1
    assert blocks(replace(room, free=0), kv_cache_bytes=20 * block) == 21  # which wins
    with pytest.raises(ModelLoadError, match=r"^--kv-cache-memory .* 90\.0 GiB, .*of the GPU, 80\.0 GiB; at most"):
        blocks(room, kv_cache_bytes=90 * GIB)


@pytest.mark.parametrize(
    ("use", "parts"),
    [
        (replace(ALONE, utilization=0.2), ["--gpu-memory-utilization 0.2)", "16.0 GiB of the card's", "at least 0.24"]),
        (replace(ALONE, utilization=0.23), ["at least 0.24"]),
        (replace(ALONE, free=2 * GIB), ["processes have left 2.0 GiB", "end one that has 1.0 GiB", "--max-num-seqs"]),
        (replace(ALONE, total=16 * GIB, free=4 * GIB), ["no share is enough", "--max-model-len"]),
    ],
)
def test_a_card_without_room_for_one_context_is_refused_with_what_would_do(use: CardUse, parts: list[str]) -> None:
    with pytest.raises(ModelLoadError, match="fewer than one context of 512") as caught:
        blocks(use)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert blocks(replace(ALONE, utilization=0.24)) > 16, "the named share is enough"


def test_auto_is_the_longest_context_that_fits_and_an_error_names_it() -> None:
    model, config = read_config(PACKAGED), EngineConfig(model=PACKAGED)
    block = KVCache.bytes_per_block(model, 32, torch.bfloat16)
    room = replace(ALONE, weights=0, activations=0, other=0, graphs=0, utilization=1.0)
    for free, expected in ((100 * block, 512), (7 * block + 5, 7 * 32), (0, 32)):
        assert fitting_model_len(config, model, torch.bfloat16, 512, replace(room, free=free)) == expected
    with pytest.raises(ModelLoadError, match="--max-model-len 224 fits, and auto chooses it"):
        blocks(replace(room, free=7 * block))


def test_an_encoder_needs_no_cache_but_room_for_its_steps(tmp_path: Path) -> None:
    config = read_config(tiny.make_variant("bert", tmp_path))
    engine = EngineConfig(model=tmp_path)
    assert num_cache_blocks(engine, config, torch.float32, CPU, 40, ALONE) == 2
    with pytest.raises(ModelLoadError, match=r"--gpu-memory-utilization 0\.2.*set it to at least 0\.24"):
        num_cache_blocks(engine, config, torch.float32, CPU, 40, replace(ALONE, utilization=0.2))


# ---- the steps


Steps = list[tuple[list[int], int]]
"""The rows of each sequence of a step, and the largest number of keys of a sequence."""
SHARED, LONGEST = ([11, 11, 10], 11), ([32], 40)


@pytest.fixture
def watch(model_of: Load, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Transformer, Steps]]:
    """A function that returns a network and the list of its steps, which grows as they run."""

    def watched(name: str) -> tuple[Transformer, Steps]:
        model, steps = model_of(name), []

        def noting(run: Callable[..., Any]) -> Callable[..., Any]:
            def note(batch: Batch, *cache: KVCache) -> Any:
                steps.append(([span.num_rows for span in batch.spans], max(span.num_keys for span in batch.spans)))
                return run(batch, *cache)

            return note

        monkeypatch.setattr(model, "forward", noting(model.forward))
        monkeypatch.setattr(model, "encode", noting(model.encode))
        return model, steps

    return watched


@pytest.mark.every_family
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", [SHARED, LONGEST]),
        ("gemma2", [SHARED, LONGEST]),
        ("bert", [([40], 40), SHARED]),  # the input of an encoder is never split
        ("t5", [([40], 40), SHARED, SHARED, LONGEST]),
    ],
)
def test_the_largest_steps_run_in_a_cache_of_two_blocks(
    name: str, expected: Steps, watch: Callable[[str], tuple[Transformer, Steps]]
) -> None:
    model, steps = watch(name)
    config = EngineConfig(model=PACKAGED, max_num_seqs=3, max_num_batched_tokens=32, block_size=8)
    use = measure(CardMemory(FakeCard(), 0.9), model, config, 40)
    assert steps == expected
    assert use.graphs == CAPTURE_BYTES, "a CPU has no graphs"


@pytest.mark.parametrize(("most_tokens", "piece"), [(32, 30), (3, None), (2100, 40)])
def test_steps_in_graphs_have_every_sequence_at_the_end_of_its_context(
    most_tokens: int, piece: int | None, watch: Callable[[str], tuple[Transformer, Steps]]
) -> None:
    model, steps = watch("llama")
    sizes = {"max_model_len": 40, "max_num_seqs": 3, "max_num_batched_tokens": most_tokens}
    ProfileRun(model=model, **sizes, block_size=8).graphs()
    assert steps == [([1, 1, 1], 40)] + [([each, 1, 1], 40) for each in (piece,) if each]
