"""Rules for all tests: the environment of a process, the level of each test, the order, and the shared folder.

`make test` runs several processes (pytest-xdist), and each takes the next file; `.venv/bin/pytest` runs in one.
"""

import gc
import os
import signal
import ssl
import sys
from functools import cache

import hypothesis
import pytest

from tests.support import bytecode, families, shared
from tests.support.durations import Durations, sort_longest_first
from tests.support.interpreted_triton import make_interpreter_faster

# An example's duration depends on the machine: a busy one exceeds Hypothesis's 200 ms.
hypothesis.settings.register_profile("ci", deadline=None, max_examples=25)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=100)
hypothesis.settings.load_profile("ci")
# Set before torch is imported, as in a worker: threads that wait sleep instead of spinning, because tests share cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# Servers without a model's name serve the small one, as where the default model is not installed.
os.environ.setdefault("LIGHTWELL_MODEL", "fables")
# Set before a Triton kernel is defined: without a GPU Triton interprets them.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Until the tests run (`pytest_runtestloop`): imports make no garbage, and the collector took a fifth of their time.
gc.disable()
# `nohup` has it ignored, and servers that tests start would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Reading the certificates of the authorities takes 25 ms: all clients of a process share one context.
ssl.create_default_context = cache(ssl.create_default_context)
# The tests start many processes, and each would compile our source again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests call make too, and these variables would pass it the options of this run's command line.
for name in ("MAKEFLAGS", "ARGS"):
    os.environ.pop(name, None)
if num_processes := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // num_processes)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--families", metavar="A,B", help="families that the sampled suites cover without `nightly`")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    families.choose(config.getoption("--families"))
    shared.begin()
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run ends its servers
        config.pluginmanager.register(Durations(config.getoption("--record-durations")))
        if config.getoption("numprocesses", None):
            bytecode.write_once()


def pytest_unconfigure() -> None:
    shared.finish()


def pytest_report_header() -> str:
    return f"families: --families {families.chosen()}"


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that only `make test-nightly` runs, and sort all by duration."""
    with_all_examples = hypothesis.settings.get_current_profile_name() == "nightly"
    for item in items:
        is_property = hasattr(getattr(item, "obj", None), "hypothesis")
        if item.get_closest_marker("tool") or families.is_left_out(item) or (is_property and with_all_examples):
            item.add_marker("nightly")
    sort_longest_first(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Freeze imported and collected objects: searching them for garbage took a fifth of the routes' tests' time."""
    gc.freeze()
    gc.set_threshold(50_000)  # with Python's 700 the collector took an eighth of the routes' tests' time
    gc.enable()
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1":
        make_interpreter_faster()
