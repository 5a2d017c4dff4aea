"""Frames: a header and raw buffers in one message, as bytes.

    u32 header length, u32 number of buffers n, n x u64 buffer sizes, header, buffers      (little endian)

An invalid frame ends the connection.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lightwell.server.engine.memory.process_memory import huge_pages

Buffer = bytes | bytearray | memoryview
Received = bytearray | memoryview

_PREFIX = struct.Struct("<II")
_SCRATCH_BYTES = 256 * 1024
MAX_HEADER_BYTES = 1 << 28
MAX_BUFFERS = 1 << 19
"""Most buffers of a frame. A step may end hundreds of traces at once, each of all points of a deep network, about 25 in
each layer.
"""
MAX_BUFFER_BYTES = 1 << 34
_LARGE = 4 << 20
"""Least bytes of a buffer with its own mapping, in huge pages, which take the kernel little time."""


class FrameError(ConnectionError):
    """Raised for bytes that are not a frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    header: bytes
    buffers: tuple[Received, ...]


def frame_parts(header: bytes, buffers: Sequence[Buffer] = ()) -> list[memoryview]:
    """Return the pieces of a frame, in order; the buffers are not copied."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    return [
        memoryview(_PREFIX.pack(len(header), len(views)) + sizes + header),
        *(view for view in views if view.nbytes),
    ]


class FrameDecoder:
    """Turns bytes, as they arrive, into whole frames. Large buffers are read into place, without a copy.

    Use: read into `space()`, then `advance(n)` with the number of bytes read.
    """

    def __init__(self) -> None:
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._start = 0
        self._end = 0
        self._header = b""
        self._sizes: list[int] | None = None  # of the frame whose buffers are being read
        self._buffers: list[Received] = []
        self._filled = 0  # of the last buffer

    def space(self) -> memoryview:
        """Return the memory for the next bytes; it is never empty."""
        if self._is_filling():
            return memoryview(self._buffers[-1])[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        return memoryview(self._scratch)[self._end :]

    def advance(self, count: int) -> list[Frame]:
        """Return the frames that the `count` bytes just read complete. Raises FrameError for malformed bytes."""
        if self._is_filling():
            self._filled += count
        else:
            self._end += count
        frames: list[Frame] = []
        while self._read_head() and self._read_buffers():
            frames.append(Frame(self._header, tuple(self._buffers)))
            self._sizes, self._buffers, self._filled = None, [], 0
        return frames

    def _is_filling(self) -> bool:
        return bool(self._buffers) and self._filled < len(self._buffers[-1])

    def _read_head(self) -> bool:
        """Return whether the head of a frame (prefix, sizes, header) has been read."""
        if self._sizes is not None:
            return True
        held = self._end - self._start
        if held < _PREFIX.size:
            self._make_room(_PREFIX.size)
            return False
        header_bytes, num_buffers = _PREFIX.unpack_from(self._scratch, self._start)
        if header_bytes > MAX_HEADER_BYTES or num_buffers > MAX_BUFFERS:
            raise FrameError(f"a frame announces a header of {header_bytes} bytes and {num_buffers} buffers")
        head = _PREFIX.size + 8 * num_buffers + header_bytes
        if held < head:
            self._make_room(head)
            return False
        sizes = list(struct.unpack_from(f"<{num_buffers}Q", self._scratch, self._start + _PREFIX.size))
        if any(size > MAX_BUFFER_BYTES for size in sizes):
            raise FrameError(f"a frame announces a buffer of {max(sizes)} bytes")
        end = self._start + head
        self._header = bytes(memoryview(self._scratch)[end - header_bytes : end])
        self._start, self._sizes = end, sizes
        return True

    def _read_buffers(self) -> bool:
        """Return whether every buffer of the current frame is complete."""
        assert self._sizes is not None
        while not self._is_filling():
            if len(self._buffers) == len(self._sizes):
                return True
            size = self._sizes[len(self._buffers)]
            taken = min(size, self._end - self._start)
            buffer: Received = bytearray(size) if size < _LARGE else memoryview(huge_pages(size))
            buffer[:taken] = memoryview(self._scratch)[self._start : self._start + taken]
            self._start += taken
            self._buffers.append(buffer)
            self._filled = taken
        return False

    def _make_room(self, needed: int) -> None:
        """Make room for `needed` bytes from the start of the data, and for at least one more byte than it holds now."""
        if self._start + needed <= len(self._scratch):
            return
        held = self._scratch[self._start : self._end]
        if needed > len(self._scratch):
            self._scratch = bytearray(needed)
        self._scratch[: len(held)] = held
        self._start, self._end = 0, len(held)
