"""Lists the tensors that a folder's safetensors files hold, by name. It knows the format's header; it reads no tensor
and needs no torch.
"""

import json
from pathlib import Path

_MAX_HEADER = 100_000_000
"""Most bytes of a header; the format's own limit."""


def tensor_names(folder: Path) -> frozenset[str] | None:
    """Return the names, or None for a folder without such files or with one that cannot be read (loading will say
    why).
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    try:
        if single.is_file():
            return frozenset(_header(single)) - {"__metadata__"}
        if index.is_file():
            return frozenset(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _header(path: Path) -> list[str]:
    """Return the names in a file's header: u64 length, then a JSON object with an entry for each tensor
    (github.com/huggingface/safetensors).
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"{path}: a header of {length} bytes")
        return list(json.loads(file.read(length)))
