"""Large bodies: validation in a thread, and early ends of validation."""

import threading
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ValidationError, field_validator

from server.config.auth.keys import Keyring
from server.dialects.auth_route import guarded_route
from server.http.error_handlers import install_error_handlers
from server.schemas.base import RequestModel
from server.schemas.generation import ChatCompletionRequest
from server.schemas.judgements.decisions import DecisionsRequest
from server.schemas.judgements.systemone import SystemOneRequest
from server.schemas.openai_responses.responses import ResponsesRequest
from tests.server.dialects.test_judgements import PREDICATE, STATE
from tests.server.serving import Site, error_of


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (ChatCompletionRequest, {"logit_bias": {f"k{i}": "x" for i in range(60_000)}}),
        (ChatCompletionRequest, {"logit_bias": {f"k{i}": "x" for i in range(1_000)}}),
        (ResponsesRequest, {"metadata": {f"k{i}": 1 for i in range(60_000)}}),
        (ResponsesRequest, {"chat_template_kwargs": {f"k\ud800{i}": 1 for i in range(60_000)}}),
        (SystemOneRequest, {"state": {f"k\ud800{i}": 1 for i in range(60_000)}}),
        (SystemOneRequest, {"questions": {f"q{i}": 1 for i in range(400)}}),
        (
            SystemOneRequest,
            {"questions": {f"q{i}": {"type": "choice", "criteria": dict.fromkeys("abcdefgh", 1)} for i in range(400)}},
        ),
        (
            DecisionsRequest,
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": [1] * 60_000}]}]},
        ),
    ],
)
def test_a_wrong_entry_ends_the_reading_of_an_object(schema: type[BaseModel], body: dict[str, Any]) -> None:
    """End validation early, since pydantic describes each wrong entry and compares the descriptions with each other."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(body)
    assert len([each for each in caught.value.errors() if each["loc"][0] in body]) < 400


async def test_a_large_body_is_validated_outside_the_event_loop() -> None:
    threads = {}

    class Body(RequestModel):
        text: str

        @field_validator("text")
        @classmethod
        def _note(cls, text: str) -> str:
            threads[len(text)] = threading.current_thread().name.partition("_")[0]
            return text

    app = FastAPI()
    router = APIRouter(route_class=guarded_route(Keyring((), None), 1 << 20))

    @router.post("/length")
    async def length(body: Body) -> int:
        return len(body.text)

    app.include_router(router)
    install_error_handlers(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = [await client.post("/length", json={"text": "x" * size}) for size in (10, 40_000, 300_000)]
        wrong = await client.post("/length", json={"text": 1, "more": "x" * 40_000})
    assert [answer.json() for answer in answers] == [10, 40_000, 300_000]
    assert threads == {10: "MainThread", 40_000: "parse", 300_000: "parse"}
    assert wrong.json()["error"]["message"] == "text: input should be a valid string, got 1."


@pytest.mark.parametrize("path", ["/v1/decisions", "/v1/systemone"])
async def test_megabytes_of_json_are_refused_before_the_chat_is_written(path: str, plain: Site) -> None:
    data = [{"type": "input_json", "data": {"k": "x" * 200_000}}] * 50
    bodies = {
        "/v1/decisions": {"input": [{"role": "user", "content": data}], "questions": [PREDICATE]},
        "/v1/systemone": STATE | {"instructions": "x" * 10_000_000},
    }
    error = error_of(await plain.post(path, bodies[path]))
    assert "the text has 10000" in error["message"]
    assert error["param"] == ("input" if path == "/v1/decisions" else "state")
