"""Reader of multipart/form-data (RFC 7578) as it arrives, so that a file is never whole in memory. Independent of the
routes.
"""

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from starlette.datastructures import Headers

from lightwell.server.http.errors import BadRequest, UnsupportedMediaType, shown

_MOST_HEAD = 4096
"""Most bytes of the headers of a part."""
_MOST_PARTS = 32
_BOUNDARY = re.compile(r'(?:^|;)\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))(?=\s*(?:;|$))', re.IGNORECASE)
_PARAMETER = re.compile(rb';\s*(name|filename)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))', re.IGNORECASE)


class Part(NamedTuple):
    """The head of a part: the name of its field, and the name of its file if it is one."""

    name: str
    filename: str | None


def boundary_of(headers: Headers) -> bytes:
    """Return the boundary of a form. Raises UnsupportedMediaType for any other body."""
    content_type = headers.get("content-type", "")
    kind, _, parameters = content_type.partition(";")
    found = _BOUNDARY.search(parameters)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        raise UnsupportedMediaType(
            f"Content-Type is {shown(content_type)}; multipart/form-data with a boundary is accepted.",
            code="unsupported_media_type",
        )
    return (found[1] or found[2]).encode("latin-1")


class MultipartReader:
    """Reads a form: call `next_part`, then iterate over `data` for the content of the part, or leave it out.

    Raises BadRequest for a body of another form.
    """

    def __init__(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        self._chunks = chunks
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # the first delimiter may be at the beginning
        self._num_parts = 0
        self._is_in_data = True

    async def next_part(self) -> Part | None:
        """Return the head of the next part, or None after the last."""
        async for _ in self.data():
            pass
        while len(self._buffer) < 2:
            await self._fill()
        if self._buffer.startswith(b"--"):
            return None
        while (end := self._buffer.find(b"\r\n\r\n")) < 0 and len(self._buffer) <= _MOST_HEAD:
            await self._fill()
        self._num_parts += 1
        if not 0 <= end <= _MOST_HEAD or self._num_parts > _MOST_PARTS:
            raise _wrong(f"at most {_MOST_PARTS} parts are accepted, with headers of at most {_MOST_HEAD} bytes")
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        self._is_in_data = True
        lines = (line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disposition:"))
        found = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(next(lines, b""))}
        if b"name" not in found:
            raise _wrong("each part needs a Content-Disposition with a name")
        filename = found.get(b"filename")
        return Part(_text(found[b"name"]), None if filename is None else _text(filename))

    async def data(self) -> AsyncIterator[bytes]:
        """Yield the rest of the content of the present part."""
        while self._is_in_data:
            end = self._buffer.find(self._delimiter)
            if end >= 0:
                piece, self._buffer = self._buffer[:end], self._buffer[end + len(self._delimiter) :]
                self._is_in_data = False
            else:  # the delimiter may have begun at the end of the buffer
                kept = len(self._delimiter) - 1
                piece, self._buffer = self._buffer[:-kept], self._buffer[-kept:]
            if piece:
                yield piece
            elif self._is_in_data:
                await self._fill()

    async def text(self, most: int = 1024) -> str:
        """Return the content of the present part, a field of at most `most` bytes."""
        content = b""
        async for piece in self.data():
            content += piece
            if len(content) > most:
                raise _wrong(f"a field has more than {most} bytes")
        return _text(content)

    async def _fill(self) -> None:
        chunk = await anext(self._chunks, None)
        if not chunk:
            if chunk is None:
                raise _wrong("the body ends before its last boundary")
            return
        self._buffer += chunk


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _wrong(reason: str) -> BadRequest:
    return BadRequest(f"The form cannot be read: {reason}.", code="form_invalid")
