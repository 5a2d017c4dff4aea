"""Reads the tensors of a GGUF file with the names and shapes of `transformers`.

The `gguf` package translates names. The changes of llama.cpp's converter are reversed: the order of the rows of Llama's
queries and keys, the 1 that is added to Gemma's norm weights, and the transposition of GPT-2's matrices.
"""

import mmap
from collections.abc import Iterable
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from lightwell.model.checkpoint.gguf.blocks import GROUPED_TYPES, PLAIN_TYPES, grouped_rows, plain_rows
from lightwell.model.checkpoint.gguf.header import TensorEntry, read_header
from lightwell.model.checkpoint.stored_tensor import StoredTensor, checked_rows
from lightwell.model.checkpoint.weight_maps import MappedWeight
from lightwell.model.config import ModelConfig
from lightwell.model.quantized import GroupedRows

ACCEPTED = tuple(kind.name for kind in (*PLAIN_TYPES, *GROUPED_TYPES))
_WITHOUT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors whose content is in config.json (`model.checkpoint.gguf.config`)."""
_ENDINGS = (".weight", ".bias")


def gguf_tensors(path: Path, config: ModelConfig, weights: Iterable[MappedWeight]) -> dict[str, StoredTensor]:
    """Return the tensors of a file, by the names of `weights` in checkpoints of `transformers`. Unused tensors keep the
    file's names.

    Raises ModelLoadError for an invalid or incomplete file.
    """
    header = read_header(path, with_texts=False)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == header.metadata["general.architecture"])
    names = gguf.get_tensor_name_map(arch, config.num_layers)
    with path.open("rb") as file:
        # torch warns of memory that is not writable. Nothing is written.
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    bytes_of_file = np.frombuffer(memory, np.uint8)  # keeps the mapping
    left = {name: entry for name, entry in header.tensors.items() if name not in _WITHOUT_WEIGHTS}
    found: dict[str, StoredTensor] = {}
    for weight in weights:
        for source in weight.sources:
            for theirs in source.names:
                entry = left.pop(_name_in_file(names, theirs), None)
                if entry is not None:
                    order = _order_of_rows(theirs, config) if arch == gguf.MODEL_ARCH.LLAMA else None
                    is_transposed = weight.arrange == "transpose"
                    offset = config.norm_weight_offset if theirs.endswith("norm.weight") else 0.0
                    found[theirs] = _stored(bytes_of_file, entry, order, offset, is_transposed=is_transposed)
                    break
    return found | {name: _stored(bytes_of_file, entry, None, 0.0, is_transposed=False) for name, entry in left.items()}


def _name_in_file(names: gguf.TensorNameMap, theirs: str) -> str:
    """Return the name in the file of a tensor of `transformers`, or "" if the table has none."""
    spellings = theirs, theirs.partition(".")[2]  # some checkpoints have their base model's name in front
    return next(filter(None, (names.get_name(name, try_suffixes=_ENDINGS) for name in spellings)), "")


def _order_of_rows(theirs: str, config: ModelConfig) -> Tensor | None:
    """Return the file's row for each row of a checkpoint's queries or keys, or None for other tensors.

    llama.cpp rotates neighbouring rows of a head together, `transformers` rows with a distance of half a head.
    """
    for projection, heads in (("q_proj.", config.num_heads), ("k_proj.", config.num_kv_heads)):
        if projection in theirs:
            return torch.arange(heads * config.head_dim).view(heads, -1, 2).transpose(1, 2).flatten()
    return None


def _stored(
    bytes_of_file: np.ndarray, entry: TensorEntry, order: Tensor | None, offset: float, *, is_transposed: bool
) -> StoredTensor:
    """Return a tensor of the file as in a checkpoint of `transformers`.

    order: the file's row of each row. offset: the number to subtract.
    """
    num_rows, width = int(np.prod(entry.shape[:-1])), entry.shape[-1]

    def rows() -> Tensor:
        data = bytes_of_file[entry.offset : entry.offset + entry.num_bytes]
        return torch.from_numpy(data).view(num_rows, -1)

    def grouped() -> GroupedRows:
        found = grouped_rows(rows(), entry.type, width)
        return found if order is None else found.select(order)

    def read() -> Tensor:
        is_grouped = entry.type in GROUPED_TYPES
        found = grouped_rows(rows(), entry.type, width).to_dense() if is_grouped else plain_rows(rows(), entry.type)
        found = found.view(entry.shape)
        found = found if order is None else found[order]
        found = found - offset if offset else found
        return found.T if is_transposed else found

    shape = entry.shape[::-1] if is_transposed else entry.shape
    is_matrix = entry.type in GROUPED_TYPES and len(entry.shape) == 2
    rows_of_matrix = checked_rows(entry.name, entry.shape, grouped) if is_matrix else None
    return StoredTensor(shape, entry.type.name, entry.num_bytes, read, rows_of_matrix)
