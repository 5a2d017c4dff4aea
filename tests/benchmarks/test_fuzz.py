"""Broken, odd and hostile HTTP over raw sockets does no harm: a small run of benchmarks/fuzz with a fresh seed."""

import asyncio
import random

import pytest

from benchmarks.fuzz.__main__ import SERVE, fuzz
from benchmarks.fuzz.attacks import Attack
from benchmarks.fuzz.tables import VERSION
from benchmarks.fuzz.thrower import parse, problems
from tests.support.processes import serve


@pytest.mark.nightly
def test_whatever_comes_is_answered_or_closed_and_nothing_leaks() -> None:
    seed = random.SystemRandom().randrange(2**32)
    with serve(SERVE) as server:
        verdicts = asyncio.run(fuzz(server, count=400, idle=300, seed=seed))
    assert not verdicts.wrong, (f"python -m benchmarks.fuzz --count 400 --idle 300 --seed {seed}", verdicts.wrong[:10])
    assert len(verdicts.seconds["mutations"]) == 400


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (OK + OK, "2 answers"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\nno", "another shape"),
        (OK + b"garbage", "an answer that is none"),
        (OK[:-1], "an answer that is none"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", "an answer that is none"),
    ],
)
def test_the_fuzzer_sees_what_is_wrong(content: bytes, problem: str) -> None:
    assert problem in problems(Attack("x", (VERSION,)), parse(content))[0]
    assert problems(Attack("x", (VERSION * 2,), most_answers=2, least_answers=2), parse(OK))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        OK.replace(b"content-length: 2\r\n\r\nok", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    ],
)
def test_the_fuzzer_has_no_complaint_about_a_plain_answer(content: bytes) -> None:
    assert not problems(Attack("x", (VERSION,)), parse(content))
