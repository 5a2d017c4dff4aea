"""Creates a folder for a GGUF file that is read like any other checkpoint: config.json, tokenizer.json and others, made
of the file's metadata, and a link to the file.

The folder is created once, in the user's cache, and used as long as the file does not change.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from os.path import isfile
from pathlib import Path
from typing import Any

from lightwell.model.checkpoint.folder import GGUF_NAME, ModelLoadError, is_failure, one_line
from lightwell.model.checkpoint.gguf.config import config_of
from lightwell.model.checkpoint.gguf.header import Header, read_header
from lightwell.model.checkpoint.gguf.tokenizer import end_ids, special_tokens_of, tokenizer_of

_FORMAT = 2
"""Version of the folder's content. It is increased when the content changes."""


def folder_of(path: Path, sampling: Mapping[str, float] | None = None) -> Path:
    """Return the folder of a GGUF file, and create it if it does not exist. sampling: fields of generation_config.json,
    which GGUF files lack.

    Raises ModelLoadError for a file that cannot be read or is not supported, or if no folder can be created.
    """
    path = path.absolute()
    try:
        found = path.stat()
    except OSError as error:
        raise ModelLoadError(f"model {str(path)!r}: {error.strerror}") from error
    recommended = json.dumps(dict(sampling or {}))
    named = f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0{_FORMAT}\0{recommended}"
    name = f"{path.stem[:80]}-{hashlib.sha256(named.encode()).hexdigest()[:16]}"
    rooms = _rooms()
    for room in rooms:
        if isfile(room / name / "config.json") and _is_ours_alone(room):
            return room / name
    files = _files(path, dict(sampling or {}))
    problem: OSError | None = None
    for room in rooms:
        try:
            return _make(room, name, path, files)
        except OSError as error:
            problem = error
    raise ModelLoadError(
        f"no folder can be created for {str(path)!r}: {problem}; set XDG_CACHE_HOME or TMPDIR"
    ) from problem


def _rooms() -> list[Path]:
    """Return the possible parent folders, the best first: the user's cache, then our own in the temporary files."""
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        home = [Path(caches) if caches else Path.home() / ".cache"]
    except RuntimeError:  # there is no home
        home = []
    own = Path(tempfile.gettempdir()) / f"lightwell-{os.getuid()}"
    return [*(each / "lightwell" / "gguf" for each in home), own / "gguf"]


def _make(room: Path, name: str, path: Path, files: dict[str, str]) -> Path:
    """Write the folder and return it. Other processes see all of it or nothing. Raises OSError."""
    room.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    room.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours_alone(room):
        raise PermissionError(f"other users can write to {room.parent}")
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=room))
    try:
        for file, text in files.items():
            (made / file).write_text(text, encoding="utf-8")
        (made / GGUF_NAME).symlink_to(path)
        try:
            made.rename(room / name)
        except OSError:
            if not (room / name / "config.json").is_file():  # else another process was faster
                raise
        return room / name
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _is_ours_alone(room: Path) -> bool:
    """Return whether this user owns a folder and its parent, or links in their places, and no other user can write
    there. Otherwise another user could put a model there.
    """
    for folder in (room.parent, room):
        found = folder.stat()
        if {found.st_uid, folder.lstat().st_uid} != {os.getuid()} or found.st_mode & 0o022:
            return False
    return True


def _files(path: Path, sampling: dict[str, float]) -> dict[str, str]:
    """Return the texts of the folder's files by their names. Raises ModelLoadError."""
    header = read_header(path)
    try:
        return _texts(header, sampling)
    # Metadata may have any value. Errors without a check also end in one line. tokenizers raises Exceptions and panics.
    except BaseException as error:
        if not is_failure(error):
            raise
        kind = "" if isinstance(error, ModelLoadError) else f"the metadata make no sense: {type(error).__name__}: "
        raise ModelLoadError(f"{path}: {kind}{one_line(error)[:500]}") from error


def _texts(header: Header, sampling: dict[str, float]) -> dict[str, str]:
    config, metadata = config_of(header), header.metadata
    files = {"config.json": json.dumps(config, indent=2), "tokenizer.json": tokenizer_of(metadata).to_str()}
    own: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens_of(metadata)}
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        files["chat_template.jinja"] = template
    files["tokenizer_config.json"] = json.dumps(own)
    ends = end_ids(metadata)
    generation = {**sampling, **({"eos_token_id": ends} if ends else {})}
    return files | {"generation_config.json": json.dumps(generation)}
