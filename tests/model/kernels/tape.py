"""Records calls of kernels with all the memory that they see, before and after, so that `replay.c` can repeat them on
another machine and the bits be compared. It works with any kernel: it records the memory of the callers' variables.

    TAPE=FILE python -m pytest -p tests.model.kernels.tape tests/model/kernels
"""

import ctypes
import os
import pickle
import random
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch

MOST_BYTES, MOST_CALLS = 1 << 18, 24
"""Most bytes of a call that is recorded, and most calls of a kernel and a level."""

_DEPTH, _FRAMES = 6, 6
_FLOATS = {"float32": (4, 0x7FFFFFFF, 0x7F800000), "bfloat16": (2, 0x7FFF, 0x7F80), "float16": (2, 0x7FFF, 0x7C00)}


@dataclass
class Memory:
    """Some bytes. dtype: its numbers' name; links: places of pointers in it, each to (memory, offset)."""

    address: int
    size: int
    dtype: str
    before: bytes = b""
    after: bytes = b""
    links: dict[int, tuple[int, int]] = field(default_factory=dict)

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.size)

    def differs(self, found: bytes) -> bool:
        """Return whether bits differ from those after the call, pointers and NaNs aside."""
        return not np.array_equal(self._comparable(found), self._comparable(self.after))

    def _comparable(self, bits: bytes) -> np.ndarray:
        if self.dtype in _FLOATS:
            size, magnitude, infinity = _FLOATS[self.dtype]
            numbers = np.frombuffer(bits, f"u{size}")
            return np.where(numbers & magnitude > infinity, magnitude, numbers)
        numbers = np.frombuffer(bits, "u1").copy()
        for offset in self.links:
            numbers[offset : offset + 8] = 0
        return numbers


@dataclass
class Call:
    """One call. words: longs and pointers, each (memory, offset) or (-1, number)."""

    name: str
    level: str
    memories: list[Memory]
    words: list[tuple[int, int]]
    floats: list[float]

    def write(self, level: str) -> bytes:
        """Write the call as `replay.c` reads it, at a level."""
        links = [(i, at, *target) for i, memory in enumerate(self.memories) for at, target in memory.links.items()]
        counts = len(self.memories), len(links), len(self.words), len(self.floats)
        parts = [f"{self.name}_{level}".encode().ljust(64, b"\0"), struct.pack("<4q", *counts)]
        parts += [struct.pack("<q", each.size) + each.before for each in self.memories]
        parts += [struct.pack("<4q", *link) for link in links] + [struct.pack("<2q", *word) for word in self.words]
        return b"".join([*parts, struct.pack(f"<{len(self.floats)}f", *self.floats)])

    def differing(self, left: bytes) -> list[str]:
        """Return the differences in the memory after a replay."""
        found, start = [], 0
        for number, memory in enumerate(self.memories):
            if memory.differs(left[start : start + memory.size]):
                found.append(f"{self.name}, recorded at {self.level}: {memory.dtype} memory {number}")
            start += memory.size
        return found

    @property
    def size(self) -> int:
        """Return the number of bytes that a replay leaves."""
        return sum(each.size for each in self.memories)


class Recorder:
    """Records some of the calls of each kernel and level, at random: all have the same chance."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], list[Call]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()

    def record(self, call: Any, kernels: Any, name: str, types: str, arguments: tuple[Any, ...]) -> None:
        """Run a call of `Kernels.call`, and maybe record it."""
        key = name, kernels.level
        self._seen[key] += 1
        kept, place = self.calls.setdefault(key, []), random.randrange(self._seen[key])
        recorded = None
        if len(kept) < MOST_CALLS or place < MOST_CALLS:
            recorded = _before(name, kernels.level, types, arguments, sys._getframe(2))
        call(kernels, name, types, *arguments)
        if recorded is None:
            return
        for memory in recorded.memories:
            memory.after = memory.read()
        if len(kept) < MOST_CALLS:
            kept.append(recorded)
        elif place < MOST_CALLS:  # not so where other threads have filled it meanwhile
            kept[place] = recorded


def _before(name: str, level: str, types: str, arguments: tuple[Any, ...], frame: FrameType) -> Call | None:
    """Return the call with its memory, or None if that is too large or cannot be found."""
    there = sorted({(m.address, m.size): m for m in _memories_of(frame)}.values(), key=lambda m: (m.address, -m.size))
    used: list[Memory] = []

    def find(address: int) -> tuple[int, int] | None:
        """Return the memory that holds an address, among those used from now on, and the offset in it."""
        for memory in there:
            if memory.address <= address < memory.address + max(memory.size, 1):
                if memory not in used:
                    used.append(memory)
                return used.index(memory), address - memory.address
        return None

    words: list[tuple[int, int]] = []
    for kind, value in zip(types, arguments, strict=True):
        if kind == "l" or (kind == "p" and not value):
            words.append((-1, int(value or 0)))
        elif kind == "p":
            address = value if isinstance(value, int) else ctypes.addressof(value._obj)
            found = find(address)
            if found is None:
                return None
            words.append(found)
    for memory in used:  # grows while pointers are followed
        if memory.dtype == "struct":
            numbers = struct.unpack_from(f"<{memory.size // 8}q", memory.read())
            targets = {8 * i: find(number) for i, number in enumerate(numbers)}
            memory.links = {at: target for at, target in targets.items() if target is not None}
    if sum(each.size for each in used) > MOST_BYTES:
        return None
    for memory in used:
        memory.before = memory.read()
    return Call(name, level, used, words, [v for kind, v in zip(types, arguments, strict=True) if kind == "f"])


def _memories_of(frame: FrameType | None) -> Iterator[Memory]:
    """Yield the memory of all variables of the callers."""
    for _ in range(_FRAMES):
        if frame is None:
            return
        yield from _memories_in(frame.f_locals.values(), _DEPTH)
        frame = frame.f_back


def _memories_in(values: Iterable[Any], depth: int) -> Iterator[Memory]:
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            yield Memory(storage.data_ptr(), storage.nbytes(), str(value.dtype).removeprefix("torch."))
        elif isinstance(value, np.ndarray):
            whole = value if value.base is None or not isinstance(value.base, np.ndarray) else value.base
            yield Memory(whole.ctypes.data, whole.nbytes, "struct" if whole.dtype.names else str(whole.dtype))
        elif isinstance(value, ctypes.Structure | ctypes._SimpleCData | ctypes.Array):
            kind = "number" if isinstance(value, ctypes._SimpleCData) else "struct"
            yield Memory(ctypes.addressof(value), ctypes.sizeof(value), kind)
        elif depth > 0:
            if isinstance(value, list | tuple | set):
                yield from _memories_in(list(value)[:64], depth - 1)
            elif isinstance(value, dict):
                yield from _memories_in(list(value.values())[:64], depth - 1)
            elif type(value).__module__.startswith(("lightwell.model.", "tests.")):
                names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
                yield from _memories_in([getattr(value, name, None) for name in names], depth - 1)


_recorder = Recorder()


def pytest_configure() -> None:
    """Record from now on."""
    from lightwell.model.kernels.library import Kernels

    call = Kernels.call

    def call_recorded(self: Kernels, name: str, types: str, *arguments: Any) -> None:
        _recorder.record(call, self, name, types, arguments)

    Kernels.call = call_recorded


def pytest_unconfigure() -> None:
    """Write the recording."""
    with open(os.environ["TAPE"], "wb") as file:
        pickle.dump([call for calls in _recorder.calls.values() for call in calls], file)
