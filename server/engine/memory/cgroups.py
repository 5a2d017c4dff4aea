"""Limits of a container on CPU time and memory: both versions of Linux's control groups (cgroups(7)), the process's own
group and all groups above it.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Bytes from which a limit means no limit: version 1 reports no limit as the largest number of whole pages."""


def within_quota(num_cores: int, num_workers: int = 1, root: Path = _ROOT) -> int:
    """Return the number of the `num_cores` CPU cores on which one of `num_workers` workers computes within the quota,
    at least 1. A fraction of a CPU is not used: all threads would wait for the one without CPU time.
    """
    quota = cpu_quota(root)
    return num_cores if quota is None else max(1, min(num_cores, int(quota / num_workers)))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the CPU quota of this process's groups, in CPUs, or None if there is no limit."""
    quotas = []
    for folder in _groups("cpu", root):
        quota, period = _cpu_max(folder)
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def free_memory(root: Path = _ROOT) -> int | None:
    """Return the free bytes within the groups' limits, cached files included, or None if there is no limit."""
    left = []
    for folder in _groups("memory", root):
        if (folder / "memory.max").exists():
            limit, used = (read_int(folder / name) for name in ("memory.max", "memory.current"))
            cached, shared = "file", "shmem"
        else:
            limit, used = (read_int(folder / f"memory.{name}_in_bytes") for name in ("limit", "usage"))
            cached, shared = "total_cache", "total_shmem"
        if limit is not None and used is not None and limit < _UNLIMITED:
            numbers = _numbers(folder / "memory.stat")
            files = numbers.get(cached, 0) - numbers.get(shared, 0)
            left.append(max(0, limit - used + max(0, files)))
    return min(left, default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the lowest of the groups' limits in bytes, or None if there is no limit."""
    files = (folder / name for folder in _groups("memory", root) for name in ("memory.max", "memory.limit_in_bytes"))
    return min((limit for file in files if (limit := read_int(file) or _UNLIMITED) < _UNLIMITED), default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folder of the process's own group with the controller, then of each group above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:  # another system
        return
    whole = (parts for line in lines if len(parts := line.split(":", 2)) == 3)
    groups = {name: group for _, names, group in whole for name in names.split(",")}
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        if len(left.split()) < 5 or len(right.split()) < 2:
            continue  # not as proc(5) says: no reason not to start
        top, point = left.split()[3:5]
        kind, *_, options = right.split()
        # Version 2 has one tree; its line in the list of groups names no controller.
        group = groups.get("") if kind == "cgroup2" else groups.get(controller)
        if group is None or not (kind == "cgroup2" or (kind == "cgroup" and controller in options.split(","))):
            continue
        # A container sees its own group as the top of the tree, under any name in the list.
        path = PurePosixPath(group)
        inside = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath()
        for part in (inside, *inside.parents) if inside.parts else (inside,):
            yield root / point.lstrip("/") / part


def _cpu_max(folder: Path) -> tuple[int | None, int | None]:
    """Return the quota and its period, in microseconds."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
    return (int(quota) if quota.isdecimal() else None), int(period)


def _numbers(path: Path) -> dict[str, int]:
    """Return the "name number" lines of a file."""
    try:
        return {name: int(number) for name, number in (line.split() for line in path.read_text().splitlines())}
    except (OSError, ValueError):
        return {}


def read_int(path: Path) -> int | None:
    """Return the number in a file of the kernel, or None if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
