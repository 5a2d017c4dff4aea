"""Fingerprint of the files of a model folder, to detect changes after the start of the server.

For small files it is a digest of the content; for large ones it is the size, the time, the inode and a digest of the
first mebibyte, which contains a safetensors file's header.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

Fingerprint = Mapping[str, str]
"""The fingerprint of each file, by its name in the folder."""

_READ_BY_A_MODEL = (".json", ".safetensors", ".bin", ".gguf", ".txt", ".model", ".jinja")
_WHOLE = 1 << 24
_HEAD = 1 << 20
"""Bytes: files of up to `_WHOLE` are read whole, of others only the first `_HEAD`."""


def fingerprint(folder: Path) -> Fingerprint:
    """Return the fingerprint of a model's files, including the modules of a sentence-transformers folder."""
    files = [*folder.glob("*"), *folder.glob("*/config.json")]
    return {
        str(path.relative_to(folder)): _of_file(path)
        for path in sorted(files)
        if path.suffix in _READ_BY_A_MODEL and path.is_file()
    }


def difference(before: Fingerprint, folder: Path) -> str | None:
    """Return one line with the changes of the folder's files since `before`, or None without changes."""
    try:
        now = fingerprint(folder)
    except OSError as error:
        return f"model_changed: {error}"
    changes = [
        f"{name} was {'added' if name not in before else 'removed' if name not in now else 'changed'}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if not changes:
        return None
    return f"model_changed: since the server started, in {folder} {', '.join(changes)}; restart the server"


def _of_file(path: Path) -> str:
    stat = path.stat()
    with path.open("rb") as file:
        if stat.st_size <= _WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        head = hashlib.sha256(file.read(_HEAD)).hexdigest()
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino} {head}"
