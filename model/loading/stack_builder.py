"""Builds one stack from its weights: which part takes which names, and where each norm is applied. It knows no files.

The names are those of model/checkpoint/weight_files.py, without the stack's prefix.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from model.config import Activation, ModelConfig
from model.kernels.choice import KernelConfig
from model.kernels.int8_rows import Quantization
from model.kernels.products import DOT
from model.layers.attention import AttentionRule
from model.layers.attention_choice import attention_for
from model.layers.experts import Experts
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import LayerNorm, Norm, RmsNorm
from model.layers.position_bias import alibi, bias_by_distance
from model.layers.rope import Rope
from model.layers.text_attention import TextAttention
from model.layers.token_table import TokenTable
from model.network.block import Block, Residual, Sublayer
from model.network.embedding import Embedding, embed_at_once, sinusoids
from model.network.fused_decoder import DecodeStep
from model.network.fused_encoder import EncodeStep, why_not_whole
from model.network.per_layer import PerLayer, PerLayerInputs
from model.network.stack import Stack
from model.network.sublayers import AttentionHeads, CrossAttention, Feedforward, MixedFeedforward, SelfAttention
from model.quantized import QuantizedMatrix
from model.sharding.parts import NormOfAllHeads, SplitHeads, SummedLinear
from model.sharding.shares import Share, Shares

if TYPE_CHECKING:  # a CPU has no need of Triton
    from model.network.triton_step import TritonStep


class StackBuilder:
    """Takes the weights of one stack out of a dict, so that originals are freed as they are packed."""

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, torch.Tensor],
        tokens: TokenTable,
        context: int,
        *,
        kernels: KernelConfig,
        batch_invariant: bool,
        quantize: Quantization = "none",
        shares: Shares | None = None,
        quantized: dict[str, QuantizedMatrix] | None = None,
    ) -> None:
        """Keep what the stack is built from. tokens [vocab, e]: the table that both stacks share; `context` is the
        longest sequence that will be run.

        `kernels`: what computes; `batch_invariant`: whether a row's bits may depend on its own sequence alone;
        `quantize`: the blocks' matrices; `shares`: of the stack whose part `config` and `weights` are, if several ranks
        hold one together; `quantized`: matrices that are stored so, which `weights` lack.
        """
        self.config = config
        self.shares = shares
        self.weights, self.quantized = weights, quantized or {}
        self.tokens = tokens
        self.context = context
        self.kernels = kernels
        self.batch_invariant = batch_invariant
        self.quantize: Quantization = quantize
        why_not = why_not_whole(config, tokens.dtype, tokens.device, quantize, kernels)
        self.is_whole = shares is None and not self.quantized and why_not is None
        """Whether an `EncodeStep` can run the whole stack."""
        self.attention = attention_for(tokens.dtype, tokens.device, kernels=kernels, batch_invariant=batch_invariant)
        if self.is_whole and tokens.dtype == torch.bfloat16 and kernels.bfloat16_arithmetic() == DOT:
            self.attention = TextAttention()

    def stack(self) -> Stack:
        """Build the stack. Raises KeyError when a weight is missing; none may be left over."""
        config = self.config
        bias = self._position_bias()
        rule = AttentionRule(config.attention_scale, config.attn_logit_softcap, bias)
        ropes = self._ropes()
        blocks = [self._block(i, rule) for i in range(config.num_layers)]
        final_norm = self._norm("final_norm") if config.final_norm else None
        embedding = self.embedding()
        stack = Stack(
            config,
            embedding,
            blocks=blocks,
            ropes=ropes,
            final_norm=final_norm,
            decode_step=DecodeStep.of(blocks, final_norm, ropes) if config.causal and self.shares is None else None,
            encode_step=EncodeStep(blocks, config, self.kernels.bfloat16_arithmetic()) if self.is_whole else None,
            triton_step=self._triton_step(embedding, blocks, final_norm, ropes),
            per_layer=self._per_layer_inputs(),
        )
        left = sorted((*self.weights, *self.quantized))
        assert not left, f"weights that no part took: {left}"
        return stack

    def _triton_step(
        self,
        embedding: Embedding,
        blocks: Sequence[Block],
        final_norm: Norm | None,
        ropes: Sequence[Rope | None],
    ) -> "TritonStep | None":
        if not self.kernels.uses_triton(self.tokens.dtype, self.tokens.device):
            return None
        from model.network.triton_step import TritonStep

        return TritonStep.of(embedding, blocks, final_norm, ropes)

    def embedding(self) -> Embedding:
        """Build what comes before the blocks. Raises KeyError when a weight is missing."""
        config, tokens, weights = self.config, self.tokens, self.weights
        scale = None if config.embedding_scale == 1 else self._factor(config.embedding_scale)
        positions = weights.pop("pos_embed.weight", None)
        if positions is not None:
            positions = positions[config.position_offset :]
        elif config.sinusoidal_positions:
            positions = sinusoids(self.context, config.hidden_size).to(tokens.device, tokens.dtype)
        types = weights.pop("token_type_embed.weight", None)
        token_type = None if types is None else types[0].clone()
        project = None
        if "embed_in.weight" in weights or "embed_in.weight" in self.quantized:
            project = Linear(
                self._matrix("embed_in.weight"), kernels=self.kernels, batch_invariant=self.batch_invariant
            )
        norm = self._norm("embed_norm") if config.embedding_norm else None
        is_plain = scale is None and project is None
        return Embedding(
            tokens=tokens,
            scale=scale,
            project=project,
            positions=positions,
            token_type=token_type,
            norm=norm,
            at_once=embed_at_once(tokens, token_type, positions, norm, self.kernels) if is_plain else None,
        )

    def _factor(self, number: float) -> torch.Tensor:
        """Return a factor of a table's rows, rounded to the model's dtype before it is used, as Gemma was trained."""
        return torch.tensor(number, dtype=torch.float64).to(self.tokens.device, self.tokens.dtype)

    def _per_layer_inputs(self) -> PerLayerInputs | None:
        if self.config.per_layer_size is None:
            return None
        return PerLayerInputs(
            TokenTable(self.weights.pop("per_layer_embed.weight")),
            self._factor(self.config.per_layer_size**0.5),
            self._linear("per_layer_project"),
            self._norm("per_layer_norm"),
        )

    def _ropes(self) -> list[Rope | None]:
        """Return the rotary embedding of each block, or None; blocks that rotate alike share one."""
        dtype, device = self.tokens.dtype, self.tokens.device
        layers = range(self.config.num_layers)
        wanted = [(self.config.rope_of(layer), self.config.at(layer).head_dim) for layer in layers]
        made = {
            (rope, dim): None if rope is None else Rope(rope, dim, self.context, dtype, device, self.kernels)
            for rope, dim in set(wanted)
        }
        return [made[each] for each in wanted]

    def _position_bias(self) -> torch.Tensor | None:
        if self.config.alibi:
            whole = self.config if self.shares is None else self.shares.config
            bias = alibi(whole.num_heads, self.context, self.tokens.dtype, self.tokens.device)
            return bias if self.shares is None else self.shares.heads.part(bias, 0)
        if self.config.position_bias is None:
            return None
        return bias_by_distance(self.weights.pop("position_bias.weight"), self.config.position_bias, self.context)

    def _norm(self, name: str) -> Norm:
        if self.config.norm == "rmsnorm":
            return self._rms_norm(name)
        weight, bias = self.weights.pop(f"{name}.weight"), self.weights.pop(f"{name}.bias", None)
        return LayerNorm(weight, bias, self.config.norm_eps, kernels=self.kernels)

    def _rms_norm(self, name: str) -> RmsNorm:
        return self._rms_norm_of(self.weights.pop(f"{name}.weight"))

    def _rms_norm_of(self, weight: torch.Tensor) -> RmsNorm:
        offset, rounds_once = self.config.norm_weight_offset, self.config.norm_rounds_once
        return RmsNorm(
            weight, self.config.norm_eps, weight_offset=offset, rounds_once=rounds_once, kernels=self.kernels
        )

    def _matrix(self, name: str) -> torch.Tensor | QuantizedMatrix:
        return self.quantized.pop(name) if name in self.quantized else self.weights.pop(name)

    def _linear(self, name: str, activation: Activation | None = None) -> Linear:
        return Linear(
            self._matrix(f"{name}.weight"),
            self.weights.pop(f"{name}.bias", None),
            kernels=self.kernels,
            batch_invariant=self.batch_invariant,
            quantize=self.quantize,
            activation=activation,
            keep_dtype=self.is_whole,
        )

    def _added(self, name: str) -> Linear:
        """Return a matrix whose product is added to the residual stream."""
        if self.shares is None:
            return self._linear(name)
        weight, bias = self.weights.pop(f"{name}.weight"), self.weights.pop(f"{name}.bias", None)
        return SummedLinear(weight, bias, self.shares.group, kernels=self.kernels, batch_invariant=self.batch_invariant)

    def _heads(self, name: str, rule: AttentionRule, out: str) -> AttentionHeads:
        if self.shares is None:
            return AttentionHeads(name, self.attention, rule, self._added(out))
        return SplitHeads(name, self.attention, rule, self._added(out), self.shares)

    def _block(self, index: int, rule: AttentionRule) -> Block:
        config, name = self.config, f"layers.{index}"
        has_norm = index > 0 or config.first_attention_norm
        attention = self._self_attention(index, rule)
        cross = None
        if config.cross_attention:
            cross = self._residual(
                self._cross_attention(name), "hook_cross_attn_out", "hook_resid_mid_cross", "ln_cross", f"{name}.cross"
            )
        feedforward = self._experts(name) if config.has_experts(index) else Feedforward(self._mlp(name))
        scale = self.weights.pop(f"{name}.stream_scale.weight", None)
        last = None if config.per_layer_size is None else self._per_layer(name, scale)
        sublayers = (
            self._residual(attention, "hook_attn_out", "hook_resid_mid", "ln1", f"{name}.attn", has_norm=has_norm),
            cross,
            self._residual(
                feedforward,
                "hook_mlp_out",
                "hook_resid_post" if last is None else "hook_resid_mid_mlp",
                "ln2",
                f"{name}.mlp",
                stream_scale=scale if last is None else None,
            ),
        )
        return Block(index, *sublayers, parallel=config.parallel_blocks, per_layer=last)

    def _per_layer(self, name: str, stream_scale: torch.Tensor | None) -> Residual[PerLayer]:
        gate, out = self._linear(f"{name}.per_layer_gate"), self._added(f"{name}.per_layer_out")
        return Residual(
            PerLayer(gate, out, self.config.activation, self.batch_invariant),
            out="hook_per_layer_out",
            stream="hook_resid_post",
            norm="ln_per_layer",
            after=self._norm(f"{name}.per_layer_post_norm"),
            stream_scale=stream_scale,
        )

    def _mlp(self, name: str) -> Mlp:
        activation = self.config.activation
        if not self.config.gated_mlp:
            return Mlp(self._linear(f"{name}.up", activation), self._added(f"{name}.down"))
        up, down = self._linear(f"{name}.gate_up"), self._added(f"{name}.down")
        return Mlp(up, down, activation, batch_invariant=self.batch_invariant)

    def _experts(self, name: str) -> MixedFeedforward:
        assert self.config.experts is not None
        experts = [self._mlp(f"{name}.experts.{e}") for e in range(self.config.experts.num_experts)]
        # One product of so few numbers decides where a row goes: it is not quantised.
        router = Linear(
            self.weights.pop(f"{name}.router.weight"), kernels=self.kernels, batch_invariant=self.batch_invariant
        )
        mixture = Experts(
            router,
            experts,
            num_chosen=self.config.experts.num_chosen,
            normalized=self.config.experts.normalized,
            softmax=self.attention.softmax,
        )
        return MixedFeedforward(mixture)

    def _residual(
        self,
        f: Sublayer,
        out: str,
        stream: str,
        points: str,
        weights: str,
        *,
        has_norm: bool = True,
        stream_scale: torch.Tensor | None = None,
    ) -> Residual[Sublayer]:
        """Return sublayer f and its norms, `{weights}_norm` and `{weights}_post_norm`, where the config places them."""
        before = after = of_sum = None
        match self.config.norm_placement:
            case "pre":
                before = self._norm(f"{weights}_norm") if has_norm else None
            case "post":
                of_sum = self._norm(f"{weights}_norm")
            case "sandwich":
                before, after = self._norm(f"{weights}_norm"), self._norm(f"{weights}_post_norm")
            case "output":
                after = self._norm(f"{weights}_post_norm")
        return Residual(
            f,
            out=out,
            stream=stream,
            norm=points,
            before=before,
            after=after,
            of_sum=of_sum,
            scale=self.config.residual_scale,
            stream_scale=stream_scale,
        )

    def _self_attention(self, index: int, rule: AttentionRule) -> SelfAttention:
        config, name = self.config.at(index), f"layers.{index}"
        kv_layer = config.kv_layer(index)
        return SelfAttention(
            qkv=self._linear(f"{name}.qkv"),
            heads=self._heads("attn", rule, f"{name}.attn_out"),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            causal=config.causal,
            window=config.window_of(index),
            q_norm=self._qk_norm(f"{name}.q_norm", None if self.shares is None else self.shares.heads),
            k_norm=self._qk_norm(f"{name}.k_norm", None if self.shares is None else self.shares.kv_heads)
            if kv_layer == index
            else None,
            v_norm=self._rms_norm_of(self.tokens.new_zeros(config.head_dim) + 1) if config.v_norm else None,
            kv_layer=kv_layer,
            has_kv=kv_layer == index,
        )

    def _qk_norm(self, name: str, share: Share | None) -> Norm | None:
        """Return the norm of q or k, an RMSNorm in every family that has one, or None; `share`: of the heads that it
        applies to.
        """
        if self.config.qk_norm is None:
            return None
        norm = self._rms_norm(name)
        return norm if share is None or self.config.qk_norm == "head" else NormOfAllHeads(norm, share)

    def _cross_attention(self, name: str) -> CrossAttention:
        rule = AttentionRule(self.config.attention_scale, self.config.attn_logit_softcap)
        return CrossAttention(
            q=self._linear(f"{name}.cross_q"),
            kv=self._linear(f"{name}.cross_kv"),
            heads=self._heads("cross_attn", rule, f"{name}.cross_out"),
            head_dim=self.config.head_dim,
        )
