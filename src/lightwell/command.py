"""Starts the command `lightwell`."""

import contextlib
import ctypes
import importlib.util
import sys
from pathlib import Path
from threading import Thread


def main() -> int:
    """Run the command, and return the exit status."""
    from lightwell.server.cli import main as run

    return run()


def read_torch() -> None:
    """Load torch's largest library, as `import torch` would: a sixth of a worker's start, without Python's lock."""
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        with contextlib.suppress(OSError):  # another system's name: then torch loads it by itself, later
            ctypes.CDLL(str(Path(torch.origin).parent / "lib" / "libtorch_cpu.so"))


if "--multiprocessing-fork" in sys.orig_argv:
    # A worker imports its parent's main module first. Load the other libraries in a thread meanwhile.
    Thread(target=read_torch, name="read-torch", daemon=True).start()
