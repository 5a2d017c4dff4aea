"""Which tensors a folder's safetensors files hold, by name. Knows the head of the format; reads no tensor, no torch."""

import json
from pathlib import Path

_MAX_HEADER = 100_000_000
"""Bytes; the format's own bound."""


def tensor_names(folder: Path) -> frozenset[str] | None:
    """The names; None for a folder without such files, or with some that cannot be read (loading will say why)."""
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
    """u64 length, then a JSON object with an entry a tensor (github.com/huggingface/safetensors)."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"{path}: a header of {length} bytes")
        return list(json.loads(file.read(length)))
