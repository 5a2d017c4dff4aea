"""The memory that control groups leave a process, read from trees of files as Linux shows them."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from lightwell.server.engine.memory.cgroups import cpu_quota, free_memory, memory_limit, within_quota
from lightwell.server.engine.memory.process_memory import free_host_memory, total_host_memory

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
V1_GROUPS = "9:name=systemd:/\n4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"


def machine(root: Path, groups: str, mounts: str, files: Mapping[str, str]) -> Path:
    """Write a root folder with a process in these groups and these files of the control groups."""
    kernel = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    for name, text in {**kernel, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, errors="surrogateescape")
    return root


@pytest.mark.parametrize(
    ("files", "quota", "free"),
    [
        ({}, None, None),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "900\n"}, None, None),
        ({"cpu.max": "100000 100000\n"}, 1.0, None),
        ({"cpu.max": "150000 100000\n"}, 1.5, None),
        ({"cpu.max": "20000 100000\n"}, 0.2, None),
        # Files that are only cached count as free.
        (
            {"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "anon 300\nfile 600\nshmem 100\n"},
            None,
            600,
        ),
    ],
)
def test_limits_of_version_2(files: dict[str, str], quota: float | None, free: int | None, tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", V2_MOUNT, files)
    assert (cpu_quota(root), free_memory(root)) == (quota, free)


def test_the_least_of_a_group_and_those_above_it_counts(tmp_path: Path) -> None:
    files = {
        "cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n", "a/b/cpu.max": "300000 100000\n",
        "memory.max": "max\n", "memory.current": "1\n",
        "a/memory.max": "5000\n", "a/memory.current": "4500\n",
        "a/b/memory.max": "1000\n", "a/b/memory.current": "100\n",
    }  # fmt: skip
    root = machine(tmp_path, "0::/a/b\n", V2_MOUNT, files)
    assert cpu_quota(root) == 2.0
    assert free_memory(root) == 500


@pytest.mark.parametrize("top", ["/", "/docker/abc"])
def test_version_1_is_read_in_and_outside_of_a_container(top: str, tmp_path: Path) -> None:
    """Read both limits: in a container, its own group is mounted as the top. An old version took 900 MiB for 15 GiB."""
    own = "docker/abc/" if top == "/" else ""
    files = {
        f"cpu,cpuacct/{own}cpu.cfs_quota_us": "100000\n", f"cpu,cpuacct/{own}cpu.cfs_period_us": "50000\n",
        f"memory/{own}memory.limit_in_bytes": f"{900 << 20}\n", f"memory/{own}memory.usage_in_bytes": f"{300 << 20}\n",
        f"memory/{own}memory.stat": f"cache 1\ntotal_cache {200 << 20}\ntotal_shmem {50 << 20}\n",
    }  # fmt: skip
    root = machine(tmp_path, V1_GROUPS, V1_MOUNTS.format(top=top), files)
    assert cpu_quota(root) == 2.0
    assert (free_memory(root), memory_limit(root)) == ((900 - 300 + 150) << 20, 900 << 20)


def test_version_1_without_limits_sets_none(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "300\n",
    }  # fmt: skip
    root = machine(tmp_path, V1_GROUPS, V1_MOUNTS.format(top="/"), files)
    assert (cpu_quota(root), free_memory(root), memory_limit(root)) == (None, None, None)


def test_the_less_of_machine_and_container_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", V2_MOUNT, {})
    (root / "proc/meminfo").write_text("MemTotal:        9000 kB\nMemFree:         1 kB\nMemAvailable:    2000 kB\n")
    assert (free_host_memory(root), total_host_memory(root)) == (2000 * 1024, 9000 * 1024)
    machine(tmp_path, "0::/\n", V2_MOUNT, {"memory.max": "1000\n", "memory.current": "400\n"})
    assert (free_host_memory(root), total_host_memory(root)) == (600, 1000)
    (root / "proc/meminfo").unlink()
    assert (free_host_memory(root), total_host_memory(root)) == (None, None)


def test_lines_of_other_forms_are_left_out(tmp_path: Path) -> None:
    """Check that a name that is not UTF-8, or an empty line, does not end the start."""
    odd = "\n40 31 0:9 / /mnt/\udcff rw - ext4\n41 31\n"
    root = machine(tmp_path, "0::/\n", V2_MOUNT + odd, {"cpu.max": "150000 100000\n"})
    with (root / "proc/self/cgroup").open("a") as file:
        file.write("\nodd\n")
    assert cpu_quota(root) == 1.5


def test_another_system_sets_no_limits(tmp_path: Path) -> None:
    assert (cpu_quota(tmp_path), free_memory(tmp_path)) == (None, None)


@pytest.mark.parametrize(
    ("quota", "cores", "workers", "expected"),
    [(None, 8, 4, 8), (1.0, 2, 1, 1), (1.5, 2, 1, 1), (6.0, 8, 2, 3), (6.0, 2, 2, 2), (0.5, 4, 1, 1), (16.0, 8, 1, 8)],
)
def test_no_more_cores_compute_than_the_quota_gives_time_for(
    quota: float | None, cores: int, workers: int, expected: int, tmp_path: Path
) -> None:
    text = "max 100000" if quota is None else f"{int(quota * 100000)} 100000"
    root = machine(tmp_path, "0::/\n", V2_MOUNT, {"cpu.max": text})
    assert within_quota(cores, workers, root) == expected
