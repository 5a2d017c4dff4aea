"""The models of a server: the one that a request means, and their loading and unloading. Independent of processes.

A model is loaded at the start, by an operator, or at its first request, which waits for it within its deadline. At most
`most_loaded` models are loaded: another one takes the place of the model that was unused for the longest time, once the
requests that run on it have ended.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.generation.model_roles import Role, role_of, roles_of
from lightwell.server.generation.served_model import ModelFiles, ServedModel
from lightwell.server.generation.supported_routes import why_not
from lightwell.server.http.errors import NotFound, RateLimited, Unavailable, shown
from lightwell.server.observability.access_log import current_record
from lightwell.server.observability.metrics import ModelMetrics

logger = logging.getLogger(__name__)

Change = Literal["loading", "unloading"]
State = Literal[Change, "unloaded", "loaded", "failed"]

PLACEHOLDERS = ("tgi", "dummy", "text-embeddings-inference")
"""Placeholder model names of TGI's and TEI's clients; they mean the first model."""
_RETRY_AFTER = 60
"""Seconds after a failed load in which requests do not begin another one."""
_UNUSED_FOR_ROWS = 60.0
"""Seconds without use after which a model may be unloaded for the rows of a batch of another model."""
_LOADS_PER_MINUTE = 10
"""Most loads that the requests of one API key may begin in a minute."""


class ModelSlot:
    """One model of the server, loaded or not. Names with the same files and settings share a slot."""

    def __init__(self, settings: Settings, names: Sequence[str], metrics: ModelMetrics, *, root: str = "") -> None:
        self.settings = settings
        self.names = list(names)
        self.metrics = metrics
        self.root = root
        """The folder, file or hub id of the model."""
        self.kind: str | None = None
        """The kind of its network; None until its files were read once."""
        self.roles: tuple[Role, ...] | None = None
        """The purposes of the model; None until its files were read once."""
        self.model: ServedModel | None = None
        """The model, as long as it takes requests."""
        self.error = ""
        """The reason why the last load failed, or why the model was given up; empty if it did not."""
        self.failed_at = 0.0
        self.used_at = time.monotonic()
        self.users: set[int] = set()
        """HTTP requests that use the model, by the identity of their records."""
        self.num_waiting = 0
        """HTTP requests that wait until it is loaded."""
        self.change: Change | None = None
        """The change that is under way."""
        self.keep_seconds: float | None = None
        """Seconds without use until it is unloaded; None is no limit."""
        self.idle_timer: asyncio.TimerHandle | None = None
        self._created = int(time.time())

    @property
    def id(self) -> str:
        """Return the first of its names."""
        return self.names[0]

    @property
    def state(self) -> State:
        """Return the state of the model."""
        if self.change is not None:
            return self.change
        if self.model is not None:
            return "loaded" if self.model.engine.ready() else "loading"
        return "failed" if self.error else "unloaded"

    @property
    def reason(self) -> str:
        """Return why the model takes no requests, in a few words; "ready" when it does."""
        if self.model is not None:
            return self.model.engine.reason()
        return self.error or ("the server loads it at its first request" if self.change is None else self.change)

    @property
    def has_processes(self) -> bool:
        """Return whether the model is loaded, or its processes are ending."""
        return self.model is not None or self.change == "unloading"

    @property
    def num_users(self) -> int:
        """Return the number of HTTP requests that use the model."""
        return len(self.users)

    @property
    def adapters(self) -> Sequence[ServedAdapter]:
        """Return the LoRA adapters that the model has, or will have once it is loaded."""
        if self.model is not None:
            return list(self.model.adapters)
        return [ServedAdapter(name, 0, Path(folder), self._created) for name, folder in self.settings.lora]

    def learn(self, files: ModelFiles) -> None:
        """Note the facts about the model that remain known when it is unloaded."""
        self.kind, self.roles, self.root = files.config.kind, roles_of(files), files.root

    def named(self, name: str) -> ServedModel | None:
        """Return the loaded model under one of its names."""
        if self.model is None or name == self.model.id or name not in self.names:
            return self.model
        return replace(self.model, id=name)


class ModelLoader(Protocol):
    """The processes of models."""

    is_draining: bool
    """True while the server ends: no more models are loaded."""

    def read(self, slot: ModelSlot) -> ModelFiles:
        """Read a model's files but its weights, in a thread. Raises ValueErrors and OSErrors of one line."""

    async def start(self, slot: ModelSlot, files: ModelFiles) -> ServedModel:
        """Return the model once it is ready. Raises ValueErrors and OSErrors of one line, and Unavailable."""

    async def stop(self, slot: ModelSlot) -> None:
        """End the processes of a model."""


class ModelList:
    """The models of a server, in the order of their definition. All of it runs in one event loop.

    Without a `loader` the models stay as they are. `scan()` returns the models that have come since the last call.
    """

    def __init__(
        self,
        slots: Sequence[ModelSlot],
        loader: ModelLoader | None = None,
        scan: Callable[[], Iterable[ModelSlot]] | None = None,
        most_loaded: int = 1,
    ) -> None:
        self.slots = list(slots)
        self._loader = loader
        self._scan = scan
        self._most_loaded = most_loaded
        self._turn = asyncio.Lock()
        """Held while a model is loaded: the next one then knows the free memory."""
        self._changed = asyncio.Event()
        self._loads: dict[str, deque[float]] = {}
        """Times of the last loads that requests began, by the name of their API key."""
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, model: ServedModel) -> "ModelList":
        """Return the list of one model that is never unloaded."""
        slot = ModelSlot(model.settings, [model.id], model.metrics)
        slot.learn(model)
        slot.model = model
        return cls([slot])

    def __iter__(self) -> Iterator[ModelSlot]:
        """Yield every model, also new ones in the folder."""
        self._look()
        return iter(self.slots)

    @property
    def loaded(self) -> list[ServedModel]:
        """Return the models that take requests, or will once they are loaded."""
        return [slot.model for slot in self.slots if slot.model is not None]

    @property
    def may_unload(self) -> bool:
        """Return whether models are unloaded at all: the only model of a server is not."""
        return self._loader is not None and (len(self.slots) > 1 or self._scan is not None)

    @property
    def is_draining(self) -> bool:
        """Return whether the server ends, and loads no more models."""
        return self._loader is not None and self._loader.is_draining

    async def find(self, name: str | None, route: str | None = None) -> tuple[ServedModel, ServedAdapter | None]:
        """Return the model with this name, or the model and its LoRA adapter with this name; None means the first model
        that is made for the route. The model is loaded if it is not, and stays so until the HTTP request is over.

        Raises NotFound, RateLimited (429) for too many loads, and Unavailable (503) for a model that cannot be loaded.
        """
        slot = None if name is None else self._named(name)
        if slot is None:
            if name is not None and name not in PLACEHOLDERS:
                raise self._not_found(name)
            slot = await self._first(route)
        model, adapter = await self._in_use(slot), None
        if name is not None:
            model, adapter = slot.named(name) or model, model.adapters.find(name)
            if adapter is None and name not in (*slot.names, *PLACEHOLDERS):  # it was unloaded meanwhile
                raise self._not_found(name)
        if record := current_record.get():
            record.model = model.id
        return model, adapter

    def slot(self, name: str) -> ModelSlot:
        """Return the model with this name, or with a LoRA adapter of this name. Raises NotFound."""
        slot = self._named(name)
        if slot is None and name in PLACEHOLDERS and self.slots:
            slot = self.slots[0]
        if slot is None:
            raise self._not_found(name)
        return slot

    def knows(self, name: str) -> bool:
        """Return whether a model, or a LoRA adapter, has this name."""
        return self._named(name) is not None

    def _look(self) -> None:
        self.slots += () if self._scan is None else self._scan()

    def _named(self, name: str) -> ModelSlot | None:
        if all(name not in slot.names for slot in self.slots):
            self._look()
        for slot in self.slots:
            if name in slot.names:
                return slot
        return next((slot for slot in self.slots if any(each.name == name for each in slot.adapters)), None)

    def _not_found(self, name: str) -> NotFound:
        names = [name for slot in self.slots for name in slot.names]
        names += [adapter.name for model in self.loaded for adapter in model.adapters]
        served = f"{names[0]!r} is served" if len(names) == 1 else f"{', '.join(map(repr, names))} are served"
        message = f"The model {shown(name)} does not exist here; {served}."
        return NotFound(message, param="model", code="model_not_found")

    async def _first(self, route: str | None) -> ModelSlot:
        """Return the first model that is made for a route, or else the first that can answer it, or else the first."""
        slots = list(self)
        if not slots:
            raise NotFound("This server has no model: the folder of --models-dir is empty.", code="model_not_found")
        if len(slots) == 1 or route is None:
            return slots[0]
        role = role_of(route)
        for slot in slots:
            if slot.roles is None and self._loader is not None and not _seconds_to_retry(slot):
                try:
                    slot.learn(await asyncio.to_thread(self._loader.read, slot))
                except Exception as error:
                    _note_failure(slot, error)
            if role is None or role in (slot.roles or ()):
                return slot
        able = (slot for slot in slots if slot.model is not None and why_not(slot.model, route) is None)
        return next(able, slots[0])

    async def _in_use(self, slot: ModelSlot) -> ServedModel:
        """Return the model once it is loaded, and count the HTTP request as its user."""
        record = current_record.get()
        if slot.model is None:
            for each in self.slots:  # one that waits uses no other model: its place may be needed
                self._leave(each, id(record))
            slot.num_waiting += 1
            try:
                while slot.model is None:
                    if slot.change is None:
                        if record is not None and record.is_background:
                            self._check_place(slot)
                        self._check_load(slot, "" if record is None else record.key or "")
                        self._begin(slot, "loading")
                    await self._changed.wait()
            finally:
                slot.num_waiting -= 1
                self._notify()
        slot.used_at = time.monotonic()
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
        if record is not None:
            slot.users.add(id(record))
            record.at_end.append(lambda: self._leave(slot, id(record)))
        return slot.model

    def _leave(self, slot: ModelSlot, user: int) -> None:
        if user not in slot.users:
            return
        slot.users.remove(user)
        slot.used_at = time.monotonic()
        if not slot.num_users:
            if slot.keep_seconds is not None:
                slot.idle_timer = asyncio.get_running_loop().call_later(slot.keep_seconds, self._end_idle, slot)
            self._notify()

    def _check_load(self, slot: ModelSlot, key: str) -> None:
        """Raise the error of a request that may not begin a load, and count the load otherwise."""
        if self.is_draining:
            raise Unavailable("The server is shutting down.", code="draining", retry_after=1)
        now = time.monotonic()
        if seconds := _seconds_to_retry(slot):
            raise Unavailable(
                f"The model {slot.id!r} cannot be loaded: {slot.error}. The server tries again in {seconds} s.",
                code="model_not_loaded",
                retry_after=seconds,
            )
        loads = self._loads.setdefault(key, deque(maxlen=_LOADS_PER_MINUTE))
        if len(loads) == _LOADS_PER_MINUTE and now < loads[0] + 60:
            raise RateLimited(
                f"The requests of this key have loaded {_LOADS_PER_MINUTE} models within a minute, the largest "
                f"accepted number; {slot.id!r} is not loaded.",
                code="too_many_loads",
                retry_after=int(loads[0] + 60 - now) + 1,
            )
        loads.append(now)

    def _check_place(self, slot: ModelSlot) -> None:
        """Raise Unavailable if a row of a batch would unload a model that other requests have just used."""
        unused_since = time.monotonic() - _UNUSED_FOR_ROWS
        loaded = [each for each in self.slots if each.has_processes]
        unused = [each for each in loaded if not each.num_users and each.used_at < unused_since]
        if len(loaded) >= self._most_loaded and not unused:
            raise Unavailable(
                f"The model {slot.id!r} is not loaded; a row of a batch waits until there is a place for it.",
                code="model_not_loaded",
                retry_after=_RETRY_AFTER,
            )

    async def describe(self) -> dict[str, Any]:
        """Return the state of each loaded model, for a debug dump."""
        return {"models": {model.id: await model.engine.describe() for model in self.loaded}}

    # ---- loading and unloading

    async def load(self, slot: ModelSlot) -> None:
        """Load a model, even if its last load has just failed. Raises Unavailable."""
        await self._until(lambda: slot.change is None)
        if slot.model is None:
            await asyncio.shield(self._begin(slot, "loading"))
        if slot.model is None:
            message = f"The model {slot.id!r} cannot be loaded: {slot.error}."
            raise Unavailable(message, code="model_not_loaded", retry_after=_RETRY_AFTER)

    async def unload(self, slot: ModelSlot) -> None:
        """Unload a model once its running requests have ended; later ones load it again."""
        await self._until(lambda: slot.change != "loading")
        if slot.change is None:
            await asyncio.shield(self._begin(slot, "unloading"))
        else:
            await self._until(lambda: slot.change != "unloading")

    def keep(self, slot: ModelSlot, seconds: float) -> None:
        """Unload a model when it was unused for this many seconds; negative: never."""
        slot.keep_seconds = None if seconds < 0 else seconds

    def _end_idle(self, slot: ModelSlot) -> None:
        if slot.model is not None and not slot.num_users and slot.change is None:
            self._begin(slot, "unloading")

    def give_up(self, slot: ModelSlot, reason: str) -> None:
        """Note that the workers of a loaded model ended and are not restarted."""
        logger.error("the model %r is not served any more: %s", slot.id, reason)
        slot.model, slot.error, slot.failed_at = None, reason, time.monotonic()
        if slot.change is None:
            self._begin(slot, "unloading")

    def _begin(self, slot: ModelSlot, change: Change) -> "asyncio.Task[None]":
        slot.change = change  # before any other request sees the slot
        work = self._load(slot) if change == "loading" else self._unload(slot)
        task = asyncio.create_task(work, context=Context())  # it belongs to no HTTP request
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, slot: ModelSlot) -> None:
        assert self._loader is not None
        try:
            async with self._turn:
                begun = time.monotonic()
                files = await asyncio.to_thread(self._loader.read, slot)
                slot.learn(files)
                while sum(each.has_processes for each in self.slots) >= self._most_loaded:
                    await self._make_room(slot)
                slot.model, slot.error = await self._loader.start(slot, files), ""
                logger.info("the model %r was loaded in %.1f s", slot.id, time.monotonic() - begun)
        except Exception as error:
            _note_failure(slot, error)
        finally:
            slot.change = None
            self._notify()

    async def _make_room(self, slot: ModelSlot) -> None:
        """Unload the model that was unused for the longest time, an idle one if there is any."""
        others = [
            each for each in self.slots if each.model is not None and each.change is None and not each.num_waiting
        ]
        if not others:
            await self._changed.wait()
            return
        chosen = min(others, key=lambda each: (each.num_users > 0, each.used_at))
        logger.info("the model %r is unloaded to make room for %r", chosen.id, slot.id)
        await self._unload(chosen)

    async def _unload(self, slot: ModelSlot) -> None:
        assert self._loader is not None
        slot.change, slot.keep_seconds = "unloading", None
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
        try:
            if slot.model is not None:
                slot.model.engine.end_background()
            slot.model = None  # new requests wait for the next load
            await self._until(lambda: not slot.num_users)
            await self._loader.stop(slot)
            logger.info("the model %r was unloaded", slot.id)
        finally:
            slot.change = None
            self._notify()

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _note_failure(slot: ModelSlot, error: Exception) -> None:
    """Note why a model cannot be loaded. An error of an unknown kind is a bug: the log has its traceback."""
    slot.error, slot.failed_at = str(error).rstrip(".") or type(error).__name__, time.monotonic()
    is_known = isinstance(error, ValueError | OSError | Unavailable)
    logger.error("the model %r cannot be loaded: %s", slot.id, slot.error, exc_info=None if is_known else error)


def _seconds_to_retry(slot: ModelSlot) -> int:
    """Return the seconds in which requests do not load a model again that could not be loaded; 0 if they may."""
    left = slot.failed_at + _RETRY_AFTER - time.monotonic()
    return int(left) + 1 if slot.error and left > 0 else 0
