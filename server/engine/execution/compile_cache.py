"""Compile cache: a writable folder for Triton's compiled code, if the configured one is not usable, for example with a
read-only root file system or as another user.
"""

import logging
import mmap
import os
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "TRITON_CACHE_DIR"
"""The variable that names the folder for compiled code; the image sets it."""


def use_writable_cache(folder: Path | None) -> None:
    """Replace an unusable folder for compiled code by one in `folder`, which only this server can write; None makes a
    temporary one. Without a usable folder every GPU kernel would fail.
    """
    given = os.environ.get(VARIABLE)
    problem = _why_not_usable(Path(given)) if given else None
    if problem is None:
        return
    private = (Path(tempfile.mkdtemp(prefix="lightwell-")) if folder is None else folder) / VARIABLE.lower()
    os.environ[VARIABLE] = str(private)
    logger.warning("%s=%s is not usable (%s): code for the GPU is compiled at each start", VARIABLE, given, problem)
    if (problem := _why_not_usable(private)) is not None:
        logger.warning(
            "%s is not writable either (%s): give the server a folder for %s, such as a volume",
            private,
            problem,
            VARIABLE,
        )


def _why_not_usable(folder: Path) -> str | None:
    """Return why code cannot be stored in a folder and run from it, or None if it can. The folder is made if it does
    not exist. A mount of `docker run --tmpfs` forbids running code.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
