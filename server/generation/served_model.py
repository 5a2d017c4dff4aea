"""One model that the server runs: the contents of its files, and the engine that computes with its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from lightwell.model.checkpoint.generation_defaults import SamplingDefaults
from lightwell.model.config import ModelConfig
from lightwell.model.network.cross_encoder import ScoreDefaults
from lightwell.model.network.sentence_transformers import EmbeddingDefaults
from lightwell.model.tokenization.chat_template import ChatTemplate
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.config.settings import Settings
from lightwell.server.dispatch.admission import capture_limit
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.lora_registry import LoraRegistry
from lightwell.server.engine.messages.outputs import EngineInfo
from lightwell.server.http.errors import Unavailable
from lightwell.server.observability.metrics import ModelMetrics


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """The parts of a model that the API process reads from its folder."""

    settings: Settings
    id: str
    """The model's name on the wire."""
    root: str
    """The folder or hub id that it came from."""
    folder: Path
    fingerprint: Mapping[str, str]
    """The folder's fingerprint, taken before anything was read."""
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    embedding_defaults: EmbeddingDefaults
    score_defaults: ScoreDefaults | None
    """How pairs are scored, or None if the model has no classification head and is no CrossEncoder."""
    sampling_defaults: SamplingDefaults
    max_model_len: int
    """Most tokens of prompt and completion together that model and settings allow."""


@dataclass(frozen=True, kw_only=True)
class ServedModel(ModelFiles):
    """A model with its engine: all that a request for this model reads."""

    engine: EngineClient
    metrics: ModelMetrics

    @classmethod
    def of(cls, files: ModelFiles, engine: EngineClient, metrics: ModelMetrics) -> Self:
        """Return the model of these files, computed by this engine."""
        return cls(
            **{field.name: getattr(files, field.name) for field in fields(files)}, engine=engine, metrics=metrics
        )

    @property
    def adapters(self) -> LoraRegistry:
        """Return the LoRA adapters; their names are accepted as the model."""
        return self.engine.adapters

    @property
    def context_limit(self) -> int:
        """Return `max_model_len`, or less if the worker found room for less."""
        info = self.engine_info
        return self.max_model_len if info is None else min(info.max_model_len, self.max_model_len)

    @property
    def capture_limit(self) -> int:
        """Return the most bytes captured at a time: `max_capture_bytes`, or less if a worker has less room."""
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
        """Return whether an answer's bits depend on its own request only, or None if no worker has reported it yet."""
        info = self.engine_info
        return None if info is None else info.batch_invariant

    @property
    def speculation(self) -> str | None:
        """Return the source of drafts: auto, off, ngram or draft; None if no worker has reported it yet."""
        info = self.engine_info
        return None if info is None else info.speculation

    @property
    def engine_info(self) -> EngineInfo | None:
        """Return the settings that the engine chose, or None if no worker has reported them yet."""
        try:
            return self.engine.info()
        except Unavailable:
            return None
