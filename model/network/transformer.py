"""The network of every family: one stack or two, and the heads.

Axes: T rows of a batch, E rows of an encoder's batch, d model width.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.hooks import Hooks
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kv_cache import KVCache, LayerCache
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import AdaptedRows
from lightwell.model.layers.soft_cap import soft_cap
from lightwell.model.layers.token_table import TokenTable
from lightwell.model.network.heads import Classifier, HeadTransform
from lightwell.model.network.pooling import DenseLayer
from lightwell.model.network.stack import Stack
from lightwell.model.sampling.row_search import largest


@dataclass(eq=False, repr=False)
class Transformer:
    """A network: `forward` runs a step of the decoder, `encode` the encoder, and `logits` the head on the output of the
    decoder, or of the encoder if there is no decoder.
    """

    config: ModelConfig
    _: KW_ONLY
    decoder: Stack | None
    encoder: Stack | None
    """At least one stack exists."""
    head: Linear | None
    """[vocab, e], with e = d unless `project_out` precedes it."""
    project_out: Linear | None = None
    """[e, d]"""
    head_transform: HeadTransform | None = None
    """Layers between an encoder's states and its head."""
    classifier: Classifier | None = None
    """Classification head of whole inputs, instead of `head`."""
    dense: Sequence[DenseLayer] = ()
    """Layers after the pooling of an embedding."""
    kernels: KernelConfig = AUTO
    batch_invariant: bool
    """Whether all parts compute the same bits in any batch."""
    _scratch: LayerCache | None = field(default=None, init=False)

    @property
    def tokens(self) -> TokenTable:
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack.embedding.tokens

    @property
    def matrices(self) -> list[Linear]:
        """Return the matrices of its blocks and of its head."""
        blocks = [block for stack in (self.encoder, self.decoder) if stack is not None for block in stack.blocks]
        of_head = [each for each in (self.head, self.project_out) if each is not None]
        return [linear for block in blocks for linear in block.matrices] + of_head

    @property
    def cache_config(self) -> ModelConfig:
        """Return the config of the decoder's keys and values; if ranks divide the heads, only of this rank's."""
        return self.config if self.decoder is None else self.decoder.config

    @property
    def dtype(self) -> torch.dtype:
        return self.tokens.dtype

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @property
    def keys_in_rows(self) -> bool:
        """Return whether its caches store keys in rows, for our Triton kernels (`LayerCache`)."""
        return self.kernels.uses_triton(self.dtype, self.device)

    @property
    def rotary_switch(self) -> int | None:
        """Return the largest length of a short text, where the rotary tables of long texts begin, or None if all texts
        use the same table.
        """
        ropes = () if self.decoder is None else self.decoder.ropes
        return next((rope.switch for rope in ropes if rope is not None), None)

    def forward(self, batch: Batch, cache: KVCache, hooks: Hooks | None = None) -> Tensor:
        """Run one step of the decoder: each row through the layers that its span needs.

        Writes keys and values to `cache` at the rows' slots, and returns the final-normed hidden states [T, d] of the
        leading rows that need all layers. Serves hooks, except for "logits". Raises ValueError without a decoder.
        """
        if self.decoder is None:
            raise ValueError(f"{self.config.architecture} has no decoder; use encode()")
        with torch.inference_mode():  # a decorator would add a call in each step
            return self.decoder(batch, cache.layers, hooks)

    @torch.inference_mode()
    def encode(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Run the encoder over whole sequences from position 0 (`Batch.unchunked`).

        Returns the hidden states [T, d] of the leading rows that need all layers, after the final norm if there is one.
        A scratch buffer, which grows to the largest batch, stores the keys and values of one layer at a time. Raises
        ValueError without an encoder.
        """
        if self.encoder is None:
            raise ValueError(f"{self.config.architecture} has no encoder; use forward()")
        scratch = self._scratch
        if scratch is None or len(scratch.keys) < batch.num_blocks or scratch.values.shape[2] != batch.block_size:
            self._scratch = None  # frees its memory for the larger one
            scratch = self._scratch = LayerCache.zeros(
                self.encoder.config,
                batch.num_blocks,
                batch.block_size,
                self.dtype,
                self.device,
                keys_in_rows=self.keys_in_rows,
            )
        return self.encoder(batch, [scratch] * self.encoder.config.num_layers, hooks)

    @torch.inference_mode()
    def write_cross_kv(
        self,
        hidden: Tensor,
        cache: KVCache,
        slots: np.ndarray,
        hooks: Hooks | None = None,
        adapted: AdaptedRows | None = None,
    ) -> None:
        """Write the keys and values of every decoder layer's cross attention to `cache`.

        hidden [E, d] of `encode`; slots [E] int64: block * block size + place. hooks: of the decoder's layers and rows
        of `hidden`, for cross_attn.hook_k, hook_v and hook_rot_k. adapted: the adapters of these rows.

        Raises ValueError when there is no cross attention.
        """
        if self.decoder is None or not self.config.cross_attention:
            raise ValueError(f"{self.config.architecture} has no cross attention")
        for block, layer in zip(self.decoder.blocks, cache.layers, strict=True):
            layer_hooks = None if hooks is None else hooks.at(block.index)
            block.cross_attention.write_kv(hidden, layer, slots, layer_hooks, adapted)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, *, widen: bool = True) -> Tensor:
        """Return the logits [n, vocab], float32 (float64 in float64), of hidden [n, d] from `forward`, or from `encode`
        without a decoder.

        Without `widen`, logits that are not capped keep the dtype of the head's product: the same numbers in half the
        bytes. Raises ValueError when the model has no head.
        """
        head, x = self._before_head(hidden)
        logits = head(x)
        cap = self.config.final_logit_softcap
        if (widen or cap is not None) and logits.dtype != torch.float64:
            logits = logits.float()
        return logits if cap is None else soft_cap(logits, cap, self.kernels)

    @torch.inference_mode()
    def largest_logits(self, hidden: Tensor) -> tuple[list[int], list[float]]:
        """Return the token with the largest logit of each row of hidden [n, d], and that logit.

        The result is that of `row_search.largest` on `logits`, if possible without all logits. Raises ValueError when
        the model has no head.
        """
        head, x = self._before_head(hidden)
        if self.config.final_logit_softcap is None and len(hidden):
            found = head.find_largest(x)
            if found is not None:
                return found[0].tolist(), found[1].tolist()
        return largest(self.logits(hidden, widen=False), self.kernels)

    def _before_head(self, hidden: Tensor) -> tuple[Linear, Tensor]:
        """Return the head, and its input [n, e]."""
        if self.head is None:
            raise ValueError(f"{self.config.architecture} has no language-model head, so it computes no logits")
        x = hidden if self.config.logit_scale == 1 else hidden * self.config.logit_scale
        if self.head_transform is not None:
            x = self.head_transform(x)
        return self.head, x if self.project_out is None else self.project_out(x)

    @torch.inference_mode()
    def lens(self, stream: Tensor) -> Tensor:
        """Return the logits [n, vocab] of the residual stream [n, d] after any block, by the final norm, if there is
        one, and the head, with an encoder's transform (nostalgebraist 2020, "interpreting GPT: the logit lens").

        Raises ValueError when the model has no head, or computes its logits from several streams.
        """
        stack = self.decoder or self.encoder
        assert stack is not None
        if stack.stream_ends is not None:
            raise ValueError(f"{self.config.architecture} computes its logits from several streams, not one")
        return self.logits(stream if stack.final_norm is None else stack.final_norm(stream))
