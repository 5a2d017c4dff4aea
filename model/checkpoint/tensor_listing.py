"""Names of the tensors in a folder's weight files, read from their headers. No torch."""

import json
import pickletools
import zipfile
from pathlib import Path

from lightwell.model.checkpoint.files import read_json

_MAX_HEADER = 100_000_000
"""Most bytes of a header, as in safetensors."""
_BEFORE_ZIP = 4
"""Pickles at the beginning of a file of torch.save before 1.6. The last has the tensors' names and shapes."""


def tensor_names(folder: Path) -> frozenset[str] | None:
    """Return the names, possibly with other texts of the file, or None for a folder without readable files."""
    for name, read in (("model.safetensors", _names_in_header), ("pytorch_model.bin", _texts_in_pickle)):
        single, index = folder / name, folder / f"{name}.index.json"
        try:
            if single.is_file():
                return read(single)
            if index.is_file():
                return frozenset(read_json(index)["weight_map"])
        # Damaged and hostile files raise errors of many types.
        except Exception:
            return None
    return None


def _names_in_header(path: Path) -> frozenset[str]:
    """Return the names in a safetensors header: u64 length, then a JSON object with an entry for each tensor."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"{path}: a header of {length} bytes")
        return frozenset(json.loads(file.read(length))) - {"__metadata__"}


def _texts_in_pickle(path: Path) -> frozenset[str]:
    """Return the texts in a file of torch.save, with the names of its tensors. The pickles are parsed and never run."""
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
