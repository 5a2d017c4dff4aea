"""Durations of test files: the committed ones put the longest files first, the measured ones are summed per folder."""

import json
import math
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "durations.json"
UNKNOWN = math.inf
"""Files without a committed duration run first: a long one at the end would keep one process busy."""


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sort the tests by the committed duration of their file; the order inside a file stays the same."""
    seconds = dict(_recorded())
    items.sort(key=lambda item: (-seconds.get(_file(item.nodeid), UNKNOWN), _file(item.nodeid)))


class Durations:
    """Plugin: sums the seconds of setup, call and teardown per file, and reports them per folder."""

    def __init__(self, record: bool) -> None:
        self._record = record
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_file(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._seconds:
            return
        folders: Counter[str] = Counter()
        for file, seconds in self._seconds.items():
            folders["/".join(PurePosixPath(file).parts[:-1][:3])] += seconds
        terminalreporter.section("seconds per folder")
        for folder, seconds in folders.most_common():
            terminalreporter.write_line(f"{seconds:8.1f}  {folder}")
        if self._record:
            # A file has tests of both levels. The longer duration is kept: a file that starts too early costs nothing.
            known = _recorded() | Counter({file: round(seconds, 1) for file, seconds in self._seconds.items()})
            there = {
                file: known[file] for file in sorted(known, key=lambda file: -known[file]) if (ROOT / file).exists()
            }
            FILE.write_text(json.dumps(there, indent=1) + "\n")


def _recorded() -> Counter[str]:
    return Counter(json.loads(FILE.read_text()) if FILE.exists() else {})


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
