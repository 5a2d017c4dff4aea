"""POST /embed, /embed_all and /similarity, and GET /info: vectors, their cosines, and limits, in the format of TEI."""

from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from lightwell.server.dialects.responses import json_response, large_response
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.embeddings import embed_vectors
from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.generation.prompts.prompt import encoder_limit
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import is_for_text
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.tensor_formats import JsonArray
from lightwell.server.observability.version import lightwell_version
from lightwell.server.schemas.base import MAX_PROMPTS
from lightwell.server.schemas.embeddings import TeiCut, TeiInputFields
from lightwell.server.schemas.huggingface import EmbedRequest, SimilarityRequest
from lightwell.server.schemas.sampling import MAX_STOP_STRINGS


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes that run the model to the router."""

    @router.post("/embed", tags=["Hugging Face"], summary="Vectors of texts (TEI)", response_model=list[list[float]])
    async def vectors_of_texts(request: Request, body: EmbedRequest) -> Response:
        """Return one vector for each input."""
        return await embed(context, request, body)

    @router.post("/embed_all", tags=["Hugging Face"], summary="Vectors of tokens (TEI)", response_model=list[Any])
    async def vectors_of_tokens(request: Request, body: TeiInputFields) -> Response:
        """Return a list of vectors for each input: the final state of each token, without pooling."""
        asked = {"pooling": "none", "normalize": False}
        return await _vectors(context, request, body, asked, "/embed_all")

    @router.post("/similarity", tags=["Hugging Face"], summary="Cosines of texts (TEI)", response_model=list[float])
    async def cosines(request: Request, body: SimilarityRequest) -> Response:
        """Return the cosine of the source sentence and each other sentence."""
        return await similarity(context, request, body)


def add_info(router: APIRouter, context: AppContext) -> None:
    """Add GET /info to the router."""

    @router.get("/info", tags=["Hugging Face"], summary="The model and its limits (TEI, TGI)")
    async def info() -> dict[str, Any]:
        """Return the first model's kind and the limits of requests; TEI's clients read some fields, TGI's others."""
        model, _ = await context.models.find(None)
        settings, embeds, head = model.settings, model.embedding_defaults, model.config.classifier
        kind: dict[str, Any] = {"embedding": {"pooling": "+".join(embeds.modes or (embeds.pooling,))}}
        if head is not None:
            ids = {label: i for i, label in enumerate(head.labels)}
            labels = {"id2label": {i: label for label, i in ids.items()}, "label2id": ids}
            kind = {"reranker" if head.num_labels == 1 else "classifier": labels}
        return {
            "model_id": model.id,
            "model_dtype": model.compute_dtype,
            "model_type": kind,
            "model_pipeline_tag": "text-generation" if is_for_text(model) else None,
            "max_concurrent_requests": settings.max_num_seqs + settings.max_num_queued_requests,
            "max_input_length": min(encoder_limit(model), embeds.max_length or 2**31),
            "max_input_tokens": model.context_limit - 1,
            "max_total_tokens": model.context_limit,
            "max_batch_tokens": settings.max_num_batched_tokens,
            "max_batch_requests": settings.max_num_seqs,
            "max_client_batch_size": MAX_PROMPTS,
            "max_best_of": 1,
            "max_stop_sequences": MAX_STOP_STRINGS,
            "auto_truncate": embeds.truncate,
            **dict.fromkeys(("tokenization_workers", "validation_workers"), 1),
            **dict.fromkeys(("model_sha", "sha", "docker_label")),
            "router": "lightwell",
            "version": lightwell_version(),
        }


async def embed(context: AppContext, request: Request, body: EmbedRequest) -> Response:
    """Answer POST /embed."""
    asked = {"normalize": body.normalize, "dimensions": body.dimensions}
    return await _vectors(context, request, body, asked, "/embed")


async def _vectors(
    context: AppContext, request: Request, body: TeiInputFields, asked: dict[str, Any], route: str
) -> Response:
    model = await accept(context, body, route)
    asked |= {"input": body.inputs, **cut_fields(model, body)}
    _, vectors = await embed_vectors(model, request, asked, "inputs")
    return await large_response(JsonArray(vector, "float") for vector in vectors)


def cut_fields(model: ServedModel, body: TeiCut) -> dict[str, Any]:
    """Return the prompt and the cut of a body's inputs, by the names of POST /v1/embeddings."""
    truncate = model.embedding_defaults.truncate if body.truncate is None else body.truncate
    keeps_end = truncate and body.truncation_direction.lower() == "left"
    cut = {"truncate": False, "truncate_prompt_tokens": -1} if keeps_end else {"truncate": truncate}
    return {"prompt_name": body.prompt_name, **cut}


async def similarity(context: AppContext, request: Request, body: SimilarityRequest) -> Response:
    """Answer POST /similarity."""
    model = await accept(context, body, "/similarity")
    texts = {"inputs.source_sentence": body.inputs.source_sentence, "inputs.sentences": body.inputs.sentences}
    found: list[Any] = []
    for field, each in texts.items():
        asked = {"input": each, "normalize": True, **cut_fields(model, body.parameters)}
        with FieldNames(cut_advice="Set parameters.truncate to cut it.").in_errors():
            _, vectors = await embed_vectors(model, request, asked, field)
        if vectors[0].ndim > 1:
            message = "inputs: this model makes a vector of each token, not of a text; POST /embed_all is accepted."
            raise BadRequest(message, param="inputs")
        found.append(np.stack(vectors))
    return json_response((found[1] @ found[0][0]).tolist())
