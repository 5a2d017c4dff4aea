"""Runs all blocks of an encoder like BERT in one call, for batches without hooks.

Axes: T rows of all texts, d model width.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.kernels.encoder import Encoder, EncoderLayer
from lightwell.model.kernels.library import num_threads
from lightwell.model.kernels.products import Arithmetic, LaidWeight
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.norm import LayerNorm, Norm
from lightwell.model.network.block import Block

_ROWS_BETWEEN_CHECKS, _WORK_BETWEEN_CHECKS = 256, 2e10
"""Smallest number of rows and of multiplications of each thread in one call: 40 to 100 ms. Smaller calls distribute
texts less evenly, which took 10 % longer.
"""


def fits_encode_step(config: ModelConfig) -> bool:
    """Return whether `EncodeStep` can run a stack on native kernels, with weights as `Encoder` takes them."""
    wanted = {
        "causal": False,
        "norm": "layernorm",
        "norm_bias": True,
        "norm_placement": "post",
        "final_norm": False,
        "parallel_blocks": False,
        "residual_scale": 1.0,
        "qk_norm": None,
        "activation": "gelu",
        "gated_mlp": False,
        "clamped_gate": None,
        "experts": None,
        "attention_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "rope": None,
        "position_bias": None,
        "attention_sinks": False,
        "alibi": False,
        "attn_logit_softcap": None,
        "sliding_windows": (),
        "cross_attention": False,
        "num_kv_heads": config.num_heads,
        "hidden_size": config.num_heads * config.head_dim,
    }
    return all(getattr(config, name) == value for name, value in wanted.items())


class EncodeStep:
    """The blocks of an encoder that `fits_encode_step` accepts."""

    def __init__(self, blocks: Sequence[Block], config: ModelConfig, arithmetic: Arithmetic) -> None:
        """Keep the blocks. arithmetic: the arithmetic of products of bfloat16."""
        self._blocks = blocks
        self._encoder = Encoder(
            [_layer(block) for block in blocks],
            num_heads=config.num_heads,
            scale=config.attention_scale,
            eps=config.norm_eps,
            arithmetic=arithmetic,
        )
        width, ff = config.hidden_size, config.intermediate_size
        of_a_row = len(blocks) * width * (4 * width + 2 * ff)
        self._rows_between_checks = max(_ROWS_BETWEEN_CHECKS, int(_WORK_BETWEEN_CHECKS / of_a_row))

    def can_run(self, batch: Batch, hooks: Hooks | None) -> bool:
        """Return whether there are no hooks, and all texts need all layers."""
        last = len(self._blocks) - 1
        return hooks is None and batch.num_rows_at(last) == batch.num_rows and batch.needs_output_of(last)

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """Return x [T, d] after all blocks, in the same memory. Exceptions of `batch.check`, between groups of texts,
        are passed on.
        """
        first_rows = np.array(batch.first_rows)
        num_calls = -(-batch.num_rows // (self._rows_between_checks * num_threads()))
        bounds = np.searchsorted(first_rows, np.arange(num_calls + 1) * (batch.num_rows / num_calls))
        for start, stop in pairwise(np.unique(bounds)):
            batch.check()
            self._encoder(x, torch.from_numpy(first_rows[start : stop + 1]), first_alone=batch.first_alone)
        return x[: batch.num_rows]


def _layer(block: Block) -> EncoderLayer:
    attention, mlp = block.self_attention, block.one_mlp
    assert mlp is not None
    return EncoderLayer(
        *_product(attention.qkv),
        *_product(attention.heads.out),
        *_norm(block.attention.of_sum),
        *_product(mlp.up),
        *_product(mlp.down),
        *_norm(block.mlp.of_sum),
    )


def _product(linear: Linear) -> tuple[LaidWeight, Tensor]:
    assert isinstance(linear.weight, LaidWeight)
    assert linear.bias is not None
    return linear.weight, linear.bias


def _norm(norm: Norm | None) -> tuple[Tensor, Tensor]:
    assert isinstance(norm, LayerNorm)
    assert norm.bias is not None
    return norm.weight, norm.bias
