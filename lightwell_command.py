"""Starts the command `lightwell`. Its name is like no other module's, so that it is found whatever else can be
imported.

Folders on PYTHONPATH come before installed packages, and one that holds a `server` or a `model` would replace ours: the
folder of this file goes before them, and Python's own library before that, since an installed package may have a module
named like one of Python's. Workers are given this order with their start.
"""

import contextlib
import ctypes
import importlib.util
import sys
import sysconfig
from pathlib import Path
from threading import Thread


def main() -> int:
    """Run the command, and return the exit status."""
    pythons_own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    first = [path for path in sys.path if path in pythons_own or Path(path).name == "lib-dynload"]
    sys.path[:0] = [*first, str(Path(__file__).resolve().parent)]
    from server.cli import main as run

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
