"""Names under which the one model is served, on routes of every dialect."""

from pathlib import Path
from typing import Any

import pytest

from server.dispatch.served_adapter import ServedAdapter
from tests.server.serving import Site

USER = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [USER], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/v1/next": {"input": "x"},
    "/api/chat": {"messages": [USER]},
    "/api/embed": {"input": "x"},
    "/tokenize": {"prompt": "x"},
}


@pytest.mark.parametrize("name", ["tgi", "dummy", "text-embeddings-inference", None])
async def test_names_that_clients_send_without_knowing_one_are_the_models(name: str | None, plain: Site) -> None:
    for path, body in BODIES.items():
        answer = await plain.post(path, {**body, "model": name})
        assert answer.status_code == 200, (path, answer.text)
        assert (await plain.post(path, {**body, "model": "llama"})).status_code == 404
    if name is not None:
        assert (await plain.http.get(f"/v1/models/{name}")).json()["id"] == "org/tiny"


async def test_an_adapter_keeps_its_name(plain: Site) -> None:
    plain.model.adapters._served["tgi"] = ServedAdapter("tgi", 1, Path("/loras/tgi"), 0)
    answer = await plain.post("/v1/completions", {"prompt": "x", "model": "tgi"})
    assert answer.json()["model"] == "tgi"
