"""The error classes, and the JSON shape of all errors."""

import json

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from starlette.exceptions import HTTPException

from lightwell.server.http import errors
from lightwell.server.http.error_handlers import install_error_handlers
from lightwell.server.http.error_shapes import error_json, openai_shape
from lightwell.server.http.errors import ApiError, QueueFull

STATUSES = {
    errors.BadRequest: 400,
    errors.Unauthorized: 401,
    errors.NotFound: 404,
    errors.NotAcceptable: 406,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.QueueFull: 429,
    errors.EngineError: 500,
    errors.Unavailable: 503,
    errors.WorkerLost: 503,
    errors.DeadlineExceeded: 504,
}


@pytest.mark.parametrize("kind", STATUSES, ids=lambda kind: kind.__name__)
def test_every_error_has_its_status_and_the_one_shape(kind: type[errors.BadRequest]) -> None:
    error = kind("what happened", param="field", code="name")
    assert error.status == STATUSES[kind]
    assert openai_shape(error) == {
        "error": {"message": "what happened", "type": error.type, "param": "field", "code": "name"}
    }


def test_a_message_that_quotes_half_a_character_can_still_be_sent() -> None:
    assert json.loads(error_json(errors.BadRequest("got '\ud800'")))["error"]["message"] == "got '\ud800'"


def test_a_long_message_loses_its_middle() -> None:
    error = errors.BadRequest("begin" + "x" * 1_000_000 + "end", param="y" * 1_000_000)
    assert error.message.startswith("beginx")
    assert error.message.endswith("xend")
    assert len(error_json(error)) < 10_000


async def answer_to(error: Exception) -> tuple[int, dict[str, str], dict[str, object]]:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/path")
    async def fail() -> None:
        raise error

    transport = ASGITransport(app=app, raise_app_exceptions=False)
    async with AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/path")
    return answer.status_code, dict(answer.headers), answer.json()["error"]


async def test_headers_tell_when_to_try_again_and_which_scheme_is_expected() -> None:
    status, headers, _ = await answer_to(QueueFull("full", retry_after=7))
    assert (status, headers["retry-after"]) == (429, "7")
    assert (await answer_to(errors.Unauthorized("no key")))[1]["www-authenticate"] == "Bearer"


async def test_an_unexpected_exception_shows_nothing_of_itself() -> None:
    status, _, error = await answer_to(RuntimeError("secret path /root"))
    assert status == 500
    assert "secret" not in str(error["message"])
    assert error["code"] == "internal_error"


async def test_errors_of_any_status_keep_it() -> None:
    status, _, error = await answer_to(HTTPException(418, "teapot"))
    assert (status, error["message"], error["type"]) == (418, "teapot", "invalid_request_error")
    status, _, error = await answer_to(ApiError(431, "headers too large", "invalid_request_error", code="headers"))
    assert (status, error["code"]) == (431, "headers")
