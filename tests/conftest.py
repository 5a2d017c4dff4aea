"""What holds in every folder: the threads of a process, and which process runs which tests when several share them.

`make test` runs several processes (pytest-xdist), one more than cores; `.venv/bin/pytest -k name` runs in one.
"""

import gc
import os
from typing import Any

import hypothesis
import pytest

# How long an example takes is the machine's affair: a busy one failed tests by Hypothesis's 200 ms.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
# Set before torch is imported, as in a worker: threads that wait sleep instead of spinning, for tests share cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Servers without a model's name serve the small one, as where the model that answers is not installed.
os.environ.setdefault("LIGHTWELL_MODEL", "fables")
# Set before a kernel of a card is defined: without a card Triton interprets them.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Until the tests run (`pytest_runtestloop`): there is no garbage in what imports make; to look took a fifth of them.
gc.disable()
# The tests start some hundred processes, of which each would compile our source anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
if num_processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // num_processes)))

TOGETHER, SECOND_HALF = "tests/page/", "tests/page/test_g"
"""The folder, and the file name from which its second half begins. One server and one browser serve many files of
the folder, which takes longest of all: two processes run a half each.
"""
CLUSTERS = tuple(f"tests/deploy/test_{name}.py" for name in ("kubelet", "ray_data", "ray_serve"))
"""Test files that each start several servers: they run one after the other, or two cores would have them all at
once.
"""
LONGEST = (
    TOGETHER,
    "tests/deploy/",
    "tests/e2e/",
    "tests/benchmarks/soak/",
    "tests/server/test_",
    "tests/server/lifecycle/",
    "tests/server/worker/",
    "tests/server/http/",
    "tests/client/",
    "tests/test_types",
)
"""Tests that wait for servers, and take longest: they begin first, or one process would end alone with them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests: those of LONGEST in its order, then the rest in theirs."""
    items.sort(key=lambda item: next((i for i, top in enumerate(LONGEST) if item.nodeid.startswith(top)), len(LONGEST)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Freeze what was imported and collected: searching it for garbage took a fifth of the time of the routes'
    tests.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in one process, whose fixtures for it are built once; files are handed out in the order above."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = run_together
    return scheduler


def run_together(nodeid: str) -> str:
    """Return the group name of the tests that one process runs."""
    if nodeid.startswith(CLUSTERS):
        return "tests/deploy"
    if nodeid.startswith(TOGETHER):
        return TOGETHER if nodeid < SECOND_HALF else SECOND_HALF
    return nodeid.partition("::")[0]
