"""Server-sent events: one line of data is one line for every reader."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import orjson
import pytest
from pydantic import BaseModel
from starlette.types import Message

from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.http.error_handlers import translated
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.sse import EventStream, TokenEvent, event, one_line

TEXTS = ["a\u2028b", "\u2029", "x\x85y", "\u0b85\u20a8", "\r\n\v\f\x1c\x1d\x1e"]


@pytest.mark.parametrize("text", [*TEXTS, "".join(TEXTS)])
async def test_httpx_reads_an_event_as_one_line(text: str) -> None:
    written = [event(orjson.dumps({"text": text})), TokenEvent({"text": TokenEvent.TEXT}).of(text)]
    for sent in [*written, one_line(orjson.dumps({"text": text})) + b"\n"]:
        answer = httpx.Response(200, content=sent)
        lines = [line for line in answer.iter_lines() if line]
        assert [orjson.loads(line.removeprefix("data: ")) for line in lines] == [{"text": text}]


async def test_an_answer_of_ours_that_is_wrong_is_no_error_of_the_client() -> None:
    """Check that a stream of another API does not report a pydantic error of the server's own objects as an error of
    the request body.
    """

    class Answer(BaseModel):
        number: int

    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        Answer.model_validate({"number": "secret"})

    async def never() -> Message:
        return await asyncio.Future[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    stream = EventStream(events(), lambda: None)
    await stream({"type": "http"}, never, send)
    last = next(message["body"] for message in reversed(sent) if message.get("body"))
    assert b'"code": "internal_error"' in last
    assert b"number" not in last
    with pytest.raises(BadRequest) as caught, FieldNames({"number": "options.number"}).in_errors():
        translated(Answer, {"number": "secret"})
    assert caught.value.param == "options.number"
