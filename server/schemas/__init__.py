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
from server.schemas.interventions import EncodedArray, InterventionField, Interventions, InterventionSource
from server.schemas.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest

__all__ = [
    "AttentionAnswer",
    "AttentionFields",
    "AttentionRequest",
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
    "InterventionField",
    "InterventionSource",
    "Interventions",
    "PromptInput",
    "TokenizeAnswer",
    "TokenizeRequest",
]
