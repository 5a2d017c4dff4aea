"""Blocks of encoders like BERT's in one compiled call each, where the CPU has tiles and nobody looks inside.

Axes: T rows of all texts, d model width.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from model.block import Block
from model.capture import LayerLooks
from model.config import ModelConfig
from model.layers.arrays import bits
from model.layers.int8_rows import Quantization
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import LayerNorm, Norm
from model.layers.tile_weight import num_parts, why_no_tiles
from model.sublayers import Feedforward, SelfAttention, Step

_MOST_ROWS = {torch.bfloat16: 256, torch.float32: 128}
"""Of a group of texts that a thread takes at a time: what it computes then stays in its second cache, and the weights
are read for many rows."""
_MULTIPLE = 32


def why_not_whole(config: ModelConfig, dtype: torch.dtype, device: torch.device, quantize: Quantization) -> str | None:
    """Why the blocks of a stack cannot be one call each, or None when they can."""
    asked = {
        "causal": False,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_placement": "post",
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
    return "weights are quantised" if quantize != "none" else why_no_tiles(dtype, device)


class Workspace:
    """What each thread computes in, for all blocks of a stack: grows to the largest group seen."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._width, self._ff = config.hidden_size, config.intermediate_size
        self._dtype = dtype
        self._num_rows = self._num_threads = 0
        self._tiles = self._rows = torch.empty(0)

    def at_least(self, num_rows: int, num_threads: int) -> tuple[np.ndarray, np.ndarray]:
        """In tiles, and in rows, [thread, numbers], for a group of so many rows."""
        if num_rows > self._num_rows or num_threads > self._num_threads:
            self._num_rows, self._num_threads = max(num_rows, self._num_rows), max(num_threads, self._num_threads)
            in_tiles = -(-self._num_rows // 16) * 16 * num_parts(self._dtype) * (self._width + self._ff)
            self._tiles = torch.empty(self._num_threads, in_tiles, dtype=torch.bfloat16)
            self._rows = torch.empty(self._num_threads, self._num_rows * 4 * self._width, dtype=self._dtype)
        return bits(self._tiles), bits(self._rows)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderBlock(Block):
    """A block that takes all its steps in one call while nobody looks; `why_not_whole` says which can.

    Fewer texts than threads go the ordinary way, in which threads share each product: one text alone is sooner there.
    """

    workspace: Workspace = field(kw_only=True)

    def __call__(self, x: torch.Tensor, step: Step, look: LayerLooks | None) -> torch.Tensor:
        """x [T', d] -> [T', d], or of T rows alone."""
        if look is not None or step.batch.num_spans_at(self.index) < torch.get_num_threads():
            return Block.__call__(self, x, step, look)
        return self._whole(x, step)

    def _whole(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """x [T', d] -> [T, d]."""
        from model.layers.encoder_kernels import encode_layer

        attention, feedforward = self.attention.f, self.mlp.f
        assert isinstance(attention, SelfAttention)
        assert isinstance(feedforward, Feedforward)
        mlp: Mlp = feedforward.mlp
        threads = torch.get_num_threads()
        first_rows = np.array(step.batch.first_rows[: step.batch.num_spans_at(self.index) + 1])
        groups = _groups(first_rows, _MOST_ROWS[x.dtype], threads)
        most = int(np.diff(first_rows[groups]).max())
        out = x.new_empty(step.rows, x.shape[1])
        heads, ff = attention.num_heads, mlp.up.out_features
        encode_layer(
            groups,
            *(first_rows, bits(x.view(-1))),
            *(_weight(attention.qkv), _weight(attention.heads.out), _norm(self.attention.of_sum)),
            *(_weight(mlp.up), _weight(mlp.down), _norm(self.mlp.of_sum)),
            (heads, attention.head_dim, ff, num_parts(x.dtype)),
            *(np.float32(attention.heads.rule.scale), np.float32(_layer_norm(self.mlp.of_sum).eps)),
            *self.workspace.at_least(most, threads),
            bits(out.view(-1)),
        )
        return out


def _groups(first_rows: np.ndarray, most_rows: int, num_threads: int) -> np.ndarray:
    """Texts cut into as many groups of about equal rows as threads can share evenly: [n + 1], the first text of each,
    and the number of texts. first_rows: of each text, and the number of rows.
    """
    num_rows = first_rows[-1]
    count = -(-num_rows // (most_rows * num_threads)) * num_threads
    bounds = np.searchsorted(first_rows, np.arange(count + 1) * (num_rows / count))
    return np.unique(np.append(bounds[:-1], len(first_rows) - 1))


def _weight(linear: Linear) -> tuple[np.ndarray, np.ndarray]:
    """In tiles, and the bias."""
    assert linear.tiles is not None
    assert linear.bias is not None
    return linear.tiles.array, bits(linear.bias)


def _norm(norm: Norm | None) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias."""
    norm = _layer_norm(norm)
    assert norm.bias is not None
    return bits(norm.weight), bits(norm.bias)


def _layer_norm(norm: Norm | None) -> LayerNorm:
    assert isinstance(norm, LayerNorm)
    return norm
