"""What this machine's kernels were found to do is kept for the next start, beside the code that was compiled for it.

Finding it out takes as long as everything else that is done with small weights, and leaves code in memory that nothing
needs later. Nothing is kept before `keep_in` says where. Knows no question.
"""

import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from model.layers.compiler_cache import kernels_stamp

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Answer = TypeVar("Answer", bool, int)

_CPU = Path("/proc/cpuinfo")
_CACHES = "cpu0/cache/index*/size"
_VARIABLES = ("ONEDNN_", "DNNL_", "ATEN_", "MKL_", "NUMBA_CPU")
_files: list[Path] = []
"""The one that is read and written, if there is one."""


def keep_in(folder: Path | None) -> None:
    """From now on read from, and write to, a file in `folder`; None is nowhere."""
    _files[:] = [] if folder is None else [folder / f"kernels-{_machine()}.json"]


def default_folder() -> Path:
    """Where numba keeps compiled code: where one says, else beside the source, else in the user's cache."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return Path(os.environ["NUMBA_CACHE_DIR"])
    beside = Path(__file__).parent / "__pycache__"
    return beside if os.access(beside, os.W_OK) else Path("~/.cache/lightwell").expanduser()


def kept(ask: Callable[P, Answer]) -> Callable[P, Answer]:
    """A function whose answer depends on its arguments, which must be told apart by their text, and on the machine."""

    @functools.wraps(ask)
    def answer(*args: P.args, **named: P.kwargs) -> Answer:
        question = f"{ask.__name__}{args}{named or ''}"
        known = _read()
        if question not in known:
            known = {**_read(), question: ask(*args, **named)}
            _write(known)
        found: Answer = known[question]
        return found

    return answer


def _read() -> dict[str, Any]:
    """Nothing where there is no file, or one that somebody has damaged."""
    try:
        known = json.loads(_files[0].read_text()) if _files else {}
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(known: dict[str, Any]) -> None:
    """In one piece: another process may read it. Of two that write at once one wins; the other's is asked again."""
    for file in _files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as whole:
                json.dump(known, whole, indent=1)
            os.replace(whole.name, file)
        except OSError as error:
            logger.warning("what the kernels do is not kept for the next start: %s", error)


@functools.cache
def _machine() -> str:
    """All that the choice of a kernel may depend on: torch and its libraries, our kernels and their compiler, the CPU,
    its caches, the environment.
    """
    cpu = _CPU.read_text().split("\n\n")[0].splitlines() if _CPU.exists() else []
    of_cpu = [line for line in cpu if not line.startswith(("cpu MHz", "bogomips"))]
    caches = [path.read_text() for path in sorted(Path("/sys/devices/system/cpu").glob(_CACHES))]
    variables = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    compilers = [(name, version(name)) for name in ("numba", "llvmlite") if find_spec(name) is not None]
    everything = [torch.__version__, torch.__config__.show(), of_cpu, caches, variables, compilers, kernels_stamp()]
    return hashlib.sha256(repr(everything).encode()).hexdigest()[:16]
