"""Reads what a container's control groups leave this process: CPU time and memory. It reads both versions of Linux's
control groups (cgroups(7)), and all groups above the process's own, each of which may have a limit. Standard library
only.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Bytes from which a limit counts as none. Version 1 reports no limit as the largest number of whole pages."""


def within_quota(num_cores: int, num_workers: int = 1, root: Path = _ROOT) -> int:
    """Return on how many of `num_cores` CPU cores a worker computes: no more than it has CPU time for, where
    `num_workers` share what a quota allows, and at least 1.

    A fraction of a CPU is left out: threads wait for one another, and so for the one whose time is used up. The
    neighbouring processes use it.
    """
    quota = cpu_quota(root)
    return num_cores if quota is None else max(1, min(num_cores, int(quota / num_workers)))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the number of CPUs whose time this process and those in its groups may use together, or None if there
    is no limit.
    """
    quotas = []
    for folder in _groups("cpu", root):
        quota, period = _cpu_max(folder)
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def free_memory(root: Path = _ROOT) -> int | None:
    """Return how many bytes the groups' limits leave, counting files that are only cached as free, or None if there
    is no limit.
    """
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
    """Return the bytes that the groups' limits allow, taken or not, or None if there is no limit."""
    files = (folder / name for folder in _groups("memory", root) for name in ("memory.max", "memory.limit_in_bytes"))
    return min((limit for file in files if (limit := read_int(file) or _UNLIMITED) < _UNLIMITED), default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folder of the process's own group that has the controller, then of each group above it."""
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
        # Version 2 has one tree, whose line in the list of groups names no controller.
        group = groups.get("") if kind == "cgroup2" else groups.get(controller)
        if group is None or not (kind == "cgroup2" or (kind == "cgroup" and controller in options.split(","))):
            continue
        # A container sees its own group as the top of the tree, whatever the list calls it.
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
    """Return the number that a file of the kernel holds, or None if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
