"""All blocks of an encoder like BERT's in one compiled call, where the CPU has tiles and nobody looks inside.

Axes: T rows of all texts, d model width.
"""

from collections.abc import Sequence

import numpy as np
import torch

from model.batch import Batch
from model.block import Block
from model.capture import Looks
from model.config import ModelConfig
from model.layers.arrays import bits
from model.layers.int8_rows import Quantization
from model.layers.linear import Linear
from model.layers.norm import LayerNorm, Norm
from model.layers.tile_weight import laid_dtype, num_parts, why_not_laid
from model.sublayers import Feedforward, SelfAttention

_MOST_ROWS = {1: 256, 3: 128}
"""Of a group of texts that a thread takes at a time, by the parts of a number: what it computes then stays near, and
the weights are read for many rows."""
_MULTIPLE = 32
_MOST_GROUPS_BETWEEN_CHECKS, _WORK_BETWEEN_CHECKS = 4, 5e9
"""Of each thread: multiplications of some 40 ms, but at least those of a group."""
_NUM_COUNTS = 16
"""For `taking_turns`."""
_SHARES = 2
"""For each thread, of a product that threads share: who is held up takes fewer of them."""


def why_not_whole(config: ModelConfig, dtype: torch.dtype, device: torch.device, quantize: Quantization) -> str | None:
    """Why the blocks of a stack cannot be one call each, or None when they can."""
    asked = {
        "causal": False,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_placement": "post",
        "final_norm": False,
        "parallel_blocks": False,
        "qk_norm": None,
        "activation": "gelu",
        "gated_mlp": False,
        "attention_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "rope": None,
        "position_bias": None,
        "attn_logit_softcap": None,
        "sliding_windows": (),
        "cross_attention": False,
        "num_kv_heads": config.num_heads,
        "hidden_size": config.num_heads * config.head_dim,
    }
    for name, value in asked.items():
        if getattr(config, name) != value:
            return f"{name} is {getattr(config, name)!r}, not {value!r}"
    widths = config.head_dim, config.hidden_size, config.intermediate_size
    if any(width % _MULTIPLE for width in widths):
        return f"of the widths {widths} of a head, the stream and the mlp not all are multiples of {_MULTIPLE}"
    return "weights are quantised" if quantize != "none" else why_not_laid(dtype, device)


class Workspace:
    """What threads compute in: grows to the largest group seen, and to the most threads."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._width, self._ff = config.hidden_size, config.intermediate_size
        self._dtype = dtype
        self._num_rows = self._num_threads = 0
        self._tiles = self._rows = torch.empty(0)

    def at_least(self, num_rows: int, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
        """In tiles, and in rows, [thread, numbers], for a group of so many rows."""
        if num_rows > self._num_rows or num_threads > self._num_threads:
            self._num_rows, self._num_threads = max(num_rows, self._num_rows), max(num_threads, self._num_threads)
            in_tiles = -(-self._num_rows // 16) * 16 * num_parts(self._dtype)
            in_tiles *= self._width + max(self._width, self._ff)
            self._tiles = torch.empty(self._num_threads, in_tiles, dtype=laid_dtype(self._dtype))
            self._rows = torch.empty(self._num_threads, self._num_rows * 3 * self._width, dtype=self._dtype)
        return bits(self._tiles)[:num_threads], bits(self._rows)[:num_threads]


class EncodeStep:
    """The blocks of one encoder; `why_not_whole` says which can."""

    def __init__(self, blocks: Sequence[Block], config: ModelConfig, dtype: torch.dtype) -> None:
        """The blocks live as long as this does."""
        from model.layers import encoder_kernels as kernels  # here: a GPU server needs no compiler

        self._kernels = kernels
        self._blocks = blocks
        self._layers = np.array([_addresses(block) for block in blocks], np.int64)
        self._shape = config.num_heads, config.head_dim, config.intermediate_size, num_parts(dtype)
        self._scale, self._eps = np.float32(config.attention_scale), np.float32(config.norm_eps)
        self._for_each, self._for_all = Workspace(config, dtype), Workspace(config, dtype)
        """For threads with groups of their own, and for one group that they share."""
        self._most_rows = _MOST_ROWS[num_parts(dtype)]
        width, ff = config.hidden_size, config.intermediate_size
        of_a_group = len(blocks) * width * (4 * width + 2 * ff) * self._most_rows
        self._groups_between_checks = min(_MOST_GROUPS_BETWEEN_CHECKS, max(1, int(_WORK_BETWEEN_CHECKS / of_a_group)))

    def can_run(self, batch: Batch, looks: Looks | None) -> bool:
        """Whether nobody looks, and all texts need all layers."""
        last = len(self._blocks) - 1
        return looks is None and batch.num_rows_at(last) == batch.num_rows and batch.needs_output_of(last)

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x [T', d] -> [T, d] in the memory of x. Raises what `batch.check` raises, between groups of texts."""
        threads = torch.get_num_threads()
        out = x[: batch.num_rows]
        first_rows = np.array(batch.first_rows)
        groups = _groups(first_rows, self._most_rows, threads)
        if len(groups) <= threads:  # fewer groups than threads, which share them
            groups, num_shares = np.array([0, len(batch.spans)]), _SHARES * threads
        else:
            num_shares = 1
        step = self._groups_between_checks * threads
        for start in range(0, len(groups) - 1, step):
            batch.check()
            self._run(groups[start : start + step + 1], num_shares, first_rows, out, threads)
        return out

    def _run(
        self, groups: np.ndarray, num_shares: int, first_rows: np.ndarray, out: torch.Tensor, threads: int
    ) -> None:
        counts = np.zeros(_NUM_COUNTS, np.int64)
        most = int(np.diff(first_rows[groups]).max())
        tiled, rows = self._for_each.at_least(most, threads) if num_shares == 1 else self._for_all.at_least(most, 1)
        work = counts, groups, num_shares, first_rows, bits(out.view(-1)), self._layers
        rules = self._shape, self._scale, self._eps
        if threads == 1:
            self._kernels.encode_here(*work, *rules, tiled[0], rows[0])
        else:
            self._kernels.encode_shared(threads, *work, *rules, tiled, rows)


def _groups(first_rows: np.ndarray, most_rows: int, num_threads: int) -> np.ndarray:
    """Texts cut into as many groups of about equal rows as threads can share evenly: [n + 1], the first text of each,
    and the number of texts. first_rows: of each text, and the number of rows.
    """
    num_rows = first_rows[-1]
    count = -(-num_rows // (most_rows * num_threads)) * num_threads
    bounds = np.searchsorted(first_rows, np.arange(count + 1) * (num_rows / count))
    return np.unique(np.append(bounds[:-1], len(first_rows) - 1))


def _addresses(block: Block) -> list[int]:
    """A row of the table that `encoder_kernels` reads."""
    attention, feedforward = block.attention.f, block.mlp.f
    assert isinstance(attention, SelfAttention)
    assert isinstance(feedforward, Feedforward)
    up, down = feedforward.mlp.up, feedforward.mlp.down
    row = [*_product(attention.qkv), *_product(attention.heads.out), *_norm(block.attention.of_sum)]
    return [*row, *_product(up), *_product(down), *_norm(block.mlp.of_sum)]


def _product(linear: Linear) -> tuple[int, int]:
    """Where the weight lies in tiles, and the bias."""
    assert linear.tiles is not None
    assert linear.bias is not None
    return linear.tiles.array.ctypes.data, _address(linear.bias)


def _norm(norm: Norm | None) -> tuple[int, int]:
    """Where its weight and bias lie."""
    assert isinstance(norm, LayerNorm)
    assert norm.bias is not None
    return _address(norm.weight), _address(norm.bias)


def _address(x: torch.Tensor) -> int:
    assert x.is_contiguous()
    return x.data_ptr()
