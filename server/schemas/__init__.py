"""Pydantic schemas of every route: types and bounds that need no model. What the model limits, the routes check."""

from server.schemas.attention import AttentionAnswer, AttentionFields, AttentionRequest
from server.schemas.base import ChatMessage, ErrorAnswer, PromptInput
from server.schemas.embeddings import EmbeddingAnswer, EmbeddingRequest
from server.schemas.generation import (
    ChatCompletionAnswer,
    ChatCompletionRequest,
    CompletionAnswer,
    CompletionRequest,
    GenerationAttention,
    GenerationFields,
)
from server.schemas.inputs import InputFields
from server.schemas.interventions import (
    CanIntervene,
    EncodedArray,
    InterventionField,
    Interventions,
    InterventionSource,
)
from server.schemas.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from server.schemas.trace import TraceAnswer, TraceRequest

__all__ = [
    "AttentionAnswer",
    "AttentionFields",
    "AttentionRequest",
    "CanIntervene",
    "ChatCompletionAnswer",
    "ChatCompletionRequest",
    "ChatMessage",
    "CompletionAnswer",
    "CompletionRequest",
    "DetokenizeAnswer",
    "DetokenizeRequest",
    "EmbeddingAnswer",
    "EmbeddingRequest",
    "EncodedArray",
    "ErrorAnswer",
    "GenerationAttention",
    "GenerationFields",
    "InputFields",
    "InterventionField",
    "InterventionSource",
    "Interventions",
    "PromptInput",
    "TokenizeAnswer",
    "TokenizeRequest",
    "TraceAnswer",
    "TraceRequest",
]
