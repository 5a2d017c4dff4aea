"""Measures all rows of the table, one after the other, as far as the time reaches."""

import gc
import statistics
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.checkpoint import random_prompts
from benchmarks.gpu import attention, checks, ours, suites, theirs
from benchmarks.gpu.bars import CROWDS
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.networks import (
    Network,
    key_value_bytes,
    make_ours,
    make_theirs,
    prefill_operations,
    read_ours,
    weight_bytes,
    write_checkpoint,
)
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.report import Decode, Results
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.engine import Engine

_SUITE_SECONDS = 240.0
"""Most seconds of one suite of tests, so that another has some too."""


class Measurement:
    """Measures one plan on one device, into `results`; `save` is called after each row."""

    def __init__(
        self, plan: Plan, device: torch.device, clock: Clock, results: Results, save: Callable[[], None]
    ) -> None:
        self._plan, self._device, self._clock = plan, device, clock
        self._results, self._save = results, save
        self._theirs: dict[int, float] = {}
        """Measured tokens per second of `transformers` by the number of sequences."""

    def numbers(self) -> None:
        plan, device, results = self._plan, self._device, self._results
        self._try(("logits", "graphs", "kernels"), 60, lambda: checks.check_answers(plan, device, results))
        self._try(("bits",), 40, lambda: checks.check_bits(plan, device, results))

    def suites(self, gpu_tests: Sequence[Path], kernel_tests: Sequence[Path], *options: str) -> None:
        """Run the tests that need a card, and the kernels' tests again under memcheck."""
        for key, paths, own in (("gpu tests", gpu_tests, ("-m", "gpu")), ("kernel tests", kernel_tests, ())):
            self._try(
                (key,),
                60,
                lambda key=key, paths=paths, own=own: suites.run_tests(
                    self._results, key, paths, (*own, *options), min(_SUITE_SECONDS, self._clock.left)
                ),
            )
        self._try(
            ("memcheck",), 60, lambda: suites.run_memcheck(self._results, kernel_tests, options, self._clock.left)
        )

    def speed(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            small, large = (self._plan.small.name, self._plan.large.name)
            self._try(("start",), 60, lambda: self._prepare(folder), what=f"{small} by transformers")
            if any(folder.iterdir()):
                self._try(("start",), 60, lambda: self._start(folder))
                self._try((*_keys("small"), "one looks", "all look"), 60, lambda: self._small(folder), what=small)
                self._try(("invariant",), 40, lambda: self._invariant(folder))
                self._try(("mixed",), 40, lambda: self._mixed(folder))
        self._try(("attention",), 10, self._attention)
        self._try((*_keys("large"), "prefill"), 60, self._large, what=large)

    def _try(
        self, keys: tuple[str, ...], needed: float, measure: Callable[[], object], *, what: str | None = None
    ) -> None:
        """Measure some rows if `needed` seconds are left. An error is the result of the rows still missing."""
        what = ", ".join(keys) if what is None else what
        if not self._clock.has(needed, what):
            return
        print(f"{self._clock.elapsed:4.0f} s  {what}", flush=True)
        try:
            measure()
        except Exception as error:
            traceback.print_exc()
            for key in keys:
                if key not in self._results.rows:
                    self._results.put_error(key, error)
        free_memory()
        self._save()

    def _prepare(self, folder: Path) -> None:
        """Write the small network to a folder, and let `transformers` decode with it."""
        plan = self._plan
        reference = make_theirs(plan.small, plan.dtype, self._device, plan.mixed_context)
        write_checkpoint(reference, folder)
        for rows in plan.peer_rows:
            if self._clock.has(20, f"{plan.small.name} by transformers, {rows} at once"):
                self._theirs[rows] = theirs.decode_tokens_per_second(reference, self._prompts(rows), plan.answer)

    def _prompts(self, rows: int) -> list[list[int]]:
        return random_prompts(rows, rows, self._plan.prompt, self._plan.small.sizes["vocab_size"])

    def _start(self, folder: Path) -> None:
        first, again = ours.start_seconds(folder, self._plan, self._device, free_memory)
        self._results.put("start", first, f"{again:.1f} s once compiled")

    def _attention(self) -> None:
        rate = attention.bytes_per_second(self._plan, self._device)
        share = rate / self._results.machine.bytes_per_second
        self._results.put("attention", share, f"{rate / 1e9:.0f} GB/s at {self._plan.rows[1]} sequences")

    def _engine(self, model: Transformer, max_num_seqs: int) -> Engine:
        """Return an engine in which streams only decode."""
        plan = self._plan
        return ours.make_engine(
            model, plan, max_num_seqs=max_num_seqs, max_len=plan.context, max_tokens=plan.batched_tokens
        )

    def _small(self, folder: Path) -> None:
        plan = self._plan
        model = read_ours(folder, plan.dtype, self._device, plan.kernels)
        engine = self._engine(model, max(plan.rows))
        self._decode("small", plan.small, engine, model)
        self._try(("one looks", "all look"), 30, lambda: self._captures(engine))

    def _large(self) -> None:
        plan = self._plan
        model = make_ours(plan.large, plan.dtype, self._device, max(plan.context, plan.long_prompt), plan.kernels)
        self._try(("prefill",), 10, lambda: self._prefill(model))
        self._decode("large", plan.large, self._engine(model, max(plan.rows)), model)

    def _decode(self, size: str, network: Network, engine: Engine, model: Transformer) -> None:
        for crowd, rows in zip(CROWDS, self._plan.rows, strict=True):
            key, measure = (
                f"{size} {crowd}",
                partial(self._decode_rows, f"{size} {crowd}", network, engine, model, rows),
            )
            self._try((key,), 20, measure, what=f"{network.name}, {rows} at once")

    def _decode_rows(self, key: str, network: Network, engine: Engine, model: Transformer, rows: int) -> None:
        plan, prompts, keys = self._plan, self._prompts(rows), self._plan.prompt + self._plan.answer // 2
        rates = [ours.decode_tokens_per_second(engine, prompts, plan.answer) for _ in range(1 + plan.repeats)]
        num_bytes = weight_bytes(model.config, plan.dtype) + rows * key_value_bytes(model.config, plan.dtype, keys)
        found = Decode(
            network=network.name,
            rows=rows,
            tokens_per_second=statistics.median(rates[1:]),
            step_seconds=ours.graph_seconds(engine, plan, rows, keys),
            floor_seconds=num_bytes / self._results.machine.bytes_per_second,
            theirs=self._theirs.get(rows) if network is plan.small else None,
        )
        self._results.decode.append(found)
        alone = found.floor_seconds / found.step_seconds
        self._results.put(key, found.share, f"{found.tokens_per_second:.0f} tokens/s; the graph alone {alone:.0%}")

    def _captures(self, engine: Engine) -> None:
        plan, prompts = self._plan, self._prompts(self._plan.looking_streams)

        def rate(num_looking: int) -> float:
            return ours.decode_tokens_per_second(engine, prompts, plan.looking_answer, num_looking)

        rate(len(prompts))
        ratios: dict[str, list[float]] = {"one looks": [], "all look": []}
        for _ in range(plan.looking_runs):
            without = rate(0)
            ratios["one looks"].append(rate(1) / without)
            ratios["all look"].append(rate(len(prompts)) / without)
        for key, found in ratios.items():
            self._results.put(key, statistics.median(found), f"runs {', '.join(f'{each:.2f}' for each in found)}")

    def _invariant(self, folder: Path) -> None:
        plan, rows = self._plan, self._plan.rows[1]
        engines = [
            self._engine(read_ours(folder, plan.dtype, self._device, plan.kernels, batch_invariant=is_invariant), rows)
            for is_invariant in (True, False)
        ]
        ratios = []
        for _ in range(1 + plan.repeats):
            rates = [ours.decode_tokens_per_second(each, self._prompts(rows), plan.answer) for each in engines]
            invariant, default = rates
            ratios.append(invariant / default)
        self._results.put("invariant", statistics.median(ratios[1:]), f"{invariant:.0f} of {default:.0f} tokens/s")

    def _mixed(self, folder: Path) -> None:
        """Decode streams while prompts arrive: first to compile, then to measure."""
        plan = self._plan
        engine = ours.make_engine(
            read_ours(folder, plan.dtype, self._device, plan.kernels),
            plan,
            max_num_seqs=2 * plan.mixed_streams,
            max_len=plan.mixed_context,
            max_tokens=plan.mixed_tokens,
        )
        vocabulary = plan.small.sizes["vocab_size"]
        ours.mixed_steps(engine, plan, vocabulary)
        found = ours.mixed_steps(engine, plan, vocabulary)
        median, p99 = found.quantile(0.5), found.quantile(0.99)
        detail = f"{1e3 * p99:.2f} over {1e3 * median:.2f} ms, {found.with_prompts} of {len(found.seconds)} steps"
        self._results.put("mixed", p99 / median, f"{detail} with a part of a prompt")

    def _prefill(self, model: Transformer) -> None:
        took = ours.prefill_seconds(model, self._plan)
        operations = prefill_operations(model.config, self._plan.long_prompt)
        floor = operations / self._results.machine.operations_per_second
        self._results.put("prefill", floor / took, f"{1e3 * took:.1f} ms")


def _keys(size: str) -> tuple[str, ...]:
    return tuple(f"{size} {crowd}" for crowd in CROWDS)


def free_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
