"""Server-sent events: what stands on one line is one line for every reader."""

import random

import httpx
import orjson
import pytest

from server.http.sse import TokenEvent, event, one_line

TEXTS = ["a\u2028b", "\u2029", "x\x85y", "\u0b85\u20a8", "\r\n\v\f\x1c\x1d\x1e"]


@pytest.mark.parametrize("text", [*TEXTS, "".join(TEXTS)])
async def test_httpx_reads_an_event_as_one_line(text: str) -> None:
    written = [event(orjson.dumps({"text": text})), TokenEvent({"text": TokenEvent.TEXT}).of(text)]
    for sent in [*written, one_line(orjson.dumps({"text": text})) + b"\n"]:
        answer = httpx.Response(200, content=sent)
        lines = [line for line in answer.iter_lines() if line]
        assert [orjson.loads(line.removeprefix("data: ")) for line in lines] == [{"text": text}]


def test_any_text_stays_the_same() -> None:
    for _ in range(200):
        text = "".join(chr(random.choice([random.randrange(0xD800), 0x85, 0x2028, 0x2029])) for _ in range(9))
        assert orjson.loads(one_line(orjson.dumps(text))) == text
