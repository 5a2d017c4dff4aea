"""Memory of this process and of the machine: measurement, limit and release. Linux only.

Beyond a worker's limit an allocation fails, and with it one request, before the kernel's OOM killer ends all of them.
"""

import contextlib
import ctypes
import gc
import logging
import mmap
import resource
from collections.abc import Iterator
from pathlib import Path

from lightwell.server.engine.memory import cgroups

logger = logging.getLogger(__name__)

_ROOT = Path("/")
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""The C library's `malloc_trim`, found before memory is short; None if the C library lacks it."""
_M_TRIM_THRESHOLD, _TRIM_THRESHOLD = -1, 128 << 10
"""glibc's number of the option, and its default value in bytes."""
_SHARE = 0.9
"""Share of the free memory after loading; the rest is for the API process and other processes."""

_SPARE = 8 << 20
"""Spare bytes. The code of a product takes some 10 KiB, a thread's stack some MiB."""

_LEAST_ROOM = (32 << 20) + _SPARE
"""Least bytes for serving: the stack of the thread that compiles grammars, and memory for a step."""

_RESERVE = 16 << 20
"""Bytes of the limit for requests that are tried again (`reserve`): the C library may keep the memory that a failed
step has freed, but memory for a product's code comes from the kernel.
"""


def limit_memory(
    limit: int | None, share: int | None = None, num_processes: int = 1, device: str = "cpu"
) -> int | None:
    """Limit this process's memory to `limit` bytes or, with None, to its part of most of the free memory
    (`free_in_share`), which `num_processes` processes divide. A process that computes on a GPU is not limited.

    Private, writable memory counts (RLIMIT_DATA), touched or not. Call it after the model is loaded. Returns the bytes
    up to the limit, or None without a limit. Raises ValueError for a limit, or a machine's memory, that leaves nothing
    for requests.
    """
    if device.startswith("cuda"):
        # CUDA's reserved memory does not count, since it is not writable. But the driver's mappings for modules, graphs
        # and pinned memory may count, and a failure there ends the whole context.
        if limit is not None:
            logger.warning("--worker-memory does not bound a worker on a GPU; a container's limit does")
        return None
    taken = data_bytes()
    needed = taken + _RESERVE + _LEAST_ROOM
    if limit is None:
        free = free_in_share(share)
        if free is None:
            return None
        untouched = max(0, taken - _status_bytes("RssAnon"))  # mostly the KV cache, which takes memory when used
        limit = taken + int(max(0, free // num_processes - untouched) * _SHARE)
        if limit < needed:
            raise ValueError(
                f"the model and its KV cache take {taken * num_processes >> 20} MiB, and the {free >> 20} MiB of free "
                "memory are not enough for requests; set a smaller --kv-cache-memory"
            )
    elif limit < needed:
        raise ValueError(
            f"--worker-memory {limit * num_processes} (bytes) is not enough: {needed * num_processes} bytes are "
            "needed after the model is loaded; this size, or a smaller --kv-cache-memory, is accepted"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit - _RESERVE, hard))
    logger.info("the worker has taken %d MiB of memory and may take %d", taken >> 20, limit >> 20)
    return limit - _RESERVE - taken


@contextlib.contextmanager
def reserve() -> Iterator[None]:
    """Allow the use of the reserve of `limit_memory`, within the context."""
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
    """Return freed memory from the C library to the kernel. Otherwise, at the limit, memory from the kernel (for the
    code of a new product, or a thread's stack) could never be allocated.
    """
    if _trim is not None:
        _trim(0)


def keep_little_memory() -> None:
    """Make the C library return a thread's freed memory to the kernel after bodies of any size. Otherwise glibc raises
    its threshold to twice the largest freed buffer, up to 64 MiB for each thread, and `malloc_trim` keeps the end of a
    thread's memory.
    """
    if _trim is not None:
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


def own_memory(num_bytes: int) -> mmap.mmap:
    """Return zeroed memory from the kernel, which is returned with its last reference. Use it for large tensors with a
    long life: the C library could not return their memory while any later allocation is in use.

    Raises MemoryError, also if the steps would lack memory from the kernel.
    """
    try:
        found = huge_pages(num_bytes)
        huge_pages(_SPARE).close()
    except (OSError, OverflowError):
        raise MemoryError(f"can't allocate {num_bytes} bytes, and leave {_SPARE} for the steps") from None
    return found


def huge_pages(num_bytes: int) -> mmap.mmap:
    """Return zeroed memory from the kernel, in huge pages if it has them. Raises OSError or OverflowError."""
    found = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages; each small page then costs a microsecond
        found.madvise(mmap.MADV_HUGEPAGE)
    return found


def data_bytes(pid: int | None = None) -> int:
    """Return the bytes of a process that count towards its limit: VmData of /proc/PID/status."""
    return _status_bytes("VmData", pid)


def _status_bytes(wanted: str, pid: int | None = None) -> int:
    """Return one size from /proc/PID/status, in bytes."""
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == wanted:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/{pid or 'self'}/status has no {wanted}")


def free_host_memory(root: Path = _ROOT) -> int | None:
    """Return the free bytes of this machine, within the container's limit; None if the kernel does not report them."""
    return _host_memory("MemAvailable", cgroups.free_memory(root), root)


def total_host_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes of this machine's memory, or the container's limit if it is lower; None as above."""
    return _host_memory("MemTotal", cgroups.memory_limit(root), root)


def _host_memory(name: str, in_container: int | None, root: Path) -> int | None:
    try:
        fields = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        on_machine = int(fields[name].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
    return on_machine if in_container is None else min(on_machine, in_container)


def free_in_share(share: int | None) -> int | None:
    """Return `free_host_memory`, at most the unused part of this process's `share` (bytes), if it has one: other
    workers may not use their shares yet.
    """
    free = free_host_memory()
    return free if free is None or share is None else min(free, max(0, share - _status_bytes("RssAnon")))


def freeze_garbage() -> None:
    """Enable garbage collection, except among the objects of the start: searching them takes 0.1 to 0.2 s and frees
    nothing. Freed memory of the start is returned to the kernel.
    """
    gc.freeze()
    gc.enable()
    give_back_memory()
