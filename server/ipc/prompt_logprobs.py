"""Carries the log-probabilities of a prompt's tokens, which travel next to the message and are read when they are asked
for.

The message itself is read at once and holds up the event loop; a long prompt's log-probabilities would do so for tens
of milliseconds.
"""

from collections.abc import Sequence
from typing import overload

import msgspec

from server.engine.outputs import TokenLogprobs
from server.ipc.frames import Buffer

LOGPROBS_PIECE = 64
"""Positions of a prompt whose log-probabilities are sent, read and written together, which takes one to a few
milliseconds.
"""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[TokenLogprobs | None, ...]] = msgspec.msgpack.Decoder(
    tuple[TokenLogprobs | None, ...]
)


class WireLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """A prompt's log-probabilities, `length` of them in buffers from number `buffer` on, LOGPROBS_PIECE in each."""

    length: int
    buffer: int

    @property
    def end(self) -> int:
        """Return the number of the first buffer after them."""
        return self.buffer - (-self.length // LOGPROBS_PIECE)


def wire_logprobs(logprobs: Sequence[TokenLogprobs | None], buffers: list[Buffer]) -> WireLogprobs:
    """Return what the message says of these log-probabilities, and add their bytes to `buffers`."""
    wire = WireLogprobs(len(logprobs), len(buffers))
    starts = range(0, len(logprobs), LOGPROBS_PIECE)
    buffers.extend(_encoder.encode(logprobs[start : start + LOGPROBS_PIECE]) for start in starts)
    return wire


class PromptLogprobs(Sequence[TokenLogprobs | None]):
    """Log-probabilities that are read from their buffers on demand, a piece at a time."""

    def __init__(self, length: int, pieces: Sequence[Buffer]) -> None:
        self._length = length
        self._pieces = pieces

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenLogprobs | None]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprobs | list[TokenLogprobs | None] | None:
        positions = range(self._length)[index]
        if isinstance(positions, int):
            return self._piece(positions // LOGPROBS_PIECE)[positions % LOGPROBS_PIECE]
        read = {number: self._piece(number) for number in {position // LOGPROBS_PIECE for position in positions}}
        return [read[position // LOGPROBS_PIECE][position % LOGPROBS_PIECE] for position in positions]

    def _piece(self, number: int) -> tuple[TokenLogprobs | None, ...]:
        return _decoder.decode(self._pieces[number])
