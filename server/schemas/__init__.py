"""Pydantic schemas of every route: types and bounds that need no model. The routes check what the model limits."""

from server.schemas.attention import AttentionAnswer, AttentionFields, AttentionRequest
from server.schemas.base import ChatMessage, ErrorAnswer, PromptInput, RunFields
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
from server.schemas.mechanisms import (
    ContributionsAnswer,
    ContributionsRequest,
    ExplainAnswer,
    ExplainRequest,
    HeadsAnswer,
    HeadsRequest,
    RolloutAnswer,
    RolloutRequest,
    TrajectoryAnswer,
    TrajectoryRequest,
)
from server.schemas.predictions import InspectionRequest, LensAnswer, LensRequest, NextAnswer, NextRequest
from server.schemas.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from server.schemas.trace import TraceAnswer, TraceRequest
from server.schemas.weights import (
    CircuitsAnswer,
    CircuitsRequest,
    CorrelationsAnswer,
    CorrelationsRequest,
    GeometryAnswer,
    GeometryQuery,
    ParametersAnswer,
)

__all__ = [
    "AttentionAnswer",
    "AttentionFields",
    "AttentionRequest",
    "CanIntervene",
    "ChatCompletionAnswer",
    "ChatCompletionRequest",
    "ChatMessage",
    "CircuitsAnswer",
    "CircuitsRequest",
    "CompletionAnswer",
    "CompletionRequest",
    "ContributionsAnswer",
    "ContributionsRequest",
    "CorrelationsAnswer",
    "CorrelationsRequest",
    "DetokenizeAnswer",
    "DetokenizeRequest",
    "EmbeddingAnswer",
    "EmbeddingRequest",
    "EncodedArray",
    "ErrorAnswer",
    "ExplainAnswer",
    "ExplainRequest",
    "GenerationAttention",
    "GenerationFields",
    "GeometryAnswer",
    "GeometryQuery",
    "HeadsAnswer",
    "HeadsRequest",
    "InputFields",
    "InspectionRequest",
    "InterventionField",
    "InterventionSource",
    "Interventions",
    "LensAnswer",
    "LensRequest",
    "NextAnswer",
    "NextRequest",
    "ParametersAnswer",
    "PromptInput",
    "RolloutAnswer",
    "RolloutRequest",
    "RunFields",
    "TokenizeAnswer",
    "TokenizeRequest",
    "TraceAnswer",
    "TraceRequest",
    "TrajectoryAnswer",
    "TrajectoryRequest",
]
