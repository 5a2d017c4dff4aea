"""Puts each quantised matrix of a checkpoint in the place of the tensors that it is made of."""

from collections.abc import Callable, Mapping

from model.checkpoint.quantized import awq, compressed, fp8, gptq, mxfp4
from model.checkpoint.quantized.parts import Parts
from model.checkpoint.quantized.scheme import Scheme
from model.checkpoint.stored_tensor import ITEM_SIZES, StoredTensor

_READERS: dict[str, tuple[tuple[str, ...], Callable[[Parts], StoredTensor]]] = {
    "awq": (awq.PARTS, awq.read_matrix),
    "gptq": (gptq.PARTS, gptq.read_matrix),
    "compressed-tensors": (compressed.PARTS, compressed.read_matrix),
    "fp8": (fp8.PARTS, fp8.read_matrix),
    "mxfp4": (mxfp4.PARTS, mxfp4.read_matrix),
}
"""By method: the parts that a matrix may have, and what reads one."""
_OF_A_CACHE = ("k_scale", "v_scale")
"""Scales of a quantised KV cache, which ours is not."""


def quantized_tensors(entries: Mapping[str, StoredTensor], scheme: Scheme) -> dict[str, StoredTensor]:
    """Return the tensors of some files, with a `weight` for all parts of a quantised matrix.

    Raises ModelLoadError for a matrix whose parts are missing or do not fit together.
    """
    known, read_matrix = _READERS[scheme.method]
    parts, found = dict[str, dict[str, StoredTensor]](), dict[str, StoredTensor]()
    for name, entry in entries.items():
        owner, _, last = name.rpartition(".")
        if last in known and not (last == "weight" and entry.dtype in ITEM_SIZES):
            parts.setdefault(owner, {})[last] = entry
        elif last not in _OF_A_CACHE:
            found[name] = entry
    return found | {f"{name}.weight": read_matrix(Parts(name, own, scheme)) for name, own in parts.items()}
