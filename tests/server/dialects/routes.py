"""All routes that are posted to, with a valid body of each, the application that answers a route, and its refusals."""

from pathlib import Path
from typing import Any

from lightwell.server.generation.supported_routes import CLASSIFICATIONS, SCORINGS, SPARSE
from tests.server.serving import Site, site, tiny_classifier, tiny_masked_lm

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "abc"},
    "/v1/decisions": {"input": "x", "questions": [{"type": "predicate", "instructions": "y"}]},
    "/v1/systemone": {"state": "x", "questions": {"q": {"type": "noul", "instructions": "y"}}},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9},
    "/v1/rerank": {"query": "x", "documents": ["y", "z"]},
    "/v2/rerank": {"query": "x", "documents": ["y", "z"]},
    "/rerank": {"query": "x", "documents": ["y", "z"]},
    "/v1/score": {"text_1": "x", "text_2": ["y", "z"]},
    "/score": {"text_1": "x", "text_2": ["y", "z"]},
    "/v1/classify": {"input": ["y", "z"]},
    "/classify": {"input": ["y", "z"]},
    "/predict": {"inputs": [["y"], ["y", "z"]]},
    "/v1/embeddings": {"input": ["abc", "de"]},
    "/embed": {"inputs": ["abc", "de"]},
    "/embed_all": {"inputs": ["abc", "de"]},
    "/embed_sparse": {"inputs": ["abc", "de"]},
    "/similarity": {"inputs": {"source_sentence": "abc", "sentences": ["de"]}},
    "/generate": {"inputs": "abc"},
    "/generate_stream": {"inputs": "abc"},
    "/": {"inputs": "abc"},
    "/v1/attention": {"input": "abc"},
    "/v1/trace": {"input": "abc", "points": ["hook_resid_post"]},
    "/v1/next": {"input": "abc"},
    "/v1/lens": {"input": "abc"},
    "/v1/explain": {"input": "abc", "layer": 0, "head": 0},
    "/v1/contributions": {"input": "abc"},
    "/v1/trajectory": {"input": "abc"},
    "/v1/heads": {"input": "abc"},
    "/v1/rollout": {"input": "abc"},
    "/v1/geometry": {"input": "abc", "point": "blocks.0.hook_resid_post"},
    "/v1/circuits": {"layers": 0},
    "/api/chat": {"messages": [{"role": "user", "content": "a"}]},
    "/api/generate": {"prompt": "abc"},
    "/api/embed": {"input": ["abc", "de"]},
    "/api/embeddings": {"prompt": "abc"},
}
"""Every route that runs the model, with a valid body."""
RUN_NOTHING: dict[str, Any] = {
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [97]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/admin/keys/reload": None,
    "/api/show": {},
}
"""The other POST routes."""

LOADING = {"/models/load", "/models/unload", "/admin/models/{model_id}/load", "/admin/models/{model_id}/unload"}
"""The POST routes that load and unload models."""


def at_path(folder: Path, path: str, **settings: Any) -> Any:
    """Return an application around the fake engine that answers this route."""
    if path in (*SCORINGS, *CLASSIFICATIONS):
        settings["config"] = tiny_classifier()
    if path == SPARSE:
        settings["config"] = tiny_masked_lm()
    return site(folder, **settings)


async def refuses(
    at: Site, path: str, body: Any, *said: str, param: str | None = None, code: str | None = None, status: int = 400
) -> None:
    """Check that a body is refused with this status, and that its error has this field, this code and these texts."""
    error = await at.error(path, body, status)
    assert param is None or error["param"] == param, error
    assert code is None or error["code"] == code, error
    for text in said:
        assert text in error["message"], error
