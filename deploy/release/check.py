"""Tries everything that a release needs (`make release-check`). It changes and publishes nothing.

    python -m deploy.release.check                      every check; status 1 if one failed or could not be made
    python -m deploy.release.check --only server        these alone
    python -m deploy.release.check --without image      all but these, which are then not missed

BUILD_IMAGE names the script that builds the image and runs a command in it, as for `make test-all`.
"""

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.release.image import check_image
from deploy.release.notice import check_notice
from deploy.release.packages import check_builds, check_client, check_server, check_twine
from deploy.release.upgrade import check_upgrade
from deploy.release.versions import ROOT, CheckFailed, check_changelog, check_versions
from deploy.release.workplace import Skipped, Workplace

DOCS_TESTS = (
    "tests/test_readme.py",
    "tests/test_extending.py",
    "tests/client/test_readme.py",
    "tests/client/test_against_server.py",
    "tests/deploy/test_kubernetes.py",
)
"""The tests that run what the documents say, and compare the manifests with the chart."""


def check_committed() -> str:
    """Return the commit that is released. Raises CheckFailed if a tracked file was changed since."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    if changed:
        raise CheckFailed(f"not committed: {', '.join(changed.splitlines())}")
    return _git("rev-parse", "--short", "HEAD")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def check_docs() -> str:
    """Run the commands of the documents. Raises CheckFailed if one does not do what stands under it."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *DOCS_TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckFailed(done.stdout[-4000:] + done.stderr[-1000:])
    lines = done.stdout.strip().splitlines()
    return "; ".join([lines[-1], *(line for line in lines if line.startswith("SKIPPED"))])


CHECKS: dict[str, Callable[[Workplace], str]] = {
    "committed": lambda _: check_committed(),
    "versions": lambda _: check_versions(),
    "changelog": lambda _: check_changelog(datetime.date.today()),
    "notice": lambda _: check_notice(),
    "builds": check_builds,
    "twine": check_twine,
    "server": check_server,
    "client": check_client,
    "image": check_image,
    "docs": lambda _: check_docs(),
    "upgrade": check_upgrade,
}
"""Every check by its name, in their order. Each returns a line about what it saw."""


def run_checks(names: Sequence[str], work: Workplace) -> dict[str, str]:
    """Make checks and print each one's outcome and time; return the reasons of those that did not pass."""
    missed = {}
    for name in names:
        begin = time.monotonic()
        try:
            outcome, said = "passed", CHECKS[name](work)
        except Skipped as error:
            outcome, said = "SKIPPED", str(error)
        except Exception as error:  # whatever it is, the other checks are made
            outcome, said = "FAILED", str(error) if isinstance(error, CheckFailed) else repr(error)
        print(f"{name}: {outcome} in {time.monotonic() - begin:.0f} s: {said}", flush=True)
        if outcome != "passed":
            missed[name] = f"{name} {outcome.lower()}"
    return missed


def main() -> int:
    """Make the checks that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="NAME")
    parser.add_argument("--without", nargs="+", choices=CHECKS, default=[], metavar="NAME")
    parser.add_argument("--folder", type=Path, help="a new folder to work in, which is kept; else a temporary one")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="lightwell-release-"))
    folder.mkdir(exist_ok=True)
    begin = time.monotonic()
    try:
        names = [name for name in arguments.only if name not in arguments.without]
        missed = run_checks(names, Workplace(folder.resolve(), os.environ.get("BUILD_IMAGE")))
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(names) - len(missed)} of {len(names)} checks passed in {(time.monotonic() - begin) / 60:.0f} minutes")
    print("; ".join(missed.values()) or "nothing was published: docs/releasing.md lists the remaining steps")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
