"""Frames over a Unix socket: complete for any cuts, in order, and without a hang when one end is closed."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.server.ipc.frames import Frame, FrameDecoder, FrameError, frame_parts
from lightwell.server.ipc.link import LinkProtocol, WorkerLink, listen
from tests.server.played_worker import until
from tests.support.examples import examples

frames = st.lists(
    st.tuples(
        st.one_of(st.binary(max_size=40), st.just(b"h" * 300_000)),
        st.lists(st.one_of(st.binary(max_size=40), st.just(bytes(range(256)) * 2000)), max_size=4),
    ),
    max_size=6,
)


def feed(decoder: FrameDecoder, data: bytes) -> list[Frame]:
    found = []
    while data:
        space = decoder.space()
        taken = data[: len(space)]
        space[: len(taken)] = taken
        found.extend(decoder.advance(len(taken)))
        data = data[len(taken) :]
    return found


@settings(max_examples=examples(60))
@given(frames, st.lists(st.integers(min_value=1, max_value=5000), min_size=1, max_size=50))
def test_frames_come_out_whole_however_the_bytes_are_cut(
    sent: list[tuple[bytes, list[bytes]]], cuts: list[int]
) -> None:
    data = b"".join(b"".join(frame_parts(header, buffers)) for header, buffers in sent)
    decoder, received, position = FrameDecoder(), [], 0
    for cut in cuts:
        received += feed(decoder, data[position : position + cut])
        position += cut
    received += feed(decoder, data[position:])
    assert [(frame.header, [bytes(buffer) for buffer in frame.buffers]) for frame in received] == sent


def test_a_buffer_of_megabytes_arrives_whole_between_small_ones() -> None:
    buffers = [b"before", bytes(range(256)) * (5 << 12) + b"odd", b"", b"behind"]
    (frame,) = feed(FrameDecoder(), b"".join(frame_parts(b"header", buffers)))
    assert [bytes(buffer) for buffer in frame.buffers] == buffers


@pytest.mark.parametrize(
    "nonsense",
    [struct.pack("<II", 1 << 31, 0), struct.pack("<II", 0, 1 << 20), struct.pack("<IIQ", 0, 1, 1 << 60)],
)
def test_an_absurd_size_is_refused_before_memory_is_taken(nonsense: bytes) -> None:
    with pytest.raises(FrameError, match="announces"):
        feed(FrameDecoder(), nonsense)


@pytest.fixture
def pair() -> Iterator[tuple[WorkerLink, socket.socket]]:
    mine, theirs = socket.socketpair()
    link = WorkerLink(mine)
    yield link, theirs
    link.close()
    theirs.close()


def read_frames(connected: socket.socket, count: int) -> list[Frame]:
    decoder = FrameDecoder()
    found: list[Frame] = []
    while len(found) < count:
        received = connected.recv_into(decoder.space())
        assert received, "the link ended early"
        found += decoder.advance(received)
    return found


def test_a_large_tensor_does_not_hold_up_the_sender(pair: tuple[WorkerLink, socket.socket]) -> None:
    link, theirs = pair
    large = bytes(range(256)) * 100_000
    link.send(b"large", [large])  # returns at once, although the other end does not read yet
    link.send(b"small")
    assert not link.flush(timeout=0)
    first, second = read_frames(theirs, 2)
    assert (first.header, bytes(first.buffers[0])) == (b"large", large)
    assert second.header == b"small"
    assert link.flush(timeout=60)


def test_a_frame_of_many_buffers_arrives(pair: tuple[WorkerLink, socket.socket]) -> None:
    link, theirs = pair
    buffers = [bytes([i % 256]) * 3 for i in range(70_000)]  # more than a system call takes; 64 traces of 44 layers
    link.send(b"many", buffers)
    assert [bytes(buffer) for buffer in read_frames(theirs, 1)[0].buffers] == buffers


def test_what_was_peeked_at_is_polled_again_in_its_order(pair: tuple[WorkerLink, socket.socket]) -> None:
    link, theirs = pair
    assert link.peek() == []
    theirs.sendall(b"".join(frame_parts(b"one")) + b"".join(frame_parts(b"two")))
    assert [frame.header for frame in link.peek()] == [b"one", b"two"]
    assert link.peek() == []
    theirs.sendall(b"".join(frame_parts(b"three")))
    assert [frame.header for frame in link.peek()] == [b"three"]
    theirs.sendall(b"".join(frame_parts(b"four")))
    assert [frame.header for frame in link.poll(60.0)] == [b"one", b"two", b"three", b"four"]
    assert link.poll(0.0) == []


@pytest.mark.parametrize("last_words", [b"", b"\xff" * 64])
def test_a_link_that_ends_is_the_business_of_poll(pair: tuple[WorkerLink, socket.socket], last_words: bytes) -> None:
    link, theirs = pair
    theirs.sendall(last_words)
    theirs.close()
    assert link.peek() == []
    with pytest.raises(ConnectionError):
        link.poll(60.0)


def test_the_worker_sees_that_the_other_end_is_gone(pair: tuple[WorkerLink, socket.socket]) -> None:
    link, theirs = pair
    lost = threading.Event()
    link.watch(lost.set)
    theirs.close()
    assert lost.wait(60)
    with pytest.raises(ConnectionError):
        link.poll(60.0)
    with pytest.raises(ConnectionError):
        link.send(b"anyone?")


def test_only_this_user_may_reach_the_socket(tmp_path: Path) -> None:
    listener = listen(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    listener.close()


async def test_both_ends_talk_and_nonsense_costs_its_own_link_only(tmp_path: Path) -> None:
    received: list[bytes] = []
    lost: list[str] = []
    protocols: list[LinkProtocol] = []

    def on_frame(protocol: LinkProtocol, frame: Frame) -> None:
        if frame.header == b"nonsense":
            raise ValueError("not understood")
        received.append(frame.header)
        protocols.append(protocol)

    def on_lost(protocol: LinkProtocol, reason: str) -> None:
        lost.append(reason)

    listener = listen(str(tmp_path))
    path = listener.getsockname()
    server = await asyncio.get_running_loop().create_unix_server(lambda: LinkProtocol(on_frame, on_lost), sock=listener)
    good, bad = WorkerLink.connect(path), WorkerLink.connect(path)
    good.send(b"hello", [b"x" * 1_000_000])
    await until(lambda: received == [b"hello"])
    bad.send(b"nonsense")
    await until(lambda: lost == ["it sent nonsense: not understood"])
    good.send(b"still here")
    await until(lambda: received == [b"hello", b"still here"])
    protocols[0].send(b"answer")
    assert [frame.header for frame in await asyncio.to_thread(good.poll, 60.0)] == [b"answer"]
    good.close()
    bad.close()
    server.close()
    await until(lambda: len(lost) == 2)


def test_a_poll_that_waits_is_woken_by_another_thread_and_loses_no_frame() -> None:
    near, far = socket.socketpair()
    link = WorkerLink(near)
    threading.Timer(0.05, link.wake).start()
    polled: list[list[Frame]] = []
    waiting = threading.Thread(target=lambda: polled.append(link.poll(3600.0)), daemon=True)
    waiting.start()
    waiting.join(60)
    assert polled == [[]]
    link.wake()
    for part in frame_parts(b"both at once"):
        far.sendall(part)
    assert [frame.header for frame in link.poll(60.0)] == [b"both at once"]
    assert link.poll(0.0) == []  # it was woken once, not for good
    link.close()
    far.close()
