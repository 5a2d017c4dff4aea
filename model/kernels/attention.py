"""Attention over the paged cache on a CPU: `cpu/attention/attention.h`. Independent of requests.

Axes: T query rows, H query heads, K key heads, D head dimension, B keys to a block, J blocks of a sequence, S keys of
one sequence. The cache has keys [block, K, D, B] and values [block, K, B, D], float32 or bfloat16.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from lightwell.model.kernels.checks import SUFFIXES, address_of, check_numbers, check_tensor, described
from lightwell.model.kernels.library import fields, kernels

_FLOAT32 = (torch.float32,)
_KINDS: dict[str, int] = {"pattern": 0, "scores": 1, "dots": 2}
_PATTERN_MAP = np.dtype(
    [("numbers", np.int64), ("first_row", np.int64), ("row_bytes", np.int64), ("number_bytes", np.int64)]
)
"""`PatternMap` of attention.h."""


class AttentionArguments(ctypes.Structure):
    """The struct of the same name in attention.h, which describes its fields."""

    _fields_ = (
        *fields("p", "queries", "keys", "values", "out", "tables", "positions", "first", "last", "bias"),
        *fields("p", "pattern_output", "sinks"),
        *fields("l", "num_heads", "num_key_heads", "dim", "block_size", "table_width", "bias_width"),
        *fields("f", "scale", "softcap"),
    )


class PatternOutput:
    """The addresses to which attention writes the patterns of one step. Their tensors must outlive it."""

    def __init__(self, num_spans: int, num_heads: int, num_layers: int = 1) -> None:
        self._maps = np.zeros((num_layers, num_spans, num_heads), _PATTERN_MAP)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of spans and heads."""
        return self._maps.shape[1], self._maps.shape[2]

    @property
    def addresses(self) -> range:
        """Return the address of each layer's table, for the kernels."""
        start, size = self._maps.ctypes.data, self._maps.strides[0]
        return range(start, start + len(self._maps) * size, size)

    def has(self, span: int) -> bool:
        """Return whether `add` was called for this span. Each span has one place in the table."""
        return bool(self._maps["numbers"][:, span].any())

    def add(self, span: int, first_row: int, heads: Sequence[int] | np.ndarray, room: torch.Tensor) -> None:
        """Register room for the patterns of a span: [heads, rows of the span, keys], float32 or float16, zeros, with
        contiguous keys, and each head once. Heads of layer n count from n H.
        """
        if room.dtype not in (torch.float32, torch.float16) or room.dim() != 3 or room.stride(2) != 1:
            raise ValueError(
                f"room must be float32 or float16 [heads, rows, keys], its keys in a row, not {described(room)}"
            )
        num_layers, num_spans, num_heads = self._maps.shape
        if not 0 <= span < num_spans:
            raise ValueError(f"span is {span}; 0 to {num_spans - 1} is accepted")
        chosen = _chosen("heads", heads, num_layers * num_heads)
        if len(chosen) != len(room):
            raise ValueError(f"room is for {len(room)} heads; {len(chosen)} are chosen")
        maps, (of_head, of_row, _) = np.empty(len(room), _PATTERN_MAP), room.stride()
        maps["numbers"] = room.data_ptr() + np.arange(len(room)) * of_head * room.itemsize
        maps["first_row"], maps["row_bytes"], maps["number_bytes"] = first_row, of_row * room.itemsize, room.itemsize
        self._maps[chosen // num_heads, span, chosen % num_heads] = maps


class VisibleKeys:
    """The cached keys that each row of a step sees, checked once for all layers. The arrays must not change."""

    def __init__(
        self, tables: np.ndarray, positions: np.ndarray, first: np.ndarray, last: np.ndarray, block_size: int
    ) -> None:
        """Check and keep the arrays.

        tables [sequence, J] int32: the blocks of each sequence's keys, in order. positions, first, last [T] int64: row
        t is at positions[t] and sees keys first[t] <= k < last[t]. Neither bound falls from a row of a sequence to the
        next.
        """
        self.tables = _array("tables", tables, np.int32, 2)
        self.positions = _array("positions", positions, np.int64, 1)
        self.first, self.last = _array("first", first, np.int64, 1), _array("last", last, np.int64, 1)
        self.block_size = block_size
        self.num_rows = len(self.positions)
        for name, array in (("first", self.first), ("last", self.last)):
            if len(array) != self.num_rows:
                raise ValueError(f"{name} has {len(array)} rows; positions has {self.num_rows}")
        self.num_blocks = int(self.tables.max(initial=-1)) + 1
        most, end = self.tables.shape[1] * block_size, int(self.last.max(initial=0))
        if self.tables.min(initial=0) < 0:
            raise ValueError(f"tables contains block {self.tables.min()}; 0 and above are accepted")
        if min(self.positions.min(initial=0), self.first.min(initial=0), self.last.min(initial=0)) < 0:
            raise ValueError("positions, first and last must not be negative")
        if end > most:
            raise ValueError(f"last contains {end}; at most {most}, the keys in the blocks of tables, is accepted")
        self.longest = max(1 + int(self.positions.max(initial=-1)), end)
        """The least number of positions that includes every row and every visible key."""
        self.addresses = {
            "tables": self.tables.ctypes.data,
            "positions": self.positions.ctypes.data,
            "first": self.first.ctypes.data,
            "last": self.last.ctypes.data,
            "table_width": self.tables.shape[1],
        }
        """Fields of `AttentionArguments`, computed once: reading the address of an array takes a microsecond."""

    def table(self, sequence: int) -> int:
        """Return the address of the blocks of one sequence."""
        if not 0 <= sequence < len(self.tables):
            raise ValueError(f"sequence is {sequence}; 0 to {len(self.tables) - 1} is accepted")
        return int(self.tables[sequence].ctypes.data)


class AttentionItems:
    """The pieces of work that threads share, checked once for all layers. The array must not change."""

    def __init__(self, items: np.ndarray, lists: Sequence[int] | None = None) -> None:
        """Check and keep items [n, 5] int32: (sequence, first row, rows, first key head, key heads).

        Each item has a few rows of one sequence and some of the heads. Threads take equal shares of them, in order.
        lists: the first item of each of several lists that are shared separately, and n; only for `Decoder`.
        """
        self.array = _array("items", items, np.int32, 2)
        if items.shape[1] != 5:
            raise ValueError(f"items has {items.shape[1]} columns; 5 are accepted")
        if items.min(initial=0) < 0 or items[:, 2].min(initial=1) < 1:
            raise ValueError(
                f"items must not be negative and must have rows (smallest numbers: {items.min(0).tolist()})"
            )
        sizes = items[:, 0] + 1, items[:, 1] + items[:, 2], items[:, 3] + items[:, 4]
        self.sizes = tuple(int(each.max(initial=0)) for each in sizes)
        """The least numbers of sequences, rows and key heads of a step with these items."""
        self.address = items.ctypes.data
        self.lists = np.array([0, len(items)] if lists is None else lists, np.int64)

    @classmethod
    def joined(cls, lists: "Sequence[AttentionItems]") -> "AttentionItems":
        """Return several lists as one."""
        if len(lists) == 1:
            return lists[0]
        ends = np.cumsum([len(each.array) for each in lists]).tolist()
        return cls(np.concatenate([each.array for each in lists]), [0, *ends])


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: VisibleKeys,
    items: AttentionItems,
    *,
    scale: float,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    pattern_output: PatternOutput | None = None,
    out: torch.Tensor,
) -> None:
    """Write softmax(scores) V of the items' rows and heads to out [T, H, D], of the cache's dtype.

    q [T, H, D] float32: the first T rows of `seen`. keys and values: the cache. A score is scale * q.k; then softcap *
    tanh(score / softcap), unless softcap is None or 0; then plus bias[h, key - position + reach - 1], of bias [H, 2 *
    reach - 1] float32. sinks [H] float32: an additional score for each head, without a key, in each row's softmax.
    pattern_output: optional room for the softmax itself.
    """
    arguments = _arguments(q, keys, seen, scale, softcap, bias, sinks)
    check_tensor("values", values, (keys.dtype,), (*keys.shape[:2], keys.shape[3], keys.shape[2]))
    check_tensor("out", out, (keys.dtype,), q.shape)
    if pattern_output is not None and pattern_output.shape != (len(seen.tables), q.shape[1]):
        raise ValueError(
            f"pattern_output has shape {pattern_output.shape}; {(len(seen.tables), q.shape[1])} is accepted"
        )
    for size, needed in zip((len(seen.tables), q.shape[0], keys.shape[1]), items.sizes, strict=True):
        if needed > size:
            raise ValueError(
                f"items must be within {len(seen.tables)} sequences, {q.shape[0]} rows and {keys.shape[1]} key heads; "
                f"they need {items.sizes}"
            )
    arguments.values, arguments.out = values.data_ptr(), out.data_ptr()
    arguments.pattern_output = None if pattern_output is None else pattern_output.addresses[0]
    name = f"attend_{SUFFIXES[keys.dtype]}"
    kernels().call(name, "ppl", ctypes.addressof(arguments), items.address, len(items.array))


def attention_rows(
    q: torch.Tensor,
    rows: Sequence[int],
    heads: Sequence[int],
    keys: torch.Tensor,
    seen: VisibleKeys,
    sequence: int,
    num_keys: int,
    kind: str,
    *,
    scale: float,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention of chosen heads and rows of one sequence, by the steps of `attend`: [heads, rows, S].

    num_keys is S: no chosen row may see more. kind: "pattern" (rows sum to 1 without sinks; hidden keys are 0),
    "scores" (hidden keys are -inf) or "dots" (q.k, not scaled; hidden keys are -inf). The other arguments are the same
    as in `attend`.
    """
    arguments = _arguments(q, keys, seen, scale, softcap, bias, sinks)
    if kind not in _KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(_KINDS)}")
    chosen_rows, chosen_heads = _chosen("rows", rows, q.shape[0]), _chosen("heads", heads, q.shape[1])
    arguments.tables = seen.table(sequence)
    if num_keys < 0 or seen.last[chosen_rows].max(initial=0) > num_keys:
        raise ValueError(
            f"num_keys is {num_keys}; at least the {seen.last[chosen_rows].max(initial=0)} keys of a row are accepted"
        )
    out = torch.empty(len(chosen_heads), len(chosen_rows), num_keys)
    kernels().call(
        f"attention_rows_{SUFFIXES[keys.dtype]}",
        "pplpllpl",
        ctypes.addressof(arguments),
        *(chosen_rows.ctypes.data, len(chosen_rows), chosen_heads.ctypes.data, len(chosen_heads)),
        *(_KINDS[kind], out.data_ptr(), num_keys),
    )
    return out


def softmax_rows(scores: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Return the softmax of scores [n, ..., S] float32, by the steps of `attend`. sinks [n] float32."""
    scores = scores.contiguous()
    check_tensor("scores", scores, _FLOAT32, scores.shape)
    out = torch.empty_like(scores)
    num_keys = scores.shape[-1]
    num_rows = scores.numel() // num_keys if num_keys else 0
    num_sinks = 0 if sinks is None else len(scores)
    pointers = scores.data_ptr(), address_of("sinks", sinks, _FLOAT32, (num_sinks,)), out.data_ptr()
    kernels().call("softmax_rows_f32", "ppplll", *pointers, num_rows, num_keys, num_sinks)
    return out


def mix_rows(
    pattern: torch.Tensor, key_heads: Sequence[int], values: torch.Tensor, seen: VisibleKeys, sequence: int
) -> torch.Tensor:
    """Return pattern [n, rows, S] float32 * the values of one sequence, by the steps of `attend`: [n, rows, D] in the
    cache's dtype. key_heads [n]: the key head for each head of the pattern.
    """
    pattern = pattern.contiguous()
    kind = check_numbers("values", values, 4)
    check_tensor("values", values, SUFFIXES, (*values.shape[:2], seen.block_size, values.shape[3]))
    check_tensor("pattern", pattern, _FLOAT32, (len(key_heads), *pattern.shape[1:]))
    heads = _chosen("key_heads", key_heads, values.shape[1])
    num_heads, num_rows, num_keys = pattern.shape
    table = seen.table(sequence)
    if num_keys > seen.tables.shape[1] * seen.block_size or seen.num_blocks > len(values):
        raise ValueError(f"pattern has {num_keys} keys; tables has {seen.tables.shape} blocks, of {len(values)}")
    out = torch.empty(num_heads, num_rows, values.shape[3], dtype=values.dtype)
    kernels().call(
        f"mix_rows_{kind}",
        "pppppllllll",
        *(pattern.data_ptr(), heads.ctypes.data, values.data_ptr(), table, out.data_ptr()),
        *(num_heads, num_rows, num_keys, values.shape[1], values.shape[3], seen.block_size),
    )
    return out


def _arguments(
    q: torch.Tensor,
    keys: torch.Tensor,
    seen: VisibleKeys,
    scale: float,
    softcap: float | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> AttentionArguments:
    """Check the shared arguments of `attend` and `attention_rows`. The tensors and arrays must outlive the result."""
    check_numbers("keys", keys, 4)
    _, num_key_heads, dim, block_size = keys.shape
    if q.dim() != 3 or num_key_heads < 1 or q.shape[1] % num_key_heads:
        raise ValueError(f"q must be [rows, heads, {dim}] with a multiple of {num_key_heads} heads, not {described(q)}")
    num_rows, num_heads, _ = q.shape
    check_tensor("q", q, _FLOAT32, (num_rows, num_heads, dim))
    if num_rows > seen.num_rows:
        raise ValueError(f"q has {num_rows} rows; the visible keys have {seen.num_rows}")
    if seen.block_size != block_size or seen.num_blocks > len(keys):
        raise ValueError(
            f"keys has {len(keys)} blocks of {block_size} keys; "
            f"the visible keys need {seen.num_blocks} of {seen.block_size}"
        )
    arguments = AttentionArguments(
        queries=q.data_ptr(),
        keys=keys.data_ptr(),
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        dim=dim,
        block_size=block_size,
        scale=scale,
        softcap=softcap or 0.0,
        **seen.addresses,
    )
    if bias is not None:
        check_tensor("bias", bias, _FLOAT32, (num_heads, bias.shape[-1]))
        reach = (bias.shape[1] + 1) // 2
        if reach < seen.longest:
            raise ValueError(f"the position bias reaches {reach} positions; a sequence has {seen.longest}")
        arguments.bias, arguments.bias_width = bias.data_ptr(), bias.shape[1]
    arguments.sinks = address_of("sinks", sinks, _FLOAT32, (num_heads,))
    return arguments


def _array(name: str, x: np.ndarray, dtype: type, num_axes: int) -> np.ndarray:
    if x.dtype != dtype or x.ndim != num_axes or not x.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous {dtype.__name__} of {num_axes} axes, not {x.dtype} {x.shape}")
    return x


def _chosen(name: str, indices: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    chosen = np.array(indices, np.int64)
    if len(chosen) and not 0 <= chosen.min() <= chosen.max() < count:
        raise ValueError(f"{name} are from {chosen.min()} to {chosen.max()}; 0 to {count - 1} are accepted")
    return chosen
