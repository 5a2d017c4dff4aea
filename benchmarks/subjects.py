"""The subjects of a measurement: servers with prompts of their model, `transformers.generate` with a static batch, and
OpenVINO GenAI in a process of its own.

All are started first, then measured in turn. A peer's server is stopped (SIGSTOP) while others are measured, so that
it uses no CPU. Lightwell stays idle instead, because its worker has a watchdog.
"""

import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.checkpoint import random_prompts
from benchmarks.load import Load, Timeline, closed_loop, run
from benchmarks.peers.engines import (
    ENGINES,
    HERE,
    OURS_BFLOAT16,
    STORED,
    Absent,
    Engine,
    Setup,
    install,
    lightwell_bfloat16,
)
from benchmarks.peers.lines import Ask, asked
from lightwell.model.checkpoint.folder import GGUF_NAME
from tests.support.processes import ServerFailed

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
STATIC, GENAI = "transformers.generate", "openvino-genai"

Traffic = Callable[[str, int, Sequence[dict[str, Any]]], Coroutine[Any, Any, Load]]
"""Sends bodies to a host and port."""


@dataclass(frozen=True)
class Figures:
    tokens_per_second: float
    timelines: Sequence[Timeline] = ()
    """Timelines of the requests that were streamed."""


class Subject(Protocol):
    @property
    def name(self) -> str: ...
    def measure(self, concurrency: int, requests: int, seed: int, prompt_tokens: int = PROMPT_TOKENS) -> Figures:
        """Measure `requests` requests, `concurrency` at a time; no two seeds have the same prompts."""


@dataclass(frozen=True)
class Served:
    engine: Engine
    vocabulary: int

    @property
    def name(self) -> str:
        return self.engine.name

    def measure(self, concurrency: int, requests: int, seed: int, prompt_tokens: int = PROMPT_TOKENS) -> Figures:
        load = self.drive(self.bodies(requests, seed, prompt_tokens), partial(closed_loop, concurrency=concurrency))
        return Figures(load.tokens_per_second, load.timelines)

    def drive(self, bodies: Sequence[dict[str, Any]], traffic: Traffic) -> Load:
        """Run its turn with these requests. Raises RuntimeError where it reads or writes other numbers of tokens
        than requested: short answers would make the figures flatter than they are.
        """
        self.engine.resume()
        try:
            load = run(traffic(self.engine.server.host, self.engine.server.port, bodies))
        finally:
            self.engine.pause()
        asked = {(len(body["prompt"]), body["max_tokens"]) for body in bodies}
        counts = {(timeline.prompt_tokens, timeline.completion_tokens) for timeline in load.timelines}
        if counts - asked:
            raise RuntimeError(f"{self.name}: tokens in and out are {counts}, asked for were {asked}")
        return load

    def bodies(
        self, count: int, seed: int, prompt_tokens: int = PROMPT_TOKENS, output_tokens: int = OUTPUT_TOKENS
    ) -> list[dict[str, Any]]:
        prompts = random_prompts(count, seed, prompt_tokens, self.vocabulary)
        asked = {"model": self.engine.model, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        return [{**asked, "prompt": prompt} for prompt in prompts]


@dataclass(frozen=True)
class StaticBatch:
    """`transformers.generate` or OpenVINO GenAI, in a process that waits when it has nothing to do."""

    ask: Ask
    vocabulary: int
    name: str = STATIC

    def measure(self, concurrency: int, requests: int, seed: int, prompt_tokens: int = PROMPT_TOKENS) -> Figures:
        rows = random_prompts(requests, seed, prompt_tokens, self.vocabulary)
        batches = [rows[start : start + concurrency] for start in range(0, requests, concurrency)]
        seconds = sum(self.ask({"prompts": batch, "max_tokens": OUTPUT_TOKENS})["seconds"] for batch in batches)
        return Figures(requests * OUTPUT_TOKENS / seconds)


@contextmanager
def static_batch(setup: Setup) -> Iterator[StaticBatch]:
    if setup.dtype in ("int8", STORED):
        raise Absent("it has no quantised weights without another library")
    with asked("static_batch", setup.folder, "--dtype", setup.dtype) as ask:
        yield StaticBatch(ask, vocabulary_of(setup.folder))


@contextmanager
def openvino_genai(setup: Setup) -> Iterator[StaticBatch]:
    if setup.dtype != STORED:
        raise Absent("it reads checkpoints only after a conversion, and GGUF files as they are")
    installed = setup.home / "openvino"
    install(HERE / "install_onnxruntime.sh", installed, "openvino")
    with asked("openvino_genai", setup.folder / GGUF_NAME, environment={"PYTHONPATH": str(installed)}) as ask:
        yield StaticBatch(ask, vocabulary_of(setup.folder), GENAI)


@contextmanager
def served(start: Callable[[Setup], AbstractContextManager[Engine]], setup: Setup) -> Iterator[Served]:
    """Run an engine that waits for its turn, and may run when it is to end."""
    with start(setup) as engine:
        engine.pause()
        try:
            yield Served(engine, vocabulary_of(setup.folder))
        finally:
            engine.resume()


IN_PROCESS = {STATIC: static_batch, GENAI: openvino_genai}


@contextmanager
def all_of(names: Sequence[str], setup: Setup) -> Iterator[list[Subject]]:
    """Start the available engines of `names`, and our bfloat16 next to int8. Print why an engine is not available."""
    starts: list[tuple[str, AbstractContextManager[Subject]]] = [
        (name, IN_PROCESS[name](setup) if name in IN_PROCESS else served(ENGINES[name], setup)) for name in names
    ]
    if setup.dtype == "int8" and "lightwell" in names:
        starts.append((OURS_BFLOAT16, served(lightwell_bfloat16, setup)))
    with ExitStack() as running:
        subjects = []
        for name, start in starts:
            try:
                subjects.append(running.enter_context(start))
            except (Absent, ServerFailed) as error:
                print(f"{name} ({setup.dtype}) is not in the table: {error}", flush=True)
        yield subjects


def vocabulary_of(folder: Path) -> int:
    size: int = json.loads((folder / "config.json").read_text())["vocab_size"]
    return size
