"""Runs the network of every family: one stack or two, and the head. It knows tensors; it knows no requests and no
server.

Axes: T rows of a batch, E rows of an encoder's batch, d model width.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

import numpy as np
import torch
from torch import Tensor

from model.batch import Batch
from model.config import ModelConfig
from model.hooks.hooks import Hooks
from model.kernels.choice import AUTO, KernelConfig
from model.kv_cache import KVCache, LayerCache
from model.layers.linear import Linear
from model.layers.lora import AdaptedRows
from model.layers.soft_cap import soft_cap
from model.layers.token_table import TokenTable
from model.network.heads import Classifier, HeadTransform
from model.network.pooling import DenseLayer
from model.network.stack import Stack
from model.sampling.row_search import largest


@dataclass(eq=False, repr=False)
class Transformer:
    """A network: `forward` runs a step of the decoder, `encode` a pass of the encoder, `logits` the head on the
    output of the decoder, or of the only encoder.
    """

    config: ModelConfig
    _: KW_ONLY
    decoder: Stack | None
    encoder: Stack | None
    """There is at least one stack."""
    head: Linear | None
    """[vocab, e] with e = d, unless `project_out` comes before it."""
    project_out: Linear | None = None
    """[e, d]"""
    head_transform: HeadTransform | None = None
    """Layers between an encoder's states and its head."""
    classifier: Classifier | None = None
    """Head that labels a whole input, in place of a head that predicts tokens."""
    dense: Sequence[DenseLayer] = ()
    """Layers after the pooling of an embedding, if the checkpoint has any."""
    kernels: KernelConfig = AUTO
    batch_invariant: bool
    """True if its parts give the same bits in any batch."""
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
        """Return the config of the keys and values that its decoder keeps: only this process's, if several share the
        heads.
        """
        return self.config if self.decoder is None else self.decoder.config

    @property
    def dtype(self) -> torch.dtype:
        return self.tokens.dtype

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @property
    def keys_in_rows(self) -> bool:
        """Return whether its caches have keys in rows, as the card's kernels read them (`LayerCache`)."""
        return self.kernels.uses_triton(self.dtype, self.device)

    @property
    def rotary_switch(self) -> int | None:
        """Return the most tokens of a text that is not long, which is the row of the rotary tables from which on long
        texts are rotated; or None if all texts are rotated alike.
        """
        ropes = () if self.decoder is None else self.decoder.ropes
        return next((rope.switch for rope in ropes if rope is not None), None)

    def forward(self, batch: Batch, cache: KVCache, hooks: Hooks | None = None) -> Tensor:
        """Run one step of the (causal) decoder: every row through the layers that its span needs.

        Writes keys and values to `cache` at the rows' slots and returns the final-normed hidden states [T, d] of the
        leading rows whose spans need all layers. Hooks are served on the way, except for "logits", which are computed
        separately.

        Raises ValueError when there is no decoder.
        """
        if self.decoder is None:
            raise ValueError(f"{self.config.architecture} has no decoder; encode() runs it")
        with torch.inference_mode():  # a decorator would be one more call between a step and its products
            return self.decoder(batch, cache.layers, hooks)

    @torch.inference_mode()
    def encode(self, batch: Batch, hooks: Hooks | None = None) -> Tensor:
        """Run the encoder over whole sequences from position 0 (`Batch.unchunked`).

        Returns the hidden states [T, d] of the leading rows whose spans need all layers, after the final norm if there
        is one. Nothing is kept: the keys and values of one layer at a time are stored in a scratch buffer that grows to
        the largest batch seen.

        Raises ValueError when there is no encoder.
        """
        if self.encoder is None:
            raise ValueError(f"{self.config.architecture} has no encoder; forward() runs it")
        scratch = self._scratch
        if scratch is None or len(scratch.keys) < batch.num_blocks or scratch.values.shape[2] != batch.block_size:
            self._scratch = None  # its memory may serve for the larger one
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

        hidden [E, d] of `encode`; slots [E] int64: block * block size + place. `hooks` names the decoder's layers and
        rows of `hidden`: cross_attn.hook_k, hook_v and hook_rot_k are served here. `adapted`: those rows'
        adapters.

        Raises ValueError when there is no cross attention.
        """
        if self.decoder is None or not self.config.cross_attention:
            raise ValueError(f"{self.config.architecture} has no cross attention")
        for block, layer in zip(self.decoder.blocks, cache.layers, strict=True):
            layer_hooks = None if hooks is None else hooks.at(block.index)
            block.cross_attention.write_kv(hidden, layer, slots, layer_hooks, adapted)

    @torch.inference_mode()
    def logits(self, hidden: Tensor, *, widen: bool = True) -> Tensor:
        """Return the logits [n, vocab] of hidden [n, d] from `forward`, or from `encode` if there is no decoder:
        float32 (float64 in float64), scaled, biased and capped.

        Without `widen` they keep the dtype of the head's product if they are no more than that: the same numbers in
        half the bytes. Raises ValueError when the model has no head.
        """
        head, x = self._before_head(hidden)
        logits = head(x)
        cap = self.config.final_logit_softcap
        if (widen or cap is not None) and logits.dtype != torch.float64:
            logits = logits.float()
        return logits if cap is None else soft_cap(logits, cap, self.kernels)

    @torch.inference_mode()
    def largest_logits(self, hidden: Tensor) -> tuple[list[int], list[float]]:
        """Return, for each row of hidden [n, d], the token whose logit is the largest, and that logit: what
        `row_search.largest` finds in `logits`, which need not be computed for it. Raises what `logits` raises.
        """
        head, x = self._before_head(hidden)
        if self.config.final_logit_softcap is None and len(hidden):
            found = head.find_largest(x)
            if found is not None:
                return found[0].tolist(), found[1].tolist()
        return largest(self.logits(hidden, widen=False), self.kernels)

    def _before_head(self, hidden: Tensor) -> tuple[Linear, Tensor]:
        """Return the head, and what it multiplies [n, e]."""
        if self.head is None:
            raise ValueError(f"{self.config.architecture} has no head: it gives no logits")
        x = hidden if self.config.logit_scale == 1 else hidden * self.config.logit_scale
        if self.head_transform is not None:
            x = self.head_transform(x)
        return self.head, x if self.project_out is None else self.project_out(x)

    @torch.inference_mode()
    def lens(self, stream: Tensor) -> Tensor:
        """Return the logits that the residual stream [n, d] after any block would give, read as if it were the last
        one's: through the final norm, if there is one, and the head, an encoder's transform included (nostalgebraist
        2020, "interpreting GPT: the logit lens").

        Raises ValueError when the model has no head, or makes its logits of several streams.
        """
        stack = self.decoder or self.encoder
        assert stack is not None
        if stack.stream_ends is not None:
            raise ValueError(f"{self.config.architecture} computes its logits from several streams, not one")
        return self.logits(stream if stack.final_norm is None else stack.final_norm(stream))
