"""Plant the faults of faults.json one by one and run the tests: `python -m tests.mutants [--only ID ...] [--jobs N]`.

Each fault replaces one text in one file. A copy of the tracked files gets the fault and runs the affected tests of
`make test`: the test files that have the file's name, the folder that mirrors the file's folder, and the folders above
it. A fault is caught by the first test that fails. The exit status is 1 if a fault is not caught, or if its text no
longer occurs exactly once.

Faults in C++ compile the kernels again; with Debian's package ccache this takes seconds.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.json")
KERNELS = Path("model/kernels")
MIRRORS = {"server/web/page": "tests/page", "clients/python": "tests/client"}
"""Folders with tests that are not at the same path under tests/."""
LIMIT = 1800
"""Seconds after which a run of tests counts as a failure: the fault makes a test hang."""


@dataclass(frozen=True)
class Fault:
    """A change of one file that a user would notice."""

    id: str
    area: str
    file: str
    old: str
    new: str
    why: str


def affected_tests(file: str) -> list[list[str]]:
    """Return the arguments of pytest for each step: the files of the same name, then the folders, the nearest first.

    No step repeats the folders of those before it.
    """
    mirrored = [tests for product, tests in MIRRORS.items() if file.startswith(product)]
    mirrored = mirrored or [Path("tests", parent).as_posix() for parent in Path(file).parents if parent.name]
    folders = [folder for folder in mirrored if (ROOT / folder).is_dir()]
    same_name = [str(path.relative_to(ROOT)) for path in (ROOT / folders[-1]).rglob(f"test_{Path(file).stem}*.py")]
    steps = [[folder, *(f"--ignore={inner}" for inner in folders[:i])] for i, folder in enumerate(folders)]
    return [same_name, *steps] if same_name else steps


def copy_tracked_files(to: Path) -> None:
    """Copy the tracked files and the compiled kernels."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in [
        *listed.split("\0")[:-1],
        *(str(path.relative_to(ROOT)) for path in (ROOT / KERNELS).glob("kernels.*")),
    ]:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def failing_test(tree: Path, tests: Sequence[str]) -> str | None:
    """Return the first of these tests that fails, or None if all pass; `tests` are arguments of pytest."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not nightly", "-p", "no:cacheprovider", *tests]
    # In front of an installed checkout, which has no fault.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree / "src", tree / "clients" / "python")))}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = subprocess.Popen(command, cwd=tree, env=environment, **pipes)
    try:
        output, _ = running.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        running.terminate()  # the run ends its servers
        running.communicate()
        return f"{' '.join(tests)} did not end within {LIMIT} s"
    if running.returncode in (0, 5):  # all passed, or no tests of this level
        return None
    if failed := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.M):
        return failed[1]
    raise ValueError(f"pytest ended with {running.returncode}:\n{output[-500:]}")


def judge(fault: Fault, tree: Path) -> str | None:
    """Plant a fault in a tree, return the test that catches it or None, and restore the tree.

    Raises ValueError if the fault's text does not occur exactly once, if it does not compile, if the tests can't run,
    or if the test also fails without the fault.
    """
    path = tree / fault.file
    source = path.read_text(encoding="utf-8")
    if source.count(fault.old) != 1:
        raise ValueError(f"the text of {fault.id} occurs {source.count(fault.old)} times in {fault.file}")
    library = next((tree / KERNELS).glob("kernels.*"))
    compiled = library.read_bytes()
    try:
        path.write_text(source.replace(fault.old, fault.new), encoding="utf-8")
        if fault.file.endswith((".cpp", ".h")):
            environment = {**os.environ, "CXX": "ccache g++" if shutil.which("ccache") else "g++"}
            command = [sys.executable, str(KERNELS / "build.py"), "--all-levels"]
            built = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
            if built.returncode:
                raise ValueError(f"{fault.id} does not compile:\n{built.stderr[-1000:]}")
        caught_by = next(
            (failed for tests in affected_tests(fault.file) if (failed := failing_test(tree, tests))), None
        )
    finally:
        path.write_text(source, encoding="utf-8")
        library.write_bytes(compiled)
    if caught_by and "::" in caught_by and failing_test(tree, [caught_by]):
        raise ValueError(f"{caught_by} also fails without {fault.id}")
    return caught_by


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Plant faults and run the tests.")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="ID", help="faults whose id starts with one of these"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="faults at the same time")
    given = parser.parse_args(arguments)
    faults = [Fault(**fault) for fault in json.loads(FAULTS.read_text(encoding="utf-8"))]
    faults = [fault for fault in faults if fault.id.startswith(tuple(given.only))]
    wrong, caught = [], defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="lightwell-mutants-") as top, ThreadPoolExecutor(given.jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.jobs):
            copy_tracked_files(Path(top) / str(number))
            trees.put(Path(top) / str(number))

        def run(fault: Fault) -> None:
            tree, begin = trees.get(), time.monotonic()
            try:
                test = judge(fault, tree)
                line = f"caught by {test}" if test else f"NOT CAUGHT: {fault.why}"
            except ValueError as error:
                test, line = None, f"ERROR: {error}"
            finally:
                trees.put(tree)
            caught[fault.area].append(test is not None)
            wrong.extend([] if test else [fault.id])
            print(f"{fault.id} ({time.monotonic() - begin:.0f} s): {line}", flush=True)

        list(pool.map(run, faults))
    for area, results in caught.items():
        print(f"{area}: {sum(results)} of {len(results)}")
    print(
        f"{len(faults) - len(wrong)} of {len(faults)} faults caught; not caught: {', '.join(sorted(wrong)) or 'none'}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
