"""Forms are read as they arrive: any division into chunks gives the same parts, and a broken form is refused."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from lightwell.server.http.errors import ApiError, BadRequest
from lightwell.server.http.multipart import MultipartReader, boundary_of

PARTS = [("purpose", None, b"batch"), ("file", 'a \\"b\\".jsonl', b"\r\n--bound\r\n\r\n--x--"), ("empty", None, b"")]
FORM = (
    b'preamble\r\n--boundary\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--boundary\r\ncontent-disposition: form-data; filename="a \\"b\\".jsonl"; name=file\r\n'
    b"Content-Type: application/jsonl\r\n\r\n\r\n--bound\r\n\r\n--x--\r\n"
    b'--boundary\r\nContent-Disposition: form-data; name="empty"\r\n\r\n\r\n--boundary--\r\nepilogue'
)


async def chunks_of(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def read(*pieces: bytes) -> list[tuple[str, str | None, bytes]]:
    form = MultipartReader(chunks_of(pieces), b"boundary")
    found = []
    while (part := await form.next_part()) is not None:
        found.append((part.name, part.filename, b"".join([piece async for piece in form.data()])))
    return found


@given(st.lists(st.integers(0, len(FORM)), max_size=8))
def test_a_form_is_the_same_in_any_chunks(places: list[int]) -> None:
    ends = [0, *sorted(places), len(FORM)]
    pieces = [FORM[start:end] for start, end in pairwise(ends)]
    assert asyncio.run(read(*pieces)) == PARTS


async def test_a_form_may_be_divided_at_every_byte() -> None:
    for place in range(len(FORM)):
        assert await read(FORM[:place], FORM[place:]) == PARTS
    assert await read(*(FORM[i : i + 1] for i in range(len(FORM)))) == PARTS


async def test_a_part_that_is_not_read_is_left_out() -> None:
    form = MultipartReader(chunks_of([FORM]), b"boundary")
    names = []
    while (part := await form.next_part()) is not None:
        names.append(part.name)
    assert names == ["purpose", "file", "empty"]


HEAD = b"--boundary\r\nContent-Disposition: form-data; name=a\r\n\r\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends before"),
        (FORM[:-20], "ends before"),
        (b"--boundary\r\nContent-Type: text/plain\r\n\r\n1\r\n--boundary--", "needs a Content-Disposition"),
        (b"--boundary\r\n" + b"x" * 5000, "headers of at most 4096 bytes"),
        ((HEAD + b"1\r\n") * 33, "at most 32 parts"),
    ],
)
async def test_a_broken_form_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await read(content)


async def test_a_field_is_bounded() -> None:
    form = MultipartReader(chunks_of([HEAD + b"x" * 2000 + b"\r\n--boundary--"]), b"boundary")
    await form.next_part()
    with pytest.raises(BadRequest, match="more than 1024 bytes"):
        await form.text()


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b:c"', b"a b:c"),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=" + "x" * 71, None),
        ("application/json; boundary=abc", None),
    ],
)
def test_the_boundary_is_a_parameter_of_the_type(content_type: str, boundary: bytes | None) -> None:
    headers = Headers({"content-type": content_type})
    if boundary is None:
        with pytest.raises(ApiError, match="multipart/form-data with a boundary"):
            boundary_of(headers)
    else:
        assert boundary_of(headers) == boundary
