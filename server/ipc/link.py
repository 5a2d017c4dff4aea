"""Frames over a Unix socket: a header and raw buffers, in one message. The worker's end blocks, the API's is asyncio.

    u32 header length, u32 number of buffers n, n x u64 buffer sizes, header, buffers      (little endian)

A frame that makes no sense ends the connection: whoever sent it cannot be trusted with the next one. Knows nothing
of what the header says.
"""

import asyncio
import atexit
import contextlib
import mmap
import os
import select
import shutil
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

Buffer = bytes | bytearray | memoryview
Received = bytearray | memoryview

_PREFIX = struct.Struct("<II")
_SCRATCH_BYTES = 256 * 1024
MAX_HEADER_BYTES = 1 << 28
MAX_BUFFERS = 1 << 19
"""A step may end hundreds of traces at once, each of all the points of a deep network, some 25 a layer."""
MAX_BUFFER_BYTES = 1 << 34
_LARGE = 4 << 20
"""Bytes from which on a buffer has memory of its own: in huge pages, of which few have to be had from the kernel."""
_PARTS_PER_CALL = 512  # sendmsg takes at most IOV_MAX (1024) parts


class FrameError(ConnectionError):
    """The other end sent something that is no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    header: bytes
    buffers: tuple[Received, ...]


def frame_parts(header: bytes, buffers: Sequence[Buffer] = ()) -> list[memoryview]:
    """A frame as pieces to be sent one after another; the buffers are not copied."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    return [
        memoryview(_PREFIX.pack(len(header), len(views)) + sizes + header),
        *(view for view in views if view.nbytes),
    ]


class FrameDecoder:
    """Takes bytes as they come, gives whole frames. Bytes of large buffers land in place, without a copy.

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
        """Where the next bytes go; never empty."""
        if self._is_filling():
            return memoryview(self._buffers[-1])[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        return memoryview(self._scratch)[self._end :]

    def advance(self, count: int) -> list[Frame]:
        """Frames that the `count` bytes just read complete. Raises FrameError."""
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
        """Whether the head of a frame (prefix, sizes, header) is known by now."""
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
        """Whether every buffer of the present frame is whole by now."""
        assert self._sizes is not None
        while not self._is_filling():
            if len(self._buffers) == len(self._sizes):
                return True
            size = self._sizes[len(self._buffers)]
            taken = min(size, self._end - self._start)
            buffer = _room(size)
            buffer[:taken] = memoryview(self._scratch)[self._start : self._start + taken]
            self._start += taken
            self._buffers.append(buffer)
            self._filled = taken
        return False

    def _make_room(self, needed: int) -> None:
        """Let the scratch hold `needed` bytes from its start on, and at least one byte more than it holds now."""
        if self._start + needed <= len(self._scratch):
            return
        held = self._scratch[self._start : self._end]
        if needed > len(self._scratch):
            self._scratch = bytearray(needed)
        self._scratch[: len(held)] = held
        self._start, self._end = 0, len(held)


def _room(num_bytes: int) -> Received:
    """Zeros."""
    if num_bytes < _LARGE:
        return bytearray(num_bytes)
    found = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        found.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(found)


class WorkerLink:
    """The worker's end. `poll`, `peek` and `send` are one thread's, `wake` any's; one of its own ends big frames."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = FrameDecoder()
        self._inbox: list[Frame] = []
        self._outbox: deque[memoryview] = deque()
        self._changed = threading.Condition()
        self._lost = False
        # Never closed: a thread may still wake when the link has ended, and the process ends soon after it.
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        threading.Thread(target=self._send_forever, name="link-sender", daemon=True).start()

    @classmethod
    def connect(cls, path: str) -> "WorkerLink":
        """Raises OSError when nobody listens."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(path)
        return cls(connected)

    def poll(self, timeout: float) -> list[Frame]:
        """Frames that have come, waiting up to `timeout` seconds for the first, or for `wake`.

        Raises ConnectionError at the end.
        """
        if self._lost:
            raise ConnectionResetError("the API process is gone")
        ready = self._poll.poll(0 if self._inbox else timeout * 1000)
        if any(descriptor == self._woken for descriptor, _ in ready):
            os.eventfd_read(self._woken)
        if ready:
            self._receive()
        frames, self._inbox = self._inbox, []
        return frames

    def peek(self) -> list[Frame]:
        """Frames that have come since the last look, without waiting; the next `poll` returns them in their order, and
        raises where the link has ended: this does not.
        """
        if not self._poll.poll(0):  # a fifth of what it costs to be told that there is nothing to read
            return []
        num_known = len(self._inbox)
        try:
            self._receive()
        except ConnectionError:
            with self._changed:
                self._lost = True
                self._changed.notify_all()
        return self._inbox[num_known:]

    def _receive(self) -> None:
        """Whatever has come, without waiting. Raises ConnectionError at the end."""
        while True:
            try:
                count = self._socket.recv_into(self._decoder.space(), flags=socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if count == 0:
                raise ConnectionResetError("the API process is gone")
            self._inbox.extend(self._decoder.advance(count))

    def wake(self) -> None:
        """Let `poll` return now, or the next one at once. From any thread."""
        os.eventfd_write(self._woken, 1)

    def send(self, header: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Send a frame, or leave what the socket will not take at once to the sender thread.

        The buffers must not change afterwards. Raises ConnectionError when the other end is gone.
        """
        parts = deque(frame_parts(header, buffers))
        with self._changed:
            if self._lost:
                raise ConnectionResetError("the API process is gone")
            if not self._outbox:
                try:
                    while parts:
                        self._send_some(parts, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
            if parts:
                self._outbox.extend(parts)
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all is sent; False when it is not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._outbox or self._lost, timeout) and not self._lost

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost`, from a thread, as soon as the other end is gone, however busy this process is."""

        def wait() -> None:
            hangup = select.poll()
            hangup.register(self._socket, select.POLLRDHUP)
            hangup.poll()
            on_lost()

        threading.Thread(target=wait, name="link-watch", daemon=True).start()

    def close(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send_some(self, parts: deque[memoryview], flags: int = 0) -> None:
        """One system call; takes what was sent off `parts`."""
        sent = self._socket.sendmsg([part for _, part in zip(range(_PARTS_PER_CALL), parts, strict=False)], [], flags)
        while sent:
            part = parts.popleft()
            if sent < part.nbytes:
                parts.appendleft(part[sent:])
                return
            sent -= part.nbytes

    def _send_forever(self) -> None:
        """The sender thread. It holds the lock only to look at the outbox, so `send` never waits for the socket."""
        ready = select.poll()
        ready.register(self._socket, select.POLLOUT)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox or self._lost)
                if self._lost:
                    return
            ready.poll(1000)
            with self._changed:
                try:
                    if self._outbox and not self._lost:
                        self._send_some(self._outbox, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                except OSError:
                    self._lost = True
                if not self._outbox or self._lost:
                    self._changed.notify_all()


class LinkProtocol(asyncio.BufferedProtocol):
    """The API's end of one worker's socket: calls `on_frame` for each frame and `on_lost` once, at the end."""

    def __init__(
        self, on_frame: Callable[["LinkProtocol", Frame], None], on_lost: Callable[["LinkProtocol", str], None]
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._reason = "the connection ended"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._decoder.advance(nbytes):
                self._on_frame(self, frame)
        except Exception as error:  # a worker that talks nonsense is lost, and the other workers are not
            self.abort(f"it sent nonsense: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self, self._reason)

    def send(self, header: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Queue a frame; does nothing once the connection is lost. The buffers must not change afterwards."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(frame_parts(header, buffers))

    def abort(self, reason: str) -> None:
        """End the connection now; `on_lost` gets the reason."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()


def listen(folder: str) -> socket.socket:
    """A listening Unix socket `engine.sock` in `folder`, which only this user may enter and this process leaves behind
    under no circumstances but its own violent death.
    """
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # a signal may end the start before anyone else would
    os.chmod(folder, 0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.path.join(folder, "engine.sock"))
    listener.listen(16)
    listener.setblocking(False)
    return listener


def is_listened_to(path: str, patience: float = 1.0) -> bool:
    """Whether a process listens on the socket; one that is just ending gets `patience` seconds to be gone."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
        hangup = select.poll()
        hangup.register(probe, select.POLLRDHUP)
        return not hangup.poll(patience * 1000)
    except OSError:
        return False
    finally:
        probe.close()
