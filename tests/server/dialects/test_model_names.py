"""Names under which the one model is served, on routes of every dialect."""

from pathlib import Path

import pytest

from server.dispatch.served_adapter import ServedAdapter
from tests.server.dialects.routes import ROUTES, RUN_NOTHING
from tests.server.serving import Site

PATHS = (
    "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/next", "/api/chat", "/api/embed", "/tokenize",
)  # fmt: skip
BODIES = {path: (ROUTES | RUN_NOTHING)[path] for path in PATHS}


@pytest.mark.parametrize("name", ["tgi", "dummy", "text-embeddings-inference", None])
async def test_names_that_clients_send_without_knowing_one_are_the_models(name: str | None, plain: Site) -> None:
    for path, body in BODIES.items():
        answer = await plain.post(path, {**body, "model": name})
        assert answer.status_code == 200, (path, answer.text)
        assert (await plain.post(path, {**body, "model": "llama"})).status_code == 404
    if name is not None:
        assert (await plain.http.get(f"/v1/models/{name}")).json()["id"] == "org/tiny"


async def test_an_adapter_keeps_its_name(plain: Site) -> None:
    plain.context.adapters._served["tgi"] = ServedAdapter("tgi", 1, Path("/loras/tgi"), 0)
    answer = await plain.post("/v1/completions", {"prompt": "x", "model": "tgi"})
    assert answer.json()["model"] == "tgi"
