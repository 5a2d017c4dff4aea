"""Holds what every route may use, in one object, and describes what the routes need from the engine's client.

The application builds it once; the routes have no state of their own. `EngineProtocol` and `Handle` are the interface
to the process that computes. They are described here, so that routes can be tested against any engine that keeps the
contract.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from model.checkpoint.generation_defaults import SamplingDefaults
from model.config import ModelConfig
from model.network.cross_encoder import ScoreDefaults
from model.network.sentence_transformers import EmbeddingDefaults
from model.tokenization.chat_template import ChatTemplate
from model.tokenization.tokenizer import Tokenizer
from server.auth.keys import Keyring
from server.config.settings import Settings
from server.dispatch.adapters import Adapters
from server.dispatch.admission import capture_limit
from server.dispatch.request_context import RequestContext
from server.engine.outputs import EngineInfo, RequestOutput
from server.engine.request import Intervention, Task
from server.http.errors import Unavailable
from server.observability.metrics import EngineStatus, Metrics

PLACEHOLDERS = ("tgi", "dummy", "text-embeddings-inference")
"""Names that clients of TGI and TEI send where they know none: they are the one model's."""


class Handle(Protocol):
    """One request in flight: iterate over its outputs; `close` aborts it if it has not finished (idempotent)."""

    on_token: Callable[[int], bool] | None
    """Takes tokens that come with nothing else while the reader waits, if it returns True for them."""

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...
    def close(self) -> None: ...


class EngineProtocol(EngineStatus, Protocol):
    """The API process's end of the engine, with what the metrics read of it. `submit` and the handles raise
    `server.http.errors.ApiError`."""

    async def submit(
        self,
        task: Task,
        prompt_token_ids: Sequence[int],
        *,
        encoder_token_ids: Sequence[int] = (),
        second_segment: int | None = None,
        interventions: Sequence[Intervention] = (),
        capture_bytes: int = 0,
        request_context: RequestContext,
    ) -> Handle: ...
    def check_room(
        self, num_requests: int = 1, *, request_context: RequestContext, is_inspection: bool = False
    ) -> None: ...
    def hold_capture(self, num_bytes: int, *, request_context: RequestContext) -> None: ...
    def ready(self) -> bool: ...
    def reason(self) -> str: ...
    def info(self) -> EngineInfo: ...
    @property
    def live(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    async def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class AppContext:
    """The parts of the running server that routes use."""

    settings: Settings
    keys: Keyring
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    engine: EngineProtocol
    metrics: Metrics
    embedding_defaults: EmbeddingDefaults
    score_defaults: ScoreDefaults | None
    """How pairs are scored, or None if the model has no head that labels an input and is no CrossEncoder."""
    sampling_defaults: SamplingDefaults
    model_id: str
    """The model's name on the wire."""
    model_root: str
    """The folder or hub id that it came from."""
    adapters: Adapters = field(default_factory=lambda: Adapters(Settings(), (), lambda worker, message: None))
    """The LoRA adapters, whose names are accepted as the model's too; none by default."""

    max_model_len: int
    """Most tokens of prompt and completion together that model and settings allow."""

    @property
    def context_limit(self) -> int:
        """Return `max_model_len`, or less if the worker found room for less."""
        info = self.engine_info
        return self.max_model_len if info is None else min(info.max_model_len, self.max_model_len)

    @property
    def capture_limit(self) -> int:
        """Return the most bytes that may be captured at a time: `max_capture_bytes`, or less if a worker has room
        for less.
        """
        info, limit = self.engine_info, self.settings.max_capture_bytes
        return limit if info is None else capture_limit(limit, info.memory_room)

    @property
    def compute_dtype(self) -> str | None:
        """Return the dtype in which the network computes, whatever numbers are sent in, after a slash the one to which
        the rows are rounded that quantised weights multiply, if that is another, or None if no worker has reported it
        yet.
        """
        info = self.engine_info
        if info is None:
            return None
        return info.dtype if info.activations == "dtype" else f"{info.dtype}/{info.activations}"

    @property
    def batch_invariant(self) -> bool | None:
        """Return whether an answer's bits depend on its own request alone, or None if no worker has reported it yet."""
        info = self.engine_info
        return None if info is None else info.batch_invariant

    @property
    def engine_info(self) -> EngineInfo | None:
        """Return the settings that the engine chose, or None if no worker has reported them yet."""
        try:
            return self.engine.info()
        except Unavailable:
            return None
