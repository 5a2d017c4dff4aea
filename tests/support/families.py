"""Choice of the families of checkpoints that `make test` covers; `make test-nightly` covers the others.

A test has a family if one of its parameters is a name of `tests.tiny`. `make test` runs tests marked `every_family`
with all families.
"""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ARCHETYPES = ("llama-gqa", "gpt2", "gemma3", "gpt_oss", "lfm2", "qwen3_5", "bert", "bart")
"""One family of each kind of network."""
NUM_PARTS = 7
"""The other families are divided into as many parts by a hash of their names; each commit covers one part."""
VARIABLE = "TEST_FAMILIES"
"""Environment variable with the choice, which the processes of pytest-xdist inherit."""


def choose(names: str | None) -> None:
    """Choose `names`, family names or parts (`part0` to `part6`) separated by commas.

    By default these are the archetypes and the part that the commit's hash selects, or part 0 without git. Raises
    pytest.UsageError for a name that is neither.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        if names:
            from tests import tiny  # imports transformers

            accepted = {*tiny.VARIANTS, *tiny.FAMILIES, *(f"part{number}" for number in range(NUM_PARTS))}
            if unknown := set(names.split(",")) - accepted:
                raise pytest.UsageError(f"--families {','.join(sorted(unknown))}: accepted are {sorted(accepted)}")
        os.environ[VARIABLE] = names or ",".join((*ARCHETYPES, f"part{_commit() % NUM_PARTS}"))


def chosen() -> str:
    """Return the choice in the form that `--families` accepts."""
    return os.environ[VARIABLE]


def is_chosen(name: str) -> bool:
    """Return whether `make test` covers the family in all suites."""
    return not {name, f"part{zlib.crc32(name.encode()) % NUM_PARTS}"}.isdisjoint(chosen().split(","))


def is_left_out(item: pytest.Item) -> bool:
    """Return whether a test has a family that is not chosen."""
    tiny = sys.modules.get("tests.tiny")  # it imports transformers; a run without it has no test with a family
    if tiny is None or item.get_closest_marker("every_family") or not hasattr(item, "callspec"):
        return False
    names = (value for value in item.callspec.params.values() if isinstance(value, str))
    return any(not is_chosen(name) for name in names if name in tiny.VARIANTS or name in tiny.FAMILIES)


def _commit() -> int:
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(done.stdout, 16) if done.returncode == 0 else 0
