"""The purposes that a model is made for, by its files."""

from typing import Literal

from lightwell.server.generation.served_model import ModelFiles
from lightwell.server.generation.supported_routes import (
    CHATS,
    CLASSIFICATIONS,
    EMBEDDINGS,
    ROUTES_OF_A_DECODER,
    ROUTES_OF_A_HEAD,
    SCORINGS,
    SPARSE,
    is_for_text,
    why_not,
)

Role = Literal["completion", "chat", "embedding", "sparse_embedding", "rerank", "classification"]


def roles_of(model: ModelFiles) -> tuple[Role, ...]:
    """Return the purposes of a model."""
    head, writes = model.config.classifier, is_for_text(model)
    found: dict[Role, bool] = {
        "completion": writes,
        "chat": writes and model.chat_template is not None,
        "embedding": not writes and head is None and model.score_defaults is None,
        "sparse_embedding": why_not(model, SPARSE) is None,
        "rerank": model.score_defaults is not None and why_not(model, SCORINGS[0]) is None,
        "classification": head is not None and head.num_labels > 1 and why_not(model, CLASSIFICATIONS[0]) is None,
    }
    return tuple(role for role, is_there in found.items() if is_there)


def role_of(route: str) -> Role | None:
    """Return the purpose that a route has, or None for a route of any model."""
    routes: dict[Role, tuple[str, ...]] = {
        "chat": tuple(CHATS),
        "completion": (*ROUTES_OF_A_DECODER, *ROUTES_OF_A_HEAD),
        "embedding": EMBEDDINGS,
        "sparse_embedding": (SPARSE,),
        "rerank": SCORINGS,
        "classification": CLASSIFICATIONS,
    }
    return next((role for role, each in routes.items() if route in each), None)
