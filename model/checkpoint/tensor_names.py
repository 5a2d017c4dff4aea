"""Lists the tensors that a folder's weight files hold, by name. It reads headers, no tensor, and needs no torch."""

import json
import pickletools
import zipfile
from pathlib import Path

from model.checkpoint.files import read_json

_MAX_HEADER = 100_000_000
"""Most bytes of a header; the limit of safetensors."""
_BEFORE_ZIP = 4
"""Pickles that a file of torch.save begins with before 1.6: a magic number, a version, sizes, then the tensors' names
and shapes.
"""


def tensor_names(folder: Path) -> frozenset[str] | None:
    """Return the names, among other texts if the format has them, or None for a folder without weight files or with one
    that cannot be read (loading will say why).
    """
    for name, read in (("model.safetensors", _names_in_header), ("pytorch_model.bin", _texts_in_pickle)):
        single, index = folder / name, folder / f"{name}.index.json"
        try:
            if single.is_file():
                return read(single)
            if index.is_file():
                return frozenset(read_json(index)["weight_map"])
        # A damaged or hostile file is reported by whatever its parts happen to raise.
        except Exception:
            return None
    return None


def _names_in_header(path: Path) -> frozenset[str]:
    """Return the names in a file's header: u64 length, then a JSON object with an entry for each tensor
    (github.com/huggingface/safetensors).
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"{path}: a header of {length} bytes")
        return frozenset(json.loads(file.read(length))) - {"__metadata__"}


def _texts_in_pickle(path: Path) -> frozenset[str]:
    """Return the texts in a file of torch.save, the names of its tensors among them. Its pickles are read as data and
    never run.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            steps = [step for _ in range(_BEFORE_ZIP) for step in pickletools.genops(file)]
    else:
        with zipfile.ZipFile(path) as archive:
            (entry,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
            if entry.file_size > _MAX_HEADER:
                raise ValueError(f"{path}: a header of {entry.file_size} bytes")
            steps = list(pickletools.genops(archive.read(entry)))
    return frozenset(text for _, text, _ in steps if isinstance(text, str))
