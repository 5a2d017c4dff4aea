"""Manifest of a batch job, stored next to its shards: shards of another input or of other options must not mix.

It also locks the folder for one run at a time. Independent of Ray, the engine and the content of shards.
"""

import errno
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.ray.shards import MANIFEST

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
"""Errors of file systems without locks, such as some that machines share."""
_MAX_SHOWN = 100


class ManifestError(ValueError):
    """The output folder belongs to another job; the message gives the difference and the fix."""


def claim(folder: Path, job: Mapping[str, Any]) -> None:
    """Write the job's manifest, or check that the folder has the same one. Raises ManifestError for a different one.

    `job` is plain JSON data.
    """
    path = folder / MANIFEST
    if not path.exists():
        others = sorted(each.name for each in folder.iterdir() if not each.name.startswith("."))
        if others:
            raise ManifestError(f"--output {str(folder)!r}: the folder holds {others[0]!r} and no batch job; an empty "
                                "or new one is accepted")  # fmt: skip
        _write(path, job)
        return
    try:
        there = json.loads(path.read_text())
    except ValueError as error:
        raise ManifestError(f"{str(path)!r} is no manifest of a batch job: {error}") from None
    problem = _difference(there, json.loads(json.dumps(job)))
    if problem is not None:
        raise ManifestError(
            f"--output {str(folder)!r} holds another job: {problem}; give the same input and options, or another folder"
        )


def _write(path: Path, job: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w") as file:
        json.dump(job, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _difference(there: Any, asked: Any, name: str = "") -> str | None:
    """Return the first place where two JSON values differ, or None if they are equal."""
    if isinstance(there, dict) and isinstance(asked, dict):
        for key in (*there, *(key for key in asked if key not in there)):
            inner = f"{name}.{key}" if name else key
            if key not in there or key not in asked:
                return f"{inner} is given there and not now" if key in there else f"{inner} is given now and not there"
            problem = _difference(there[key], asked[key], inner)
            if problem is not None:
                return problem
        return None
    if isinstance(there, list) and isinstance(asked, list) and len(there) == len(asked):
        problems = (_difference(a, b, f"{name}[{i}]") for i, (a, b) in enumerate(zip(there, asked, strict=True)))
        return next((problem for problem in problems if problem is not None), None)
    return None if there == asked else f"{name} is {_shown(there)} there and {_shown(asked)} now"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock the folder for this process, until the `with` or the process ends in any way. Raises ManifestError if
    another process has the lock.

    If the file system has no locks, it only logs a warning, so that the job can still run.
    """
    with (folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ManifestError(f"--output {str(folder)!r}: another run is writing there; wait for it") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            logger.warning(
                "--output %r: the file system has no locks (%s); nothing keeps a second run out of this folder",
                str(folder),
                error.strerror,
            )
        yield
