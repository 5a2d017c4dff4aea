"""Reads the weights of a model folder under Lightwell's names.

safetensors is preferred, single or sharded, to pytorch_model.bin, which is opened with `weights_only=True` and runs no
code from the file. Tensors are copied one by one into their final place and dtype: peak memory is one model and one
tensor.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from os.path import isfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lightwell.model.checkpoint import anonymous_memory
from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.checkpoint.families.weight_table import WeightMap
from lightwell.model.checkpoint.files import read_json
from lightwell.model.checkpoint.folder import GGUF_NAME, ModelLoadError
from lightwell.model.checkpoint.gguf.weights import ACCEPTED as GGUF_TYPES
from lightwell.model.checkpoint.gguf.weights import gguf_tensors
from lightwell.model.checkpoint.quantized.formats import quantized_tensors
from lightwell.model.checkpoint.quantized.scheme import read_scheme
from lightwell.model.checkpoint.stored_tensor import CODE_SIZES, ITEM_SIZES, StoredTensor
from lightwell.model.checkpoint.weight_maps import MappedWeight, Source, table_of, weights_of
from lightwell.model.config import ModelConfig
from lightwell.model.quantized import GroupedRows, QuantizedMatrix, Weight

Progress = Callable[[int, int], None]
"""A callback with the number of bytes read and of all bytes, as stored in the files."""
Part = Callable[[str, torch.Tensor], torch.Tensor]
"""A function of a weight's name and the whole weight that returns the needed part, possibly a view."""

_LOOKED_UP = ("pos_embed.weight", "token_type_embed.weight", "position_bias.weight", "per_layer_embed.weight")
"""Tables without matrix products, which are stored in the network's dtype."""
_WIDENED = (".router.weight", "head_transform.weight", "classifier_dense.weight", "classifier.weight")
"""Endings of small matrices that are dequantised."""
_SHOWN = 8
"""Most names in an error."""
_SHOWN_CHARACTERS = 200
"""Most characters of a name in an error."""
_TORCH_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
}


def safetensors_entries(path: Path, opened: str | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of a file, without reading them. opened: the path of an open descriptor of the file.

    Raises ModelLoadError for an incomplete file.
    """
    incomplete = f"{path}: not a complete safetensors file"

    def read(name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(incomplete) from error
        return tensor

    try:
        handle: Any = safe_open(opened or path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(incomplete) from error
    views = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
    return {
        name: _stored(view.get_shape(), view.get_dtype(), partial(read, name), view.__getitem__)
        for name, view in views.items()
    }


def _stored(
    shape: Sequence[int], dtype: str, read: Callable[[], torch.Tensor], read_entry: Callable[[int], torch.Tensor]
) -> StoredTensor:
    sizes = ITEM_SIZES | CODE_SIZES
    num_bytes = math.prod(shape) * sizes.get(dtype, 0)
    return StoredTensor(tuple(shape), dtype, num_bytes, read, read_entry=read_entry)


def _torch_entries(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"  # the format before torch 1.6 cannot be mapped
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    # Damaged and hostile files raise errors of many types.
    except Exception as error:
        raise ModelLoadError(
            f"{path}: torch.load(weights_only=True) cannot read it; only tensors are accepted"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(name, str) and _is_plain(x) for name, x in state.items()):
        raise ModelLoadError(f"{path}: a dict of dense tensors by name is expected, but it contains other values")
    dtypes = {name: _TORCH_DTYPES.get(x.dtype, str(x.dtype)) for name, x in state.items()}
    return {
        name: _stored(x.shape, dtypes[name], partial(state.__getitem__, name), x.__getitem__)
        for name, x in state.items()
    }


def _is_plain(value: Any) -> bool:
    is_dense = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested
    return is_dense and value.device.type == "cpu"


_FORMATS: tuple[tuple[str, Callable[[Path], dict[str, StoredTensor]]], ...] = (
    ("model.safetensors", safetensors_entries),
    ("pytorch_model.bin", _torch_entries),
)


class WeightFiles:
    """The open weight files of a folder."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """Open the files. Raises ModelLoadError, as `load_weights` does, for files that do not fit `config`."""
        self._table = table_of(config)
        self.weights = {weight.name: weight for weight in weights_of(config)}
        if (folder / GGUF_NAME).is_file():
            self._entries = gguf_tensors(folder / GGUF_NAME, config, self.weights.values())
            self._accepted: Collection[str] = GGUF_TYPES
        else:
            self._entries, self._accepted = unstacked(stored_tensors(folder), config, self._table), tuple(ITEM_SIZES)
            scheme = read_scheme(Fields.of_file(folder / "config.json"))
            if scheme is not None:
                self._entries = quantized_tensors(self._entries, scheme)
                self._accepted = (*ITEM_SIZES, scheme.method)
        self._names = {self._table.short(name): name for name in self._entries}
        self._check(folder, config)

    def num_bytes(self, name: str) -> int:
        """Return the bytes of a weight in the files."""
        return sum(entry.num_bytes for entry in self._sources(name))

    def read(self, name: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return one weight, contiguous."""
        weight = self.weights[name]
        target = anonymous_memory.zeros(weight.shape, dtype, device)  # freed after packing
        row = 0
        for entry in self._sources(name):
            tensor = arranged(entry.read().detach(), weight)  # torch files may hold parameters
            target[row : row + len(tensor)].copy_(tensor)
            row += len(tensor)
        return target

    def read_quantized(
        self, name: str, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> QuantizedMatrix | None:
        """Return a quantised matrix for a network with this dtype, on this device, or None if it is not stored
        quantised.
        """
        if name in _LOOKED_UP or name.endswith(_WIDENED):
            return None
        weight, entries = self.weights[name], self._sources(name)
        readers = [entry.read_grouped for entry in entries if entry.read_grouped is not None]
        if weight.arrange in ("heads first", "gates last", "every other"):
            rows = [arranged(torch.arange(source.shape[0])[:, None], weight)[:, 0] for source in weight.sources]
            readers = [partial(_selected, reader, own) for reader, own in zip(readers, rows, strict=False)]
        is_quantized = len(readers) == len(entries)
        return QuantizedMatrix(torch.Size(weight.shape), dtype, readers, torch.device(device)) if is_quantized else None

    def check_tied(self, embed: torch.Tensor, part: Part) -> None:
        """Raise ModelLoadError for a tied head that differs from the token table. embed: the table's needed part."""
        for short in self._table.tied_heads:
            name = self._names.get(short)
            if name is not None and not torch.equal(part("embed.weight", self._entries[name].read()).to(embed), embed):
                raise ModelLoadError(
                    f"weights: {name} differs from the token table, to which config.json ties it; "
                    "if the head is a separate matrix, set tie_word_embeddings to false"
                )

    def _sources(self, name: str) -> list[StoredTensor]:
        return [self._entries[self._find(source)] for source in self.weights[name].sources]

    def _find(self, source: Source) -> str:
        """Return the tensor's name in the files, or its usual name if they lack it."""
        shorts = map(self._table.short, source.names)
        return next((self._names[short] for short in shorts if short in self._names), source.names[0])

    def _is_empty_bias(self, name: str) -> bool:
        """Return whether a tensor is the zero bias of a quantised matrix. AutoGPTQ wrote one for every matrix."""
        owner, _, last = name.rpartition(".")
        matrix = self._entries.get(f"{owner}.weight")
        is_bias = last == "bias" and matrix is not None and matrix.read_grouped is not None
        return is_bias and not self._entries[name].read().any()

    def _check(self, folder: Path, config: ModelConfig) -> None:
        """Raise one ModelLoadError for all missing, unexpected and unfitting tensors."""
        entries, table = self._entries, self._table
        sources = [source for weight in self.weights.values() for source in weight.sources]
        accepted = {table.short(name) for source in sources for name in source.names}
        found = [(source, self._find(source)) for source in sources]
        missing = [name for _, name in found if name not in entries]
        tied = table.tied_heads if config.tie_word_embeddings else ()
        unexpected = [
            name
            for short, name in self._names.items()
            if short not in accepted
            and short not in tied
            and not table.ignored.fullmatch(short)
            and not self._is_empty_bias(name)
        ]
        present = [(source, name) for source, name in found if name in entries]
        misshaped = [
            f"{name} {list(entries[name].shape)} (config.json says {list(source.shape)})"
            for source, name in present
            if entries[name].shape != source.shape
        ]
        strange = [f"{name} {entries[name].dtype}" for _, name in present if entries[name].dtype not in self._accepted]
        problems = [
            f"{len(listed)} {kind}: {some_of(listed)}"
            for kind, listed in (
                ("missing", missing),
                ("unexpected", unexpected),
                ("misshaped", misshaped),
                (f"not of {', '.join(self._accepted)}", strange),
            )
            if listed
        ]
        if problems:
            raise ModelLoadError(f"weights in {str(folder)!r} do not fit {config.architecture}: {'; '.join(problems)}")


def _selected(reader: Callable[[], GroupedRows], rows: torch.Tensor) -> GroupedRows:
    return reader().select(rows)


def load_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    part: Part | None = None,
    keeps_quantized: bool = False,
) -> dict[str, Weight]:
    """Return every weight of `config`, by its name (see weight_maps), in `dtype`, contiguous, on `device`. With `part`,
    only the needed part of each is kept: peak memory is then all parts and one whole weight. keeps_quantized: whether
    quantised matrices stay quantised.

    Raises ModelLoadError for missing and damaged files, for tensors that are missing, unexpected, of a wrong shape or
    of an unsupported dtype, with up to eight names of each kind, and for a tied head that differs from the token table.
    """
    files = WeightFiles(folder, config)
    total = sum(map(files.num_bytes, files.weights))
    done, loaded = 0, dict[str, Weight]()
    for name in files.weights:
        matrix = files.read_quantized(name, dtype, device) if keeps_quantized else None
        if matrix is not None:
            loaded[name] = matrix
        elif part is None:
            loaded[name] = files.read(name, dtype, device)
        else:
            loaded[name] = _own(files.read(name, dtype), part, name, device)
        done += files.num_bytes(name)
        if progress is not None:
            progress(done, total)
    table = loaded.get("embed.weight")
    if config.has_head and config.tie_word_embeddings and isinstance(table, torch.Tensor):
        files.check_tied(table, part or (lambda name, whole: whole))
    return loaded


def _own(whole: torch.Tensor, part: Part, name: str, device: torch.device | str) -> torch.Tensor:
    """Return a copy of the needed part, so that the whole weight can be freed."""
    wanted = part(name, whole)
    return anonymous_memory.zeros(wanted.shape, whole.dtype, device).copy_(wanted)


def arranged(tensor: torch.Tensor, weight: MappedWeight) -> torch.Tensor:
    """Return the tensor with axes and rows in Lightwell's order."""
    if weight.arrange == "transpose":
        return tensor.T
    if weight.arrange == "flatten":
        return tensor.flatten()
    if weight.arrange == "heads first":
        by_head = tensor.view(weight.num_heads, 3, -1, *tensor.shape[1:])  # [H, q | k | v, D, ...]
        return by_head.transpose(0, 1).flatten(0, 2)
    if weight.arrange == "every other":
        return tensor.view(-1, 2, *tensor.shape[1:]).transpose(0, 1).flatten(0, 1)
    if weight.arrange == "gates last" and len(tensor) >= weight.gated_rows:
        by_head = tensor[: weight.gated_rows].view(weight.num_heads, 2, -1, *tensor.shape[1:])  # [H, q | gate, D, ...]
        return torch.cat((by_head.transpose(0, 1).flatten(0, 2), tensor[weight.gated_rows :]))
    return tensor


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all weight files, without reading them. Raises ModelLoadError for missing or bad files."""
    for single, opener in _FORMATS:
        index = folder / f"{single}.index.json"
        paths = [folder / single] if (folder / single).is_file() else _shards(index) if index.is_file() else []
        if paths:
            return {name: entry for path in paths for name, entry in opener(path).items()}
    accepted = ", ".join(f"{single} or {single}.index.json" for single, _ in _FORMATS)
    raise ModelLoadError(f"model folder {str(folder)!r} contains no weights; expected {accepted}")


def _shards(index: Path) -> list[Path]:
    try:
        files = sorted(set(read_json(index)["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{index}: not a weight index; weight_map must name a file for each tensor") from error
    # Files must be next to the index. A path could lead to any folder.
    missing = [str(name)[:99] for name in files if not isfile(index.parent / str(name)) or Path(str(name)).name != name]
    if missing:
        raise ModelLoadError(f"{index}: names files that are not in its folder: {some_of(missing)}")
    return [index.parent / name for name in files]


def some_of(names: list[str]) -> str:
    """Return the first names, each on one line and shortened if it is long, and the number of the others."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name)[1:-1][:_SHOWN_CHARACTERS] for name in names[:_SHOWN]) + more


def unstacked(entries: Mapping[str, StoredTensor], config: ModelConfig, table: WeightMap) -> dict[str, StoredTensor]:
    """Return the tensors of some files, without reading them, with a tensor for each expert in place of
    `table.stacked`. A stacked tensor of another length than the number of experts is returned unchanged.
    """
    found = dict(entries)
    for stacked in table.stacked:
        for name in [name for name in found if name.endswith(stacked.ending)]:
            whole = found[name]
            if config.experts is None or whole.shape[:1] != (config.experts.num_experts,):
                continue
            del found[name]
            start = name.removesuffix(stacked.ending)
            for e in range(config.experts.num_experts):
                one = start + stacked.one.replace("{e}", str(e))
                found[one] = whole.entry(e, transposed=stacked.is_transposed)
    return found
