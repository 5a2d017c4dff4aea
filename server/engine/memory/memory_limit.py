"""Limits how much memory a worker may take: an allocation beyond the limit fails, and with it one request, before
the kernel's OOM killer ends all of them. Linux; standard library only.
"""

import contextlib
import ctypes
import gc
import logging
import mmap
import resource
from collections.abc import Iterator
from pathlib import Path

from server.engine.memory import cgroups

logger = logging.getLogger(__name__)

_ROOT = Path("/")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""The C library's `malloc_trim`, looked up now and not when memory is short; None if the C library lacks it."""
_M_TRIM_THRESHOLD, _TRIM_THRESHOLD = -1, 128 << 10
"""glibc's number of the option, and its default value in bytes."""
_SHARE = 0.9
"""Share of the memory left once the model is loaded; the rest is for the API process and other processes."""

_SPARE = 8 << 20
"""Spare bytes. The code of a product takes some 10 KiB, a thread's stack some MiB."""

_LEAST_ROOM = (32 << 20) + _SPARE
"""Bytes without which a worker cannot serve: the stack of the thread that compiles grammars, and some for a step."""

_RESERVE = 16 << 20
"""Bytes of the limit that only a request that is tried again may take (`reserve`). The C library can reuse what a
failed step has freed, but need not have returned it to the kernel, where the memory for a product's code comes from.
"""


def limit_memory(
    limit: int | None, share: int | None = None, num_processes: int = 1, device: str = "cpu"
) -> int | None:
    """Limit this process's memory to `limit` bytes or, with None, to most of what the machine or container has left
    (`free_in_share`) for it and its sibling processes, `num_processes` in all, each of which does the same. A process
    that computes on a card is not limited.

    Private, writable memory counts (RLIMIT_DATA), touched or not. Call it once the model is loaded. Returns how many
    bytes may be taken in addition to what is taken already, or None if that cannot be known and nothing is limited.
    Raises ValueError for a limit, or a machine's memory, that leaves nothing for requests.
    """
    if device.startswith("cuda"):
        # What CUDA only reserves does not count (it cannot be written to), but what the driver maps for modules, graphs
        # and pinned memory may, and it takes a failure there for the end of the whole context.
        if limit is not None:
            logger.warning("--worker-memory does not bound a worker on a GPU; a container's limit does")
        return None
    taken = data_bytes()
    needed = taken + _RESERVE + _LEAST_ROOM
    if limit is None:
        free = free_in_share(share)
        if free is None:
            return None
        untouched = max(0, taken - _status_bytes("RssAnon"))  # most of the KV cache: it takes memory as it is used
        limit = taken + int(max(0, free // num_processes - untouched) * _SHARE)
        if limit < needed:
            raise ValueError(
                f"the model and its KV cache take {taken * num_processes >> 20} MiB, and the {free >> 20} MiB of free "
                "memory are not enough for requests; set a smaller --kv-cache-memory"
            )
    elif limit < needed:
        raise ValueError(
            f"--worker-memory {limit * num_processes} (bytes) is not enough: {needed * num_processes} are needed once "
            "the model is loaded; this size, or a smaller --kv-cache-memory, is accepted"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit - _RESERVE, hard))
    logger.info("the worker has taken %d MiB of memory and may take %d", taken >> 20, limit >> 20)
    return limit - _RESERVE - taken


@contextlib.contextmanager
def reserve() -> Iterator[None]:
    """Allow taking what `limit_memory` kept back, within the context."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    more = soft + _RESERVE
    resource.setrlimit(resource.RLIMIT_DATA, (more if hard == resource.RLIM_INFINITY else min(more, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def give_back_memory() -> None:
    """Return freed memory that the C library keeps for later to the kernel. At the limit, what comes from the kernel
    itself (the code of a new product, a thread's stack) could otherwise not be allocated, now or ever.
    """
    if _trim is not None:
        _trim(0)


def keep_little_memory() -> None:
    """Make the C library return a thread's freed memory to the kernel however large the largest body was. Otherwise
    glibc raises its threshold to twice the largest freed buffer, up to 64 MiB for each thread, and `malloc_trim` leaves
    the end of a thread's memory as it is.
    """
    if _trim is not None:
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


def own_memory(num_bytes: int) -> mmap.mmap:
    """Return zeroed memory straight from the kernel; it goes back there when its last reference is dropped. Use it for
    what is large and held for long: the C library could not give it back while any later allocation is in use.

    Raises MemoryError, also if the steps would be left without the memory that they need from the kernel.
    """
    try:
        found = huge_pages(num_bytes)
        huge_pages(_SPARE).close()
    except (OSError, OverflowError):
        raise MemoryError(f"can't allocate {num_bytes} bytes, and leave {_SPARE} for the steps") from None
    return found


def huge_pages(num_bytes: int) -> mmap.mmap:
    """Return zeroed memory straight from the kernel, in huge pages if it has them. Raises OSError or OverflowError."""
    found = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages: each small one then costs a microsecond
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


def data_bytes(pid: int | None = None) -> int:
    """Return the bytes that count towards the limit now, for this process or another: VmData of /proc/PID/status."""
    return _status_bytes("VmData", pid)


def _status_bytes(wanted: str, pid: int | None = None) -> int:
    """Return one size from /proc/PID/status, by the name it has there."""
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == wanted:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/{pid or 'self'}/status has no {wanted}")


def free_host_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes of this machine that could be allocated now, within the container's limit if there is one, or
    None if the kernel does not report it.
    """
    return _host_memory("MemAvailable", cgroups.free_memory(root), root)


def total_host_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes of this machine's memory, or the container's limit if that is less, or None as above."""
    return _host_memory("MemTotal", cgroups.memory_limit(root), root)


def _host_memory(name: str, in_container: int | None, root: Path) -> int | None:
    try:
        fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        on_machine = int(fields[name].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
    return on_machine if in_container is None else min(on_machine, in_container)


def free_in_share(share: int | None) -> int | None:
    """Return `free_host_memory`, but no more than what this process has not touched yet of its `share` (bytes), if
    it has one: other workers have their shares, and may not have taken them yet.
    """
    free = free_host_memory()
    return free if free is None or share is None else min(free, max(0, share - _status_bytes("RssAnon")))


def freeze_garbage() -> None:
    """Begin to collect garbage, but never among the objects of the start: a search among them takes 0.1 to 0.2 s, and
    frees no memory. Memory that the start no longer needs is returned to the kernel.
    """
    gc.freeze()
    gc.enable()
    give_back_memory()
