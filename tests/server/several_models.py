"""An application with several models around fake engines, and the loader of these models, which a test holds back or
lets fail.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightwell.model.config import ModelConfig
from lightwell.server.config.auth.keys import Keyring, hash_of
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.lora_registry import LoraRegistry
from lightwell.server.generation.model_list import ModelList, ModelSlot
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.http.errors import Unavailable
from lightwell.server.observability.metrics import Metrics, of_engine
from tests.server.fake_client import FakeEngine
from tests.server.serving import (
    TEMPLATE,
    Site,
    site_of,
    tiny_classifier,
    tiny_config,
    tiny_encoder,
    tiny_files,
    tiny_masked_lm,
    write_tokenizer,
)

KINDS: dict[str, tuple[ModelConfig, str | None]] = {
    "text": (tiny_config(), None),
    "chat": (tiny_config(), TEMPLATE),
    "embed": (tiny_encoder(), None),
    "sparse": (tiny_masked_lm(), None),
    "rerank": (tiny_classifier(), None),
    "labels": (tiny_classifier("GOOD", "BAD"), None),
}
"""The config and the chat template of a model of each kind."""


@dataclass
class FakeLoader:
    """Loads models of `KINDS`: the kind is the first word of the last part of a model's first name."""

    folder: Path
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    """Events that loads wait for, by the first name of the model."""
    failures: dict[str, Exception] = field(default_factory=dict)
    """Errors of loads."""
    unreadable: dict[str, Exception] = field(default_factory=dict)
    """Errors of reading the files."""
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    """The engines of loaded models."""
    num_loads: Counter[str] = field(default_factory=Counter)
    most_loaded: int = 9
    is_draining: bool = False

    def read(self, slot: ModelSlot) -> ModelFiles:
        if slot.id in self.unreadable:
            raise self.unreadable[slot.id]
        found = re.match("[a-z]+", slot.id.rpartition("/")[2])
        assert found is not None
        config, template = KINDS[found[0]]
        return tiny_files(self.folder, slot.settings, slot.id, template, config)

    async def start(self, slot: ModelSlot, files: ModelFiles) -> ServedModel:
        self.num_loads[slot.id] += 1
        if slot.id in self.gates:
            await self.gates[slot.id].wait()
        if self.is_draining:
            raise Unavailable("The server is shutting down.", code="draining", retry_after=1)
        if slot.id in self.failures:
            raise self.failures[slot.id]
        assert slot.id not in self.engines, "a model is loaded twice"
        assert len(self.engines) < self.most_loaded, "too many models are loaded"
        engine = self.engines[slot.id] = FakeEngine(
            config=files.config, adapters=LoraRegistry(slot.settings, (), lambda worker, message: None)
        )
        return ServedModel.of(files, engine, slot.metrics)  # type: ignore[arg-type]  # it has the client's methods

    async def stop(self, slot: ModelSlot) -> None:
        engine = self.engines.pop(slot.id, None)
        assert engine is None or all(each.handle.is_closed for each in engine.submitted), "a request was running"


@dataclass
class SeveralModels:
    """The application, and the loader of its models."""

    site: Site
    loader: FakeLoader

    @property
    def models(self) -> ModelList:
        return self.site.context.models

    @property
    def loaded(self) -> set[str]:
        return set(self.loader.engines)

    async def complete(self, model: str | None, **more: Any) -> Any:
        """Return the answer to a short prompt."""
        return await self.site.post("/v1/completions", {"model": model, "prompt": "ab", "max_tokens": 2, **more})

    async def running(self, model: str, gate: asyncio.Event) -> "asyncio.Task[Any]":
        """Return a request that runs on a loaded model until the gate opens."""
        engine = self.loader.engines[model]
        engine.gate, before = gate, len(engine.submitted)
        task = asyncio.create_task(self.complete(model))
        await until(lambda: len(engine.submitted) > before)
        engine.gate = None
        return task

    async def states(self) -> dict[str, str]:
        """Return the state of each model, by its first name."""
        answer = await self.site.http.get("/health/ready")
        states: dict[str, str] = answer.json()["models"]
        return states


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until the condition is true."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0)


@asynccontextmanager
async def several(
    folder: Path,
    *names: str | Sequence[str],
    most_loaded: int = 9,
    api_key: Sequence[str] = (),
    api_key_file: Path | None = None,
    settings: dict[str, dict[str, Any]] | None = None,
    scan: Callable[[], Iterable[str]] | None = None,
    **options: Any,
) -> AsyncIterator[SeveralModels]:
    """Run an application with models of these names, none of them loaded.

    names: of each model; several names of one model are a sequence. settings: of models, by their first names.
    """
    write_tokenizer(folder)
    metrics, of_server = Metrics(), Settings(**options)
    loader = FakeLoader(folder, most_loaded=most_loaded)

    def slot(names: Sequence[str]) -> ModelSlot:
        own = metrics.of_model(names[0])

        def watched() -> Any:
            engine = loader.engines.get(names[0])
            return () if engine is None else of_engine(engine.stats(), engine.counts, engine.worker_numbers())

        own.watch(watched)
        own_settings = Settings(**options, **(settings or {}).get(names[0], {}))
        return ModelSlot(own_settings, names, own, root=f"/models/{names[0]}")

    models = ModelList(
        [slot([each] if isinstance(each, str) else each) for each in names],
        loader,
        scan=None if scan is None else lambda: [slot([name]) for name in scan()],
        most_loaded=most_loaded,
    )
    keys = Keyring(tuple(map(hash_of, api_key)), api_key_file)
    site = site_of(models, FakeEngine(), of_server, metrics, keys)
    async with site.http:
        yield SeveralModels(site, loader)
