"""Readers of a checkpoint's small files. They reject pipes, devices and sockets, which could block. No torch."""

import json
import os
import re
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from lightwell.model.checkpoint.folder import ModelLoadError

_MOST_BYTES = 1 << 27
"""Most bytes of a file that is read whole. The largest published tokenizer.json has 35 million."""
_MOST_DEPTH = 64
"""Most nested lists and objects of a JSON file. Published files have about ten."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
"""Flag that opens folders without permission to list them, where the system has it."""


def open_file(path: Path, *, most: int | None = _MOST_BYTES, root: Path | None = None) -> BinaryIO:
    """Open a regular file of at most `most` bytes. root: the folder that must contain the file after resolving links.
    Links created later are not followed.

    Raises OSError for a file that cannot be opened, and ModelLoadError for a file that is not accepted.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK  # the open of a pipe would wait for its other end
    file = os.open(path, flags) if root is None else _open_below(root, path, flags)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or (most is not None and found.st_size > most):
        os.close(file)
        size = "" if most is None else f" of at most {most} bytes"
        kind = f"has {found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise ModelLoadError(f"{path}: {kind}; a regular file{size} is accepted")
    return os.fdopen(file, "rb")


def _open_below(root: Path, path: Path, flags: int) -> int:
    try:
        real = path.resolve()
    except RuntimeError as error:  # Python before 3.13
        raise ModelLoadError(f"{path}: its symbolic links form a loop") from error
    if not real.is_relative_to(root):
        raise ModelLoadError(f"{path}: is outside {str(root)!r}; a file inside it is accepted")
    with ExitStack() as opened:
        parts, folder = real.relative_to(root).parts, os.open(root, _PATH_ONLY | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        for part in parts[:-1]:
            folder = os.open(part, _PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            opened.callback(os.close, folder)
        return os.open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW, dir_fd=folder)


def read_text(path: Path, *, most: int = _MOST_BYTES, root: Path | None = None) -> str:
    """Return the text of a UTF-8 file. Raises ModelLoadError, in one line, for any other file."""
    try:
        with open_file(path, most=most, root=root) as file:
            return file.read(os.fstat(file.fileno()).st_size).decode()
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{path}: is not valid UTF-8 ({error.reason} at byte {error.start})") from error


def read_json(path: Path, *, most: int = _MOST_BYTES, root: Path | None = None) -> Any:
    """Return the value of a JSON file. Raises ModelLoadError, in one line, for any other file."""
    text = read_text(path, most=most, root=root)
    try:
        value = json.loads(text)
        level: list[Any] = [[value]]
        for _ in range(_MOST_DEPTH + 1):
            nodes = (node.values() if isinstance(node, dict) else node for node in level)
            level = [child for children in nodes for child in children if isinstance(child, dict | list)]
            if not level:
                if _SURROGATE.search(text):
                    json.dumps(value, ensure_ascii=False).encode()
                return value
    except RecursionError:
        pass
    except json.JSONDecodeError as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON (line {error.lineno}, column {error.colno})") from error
    except UnicodeEncodeError as error:
        raise ModelLoadError(f"{path}: contains half of a surrogate pair, which is not a character") from error
    except ValueError as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON (an integer has too many digits)") from error
    raise ModelLoadError(
        f"{path}: is nested too deeply; at most {_MOST_DEPTH} levels of lists and objects are accepted"
    )
