"""Greeting of a server on a terminal: a progress bar while its models load, and a summary when they are ready."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from lightwell.model.analysis.census import take_census
from lightwell.server.config.memory_estimate import kv_bytes_per_token
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.worker_state import WorkerState
from lightwell.server.engine.messages.outputs import EngineInfo
from lightwell.server.generation.served_model import ModelFiles
from lightwell.server.observability.logs import is_terminal
from lightwell.server.observability.version import lightwell_version

_INTERVAL = 0.1
"""Seconds between two checks of the workers."""


class Greeting:
    """The summary of one model."""

    def __init__(self, settings: Settings, model: ModelFiles, address: str, workers: Sequence[WorkerState]) -> None:
        self.settings = settings
        self.model_id = model.id
        self.workers = workers
        self.address = f"{address}{settings.root_path}"
        self._model = model

    def summary(self, info: EngineInfo) -> dict[str, str]:
        """Return the facts about the model, by their names."""
        config, settings = self._model.config, self._model.settings
        stored = f", weights stored as {config.stored_as}" if config.stored_as else ""
        quantized = stored if settings.quantize == "none" else f", weights in {settings.quantize}"
        tokens = (info.num_blocks - 1) * info.block_size  # without the null block
        size = tokens * kv_bytes_per_token(config, info.dtype, settings.tensor_parallel)
        return {
            "model": f"{self.model_id} ({config.architecture})",
            "parameters": f"{take_census(config).total:,}",
            "precision": f"{info.dtype}{quantized}, on {info.device}",
            "KV cache": "none" if config.kind == "encoder" else f"{size / 2**20:,.0f} MiB, {tokens:,} tokens",
        }

    def example(self) -> str:
        """Return a command that sends the model a request."""
        path, input_field = "v1/completions", '"prompt": "Once upon a time"'
        if self._model.config.kind == "encoder":
            path, input_field = "v1/embeddings", '"input": "Once upon a time"'
        elif self._model.chat_template is not None:
            path, input_field = "v1/chat/completions", '"messages": [{"role": "user", "content": "Who are you?"}]'
        key = " -H 'Authorization: Bearer KEY'" if self.settings.api_key or self.settings.api_key_file else ""
        body = f'{{"model": {json.dumps(self.model_id)}, {input_field}}}'
        return f"curl {self.address}/{path}{key} -H 'Content-Type: application/json' -d '{body}'"


@contextlib.asynccontextmanager
async def greet(
    lifespan: Callable[[object], AbstractAsyncContextManager[None]], greetings: Sequence[Greeting], app: object
) -> AsyncIterator[None]:
    """Run the lifespan of the application, and greet meanwhile. Without a terminal the greeting is silent: the log has
    the same facts.
    """
    async with lifespan(app):
        task = asyncio.create_task(_greet(greetings), name="greeting")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _greet(greetings: Sequence[Greeting]) -> None:
    if greetings and greetings[0].settings.log_format == "text":
        workers = [worker for each in greetings for worker in each.workers]
        with contextlib.suppress(OSError):  # the terminal was closed
            if is_terminal(sys.stderr):
                await _show_progress(", ".join(each.model_id for each in greetings), workers)
            while not all(worker.is_ready for worker in workers):
                await asyncio.sleep(_INTERVAL)
            if sys.stdout.isatty():
                _print(greetings)


def _print(greetings: Sequence[Greeting]) -> None:
    from rich.console import Console  # imported here: a server without a terminal does not need it
    from rich.text import Text

    console, first = Console(highlight=False, soft_wrap=True), greetings[0]
    console.print(Text(f"  Lightwell {lightwell_version()}", style="bold"))
    facts = [fact for each in greetings if (info := each.workers[0].info) for fact in each.summary(info).items()]
    for name, value in [*facts, ("page", f"{first.address}/"), ("API", f"{first.address}/docs")]:
        console.print(Text.assemble((f"  {name:<12}", "cyan"), value))
    console.print(Text(f"\n  {first.example()}\n"))


async def _show_progress(name: str, workers: Sequence[WorkerState]) -> None:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(
        *Progress.get_default_columns(),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task(f"loading {name}", total=None)
        while not all(worker.is_ready for worker in workers):
            done, total = (sum(each) for each in zip((0, 0), *(w.progress or (0, 0) for w in workers), strict=True))
            bar.update(task, completed=done, total=total or None, refresh=True)
            await asyncio.sleep(_INTERVAL)
