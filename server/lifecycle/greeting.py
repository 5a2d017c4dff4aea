"""Greeting of a server on a terminal: a progress bar while the model loads, and a summary when it is ready."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from lightwell.model.analysis.census import take_census
from lightwell.model.config import ModelConfig
from lightwell.server.config.memory_estimate import kv_bytes_per_token
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.worker_state import WorkerState
from lightwell.server.engine.messages.outputs import EngineInfo
from lightwell.server.observability.logs import is_terminal
from lightwell.server.observability.version import lightwell_version

_INTERVAL = 0.1
"""Seconds between two checks of the workers."""


class Greeting:
    """The greeting of one server. Without a terminal it is silent: the log has the same facts."""

    def __init__(self, settings: Settings, config: ModelConfig, model_id: str, *, can_chat: bool) -> None:
        self.address = ""
        """The address of the server, set before it loads."""
        self._settings = settings
        self._config = config
        self._model_id = model_id
        self._can_chat = can_chat

    @contextlib.asynccontextmanager
    async def around(
        self,
        lifespan: Callable[[object], AbstractAsyncContextManager[None]],
        workers: Sequence[WorkerState],
        app: object,
    ) -> AsyncIterator[None]:
        """Run the lifespan of the application, and greet meanwhile."""
        async with lifespan(app):
            task = asyncio.create_task(self._greet(workers), name="greeting")
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])

    async def _greet(self, workers: Sequence[WorkerState]) -> None:
        if self._settings.log_format == "text":
            with contextlib.suppress(OSError):  # the terminal was closed
                if is_terminal(sys.stderr):
                    await _show_progress(self._model_id, workers)
                while not all(worker.is_ready for worker in workers):
                    await asyncio.sleep(_INTERVAL)
                if sys.stdout.isatty() and workers[0].info is not None:
                    self._print(workers[0].info)

    def _print(self, info: EngineInfo) -> None:
        from rich.console import Console  # imported here: a server without a terminal does not need it
        from rich.text import Text

        console = Console(highlight=False, soft_wrap=True)
        console.print(Text(f"  Lightwell {lightwell_version()}", style="bold"))
        for name, value in self.summary(info).items():
            console.print(Text.assemble((f"  {name:<12}", "cyan"), value))
        console.print(Text(f"\n  {self.example()}\n"))

    def summary(self, info: EngineInfo) -> dict[str, str]:
        """Return the facts about the server, by their names."""
        config, settings = self._config, self._settings
        stored = f", weights stored as {config.stored_as}" if config.stored_as else ""
        quantized = stored if settings.quantize == "none" else f", weights in {settings.quantize}"
        tokens = (info.num_blocks - 1) * info.block_size  # without the null block
        size = tokens * kv_bytes_per_token(config, info.dtype, settings.tensor_parallel)
        return {
            "model": f"{self._model_id} ({config.architecture})",
            "parameters": f"{take_census(config).total:,}",
            "precision": f"{info.dtype}{quantized}, on {info.device}",
            "KV cache": "none" if config.kind == "encoder" else f"{size / 2**20:,.0f} MiB, {tokens:,} tokens",
            "page": f"{self.address}{settings.root_path}/",
            "API": f"{self.address}{settings.root_path}/docs",
        }

    def example(self) -> str:
        """Return a command that sends the model a request."""
        path, input_field = "v1/completions", '"prompt": "Once upon a time"'
        if self._config.kind == "encoder":
            path, input_field = "v1/embeddings", '"input": "Once upon a time"'
        elif self._can_chat:
            path, input_field = "v1/chat/completions", '"messages": [{"role": "user", "content": "Who are you?"}]'
        key = " -H 'Authorization: Bearer KEY'" if self._settings.api_key or self._settings.api_key_file else ""
        body = f'{{"model": {json.dumps(self._model_id)}, {input_field}}}'
        return (
            f"curl {self.address}{self._settings.root_path}/{path}{key} -H 'Content-Type: application/json' -d '{body}'"
        )


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
