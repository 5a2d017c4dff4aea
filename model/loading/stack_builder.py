"""Builder of one stack: takes the weights of each layer, by name, out of a dictionary.

model/checkpoint/weight_files.py defines the names; here they have no prefix of the stack.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.config import Activation, DeltaNetConfig, ModelConfig
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.kernels.products import DOT
from lightwell.model.layers.attention import Attention, AttentionRule, NativeAttention, PlainAttention, TextAttention
from lightwell.model.layers.attention_arithmetic import Arithmetic, InvariantArithmetic, at_least_float32
from lightwell.model.layers.batched_attention import BatchedAttention
from lightwell.model.layers.experts import Experts
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.mlp import Mlp
from lightwell.model.layers.norm import LayerNorm, Norm, RmsNorm
from lightwell.model.layers.position_bias import alibi, bias_by_distance
from lightwell.model.layers.rope import Rope
from lightwell.model.layers.token_table import TokenTable
from lightwell.model.network.altup import AltUp, StreamEnds
from lightwell.model.network.block import Block, Residual, Sublayer
from lightwell.model.network.convolution import Convolution
from lightwell.model.network.embedding import Embedding, embed_at_once, sinusoids
from lightwell.model.network.fused_decoder import DecodeStep
from lightwell.model.network.fused_encoder import EncodeStep, fits_encode_step
from lightwell.model.network.per_layer import PerLayer, PerLayerInputs
from lightwell.model.network.recurrences import DeltaNet, ShortConvolution
from lightwell.model.network.stack import Stack
from lightwell.model.network.sublayers import (
    AttentionHeads,
    CrossAttention,
    DenseAndExperts,
    Feedforward,
    MixedFeedforward,
    SelfAttention,
)
from lightwell.model.quantized import QuantizedMatrix, Weight
from lightwell.model.sharding.parts import NormOfAllHeads, SplitHeads, SummedLinear
from lightwell.model.sharding.shares import Share, Shares


class StackBuilder:
    """Builder of one stack. It removes the weights from the dictionary, so that originals are freed when packed."""

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Weight],
        tokens: TokenTable,
        context: int,
        *,
        kernels: KernelConfig,
        batch_invariant: bool,
        quantize: Quantization = "none",
        shares: Shares | None = None,
    ) -> None:
        """Keep the parameters of the stack.

        tokens [vocab, e]: the table that both stacks share. context: the longest sequence that will be run. kernels:
        the kernels of the stack. batch_invariant: whether a row's bits may depend only on its own sequence. quantize:
        the quantization of the blocks' matrices. shares: the division of the stack, if `config` and `weights` are the
        part of one rank.
        """
        self.config = config
        self.shares = shares
        self.weights = weights
        self._take, self._take_any = partial(take, weights), partial(take_any, weights)
        self.tokens = tokens
        self.context = context
        self.kernels = kernels
        self.batch_invariant = batch_invariant
        self.exactly = partial(Linear, kernels=kernels, batch_invariant=batch_invariant)
        """Builds a layer whose matrix is not quantised."""
        self.quantize: Quantization = quantize
        is_native = kernels.why_not_native(tokens.dtype, tokens.device) is None
        is_stored_quantized = any(isinstance(each, QuantizedMatrix) for each in weights.values())
        accepted = quantize == "none" or (quantize, kernels.activations) == ("int8", "int8")
        takes_weights = accepted and not is_stored_quantized
        self.is_whole = shares is None and is_native and takes_weights and fits_encode_step(config)
        """Whether an `EncodeStep` can run the whole stack."""
        self.attention = self._attention()

    def stack(self) -> Stack:
        """Build the stack. Raises KeyError for a missing weight; all weights must be used."""
        config = self.config
        bias = self._position_bias()
        rule = AttentionRule(config.attention_scale, config.attn_logit_softcap, bias)
        ropes = self._ropes()
        blocks = [self._block(i, rule) for i in range(config.num_layers)]
        final_norm = self._norm("final_norm") if config.final_norm else None
        joined_norm = final_norm if config.altup is None else None  # of one stream after the last block
        embedding, per_layer = self.embedding(), self._per_layer_inputs()
        gpu_program = None
        if self.kernels.uses_triton(self.tokens.dtype, self.tokens.device):
            from lightwell.model.network.gpu_program import GpuProgram  # imports Triton, which a CPU does not need

            gpu_program = GpuProgram.of(embedding, blocks, final_norm, ropes, per_layer)
        stack = Stack(
            config,
            embedding,
            blocks=blocks,
            ropes=ropes,
            final_norm=final_norm,
            decode_step=DecodeStep.of(blocks, joined_norm, ropes)
            if self.shares is None and not self.is_whole
            else None,
            encode_step=EncodeStep(blocks, config, self.kernels.bfloat16_arithmetic()) if self.is_whole else None,
            gpu_program=gpu_program,
            stream_ends=self._stream_ends(),
            per_layer=per_layer,
        )
        left = sorted(self.weights)
        assert not left, f"weights that no part took: {left}"
        return stack

    def embedding(self) -> Embedding:
        """Build the embedding. Raises KeyError for a missing weight."""
        config, tokens = self.config, self.tokens
        scale = None if config.embedding_scale == 1 else self._factor(config.embedding_scale)
        positions = self._take_any("pos_embed.weight")
        if positions is not None:
            positions = positions[config.position_offset :]
        elif config.sinusoidal_positions:
            positions = sinusoids(self.context, config.hidden_size).to(tokens.device, tokens.dtype)
        types = self._take_any("token_type_embed.weight")
        project = None
        if "embed_in.weight" in self.weights:
            project = self.exactly(self.weights.pop("embed_in.weight"))
        norm = self._norm("embed_norm") if config.embedding_norm else None
        is_plain = scale is None and project is None
        return Embedding(
            tokens=tokens,
            scale=scale,
            project=project,
            positions=positions,
            token_types=types,
            norm=norm,
            at_once=embed_at_once(tokens, types, positions, norm, self.kernels) if is_plain else None,
        )

    # Parts of the stack

    def _attention(self) -> Attention:
        """Return the fastest attention for the stack's dtype and device."""
        dtype, device, kernels = self.tokens.dtype, self.tokens.device, self.kernels
        if kernels.why_not_native(dtype, device) is None:  # batch invariant in any case
            is_dot = dtype == torch.bfloat16 and kernels.bfloat16_arithmetic() == DOT
            return TextAttention() if self.is_whole and is_dot else NativeAttention()
        arithmetic = InvariantArithmetic() if self.batch_invariant else Arithmetic()
        if kernels.uses_triton(dtype, device):
            from lightwell.model.layers.triton_attention import (
                TritonAttention,  # imports Triton, which a CPU does not need
            )

            return TritonAttention(arithmetic)
        return PlainAttention(arithmetic) if self.batch_invariant else BatchedAttention()

    def _position_bias(self) -> Tensor | None:
        if self.config.alibi:
            whole = self.config if self.shares is None else self.shares.config
            bias = alibi(whole.num_heads, self.context, self.tokens.dtype, self.tokens.device)
            return bias if self.shares is None else self.shares.heads.part(bias, 0)
        if self.config.position_bias is None:
            return None
        return bias_by_distance(self._take("position_bias.weight"), self.config.position_bias, self.context)

    def _ropes(self) -> list[Rope | None]:
        """Return the rotary embedding of each block, or None; blocks with equal embeddings share one object."""
        dtype, device = self.tokens.dtype, self.tokens.device
        layers = range(self.config.num_layers)
        wanted = [(self.config.rope_of(layer), self.config.at(layer).head_dim) for layer in layers]
        longer = [rope.original_max_position for rope, _ in wanted if rope is not None and rope.rope_type == "longrope"]
        switch = min((length for length in longer if length < self.context and self.config.causal), default=None)
        made = {
            (rope, dim): None if rope is None else Rope(rope, dim, self.context, dtype, device, self.kernels, switch)
            for rope, dim in set(wanted)
        }
        return [made[each] for each in wanted]

    def _stream_ends(self) -> StreamEnds | None:
        if self.config.altup is None:
            return None
        into, out = (
            [self.exactly(each.contiguous()) for each in weight.chunk(self.config.altup.num_streams - 1)]
            for weight in (self._take("altup_in.weight"), self._take("altup_out.weight"))
        )
        return StreamEnds(into, out)

    def _per_layer_inputs(self) -> PerLayerInputs | None:
        if self.config.per_layer_size is None:
            return None
        return PerLayerInputs(
            TokenTable(self._take("per_layer_embed.weight")),
            self.config.per_layer_vocab_size,
            self._factor(self.config.per_layer_size**0.5),
            self._linear("per_layer_project"),
            self._norm("per_layer_norm"),
        )

    # Blocks

    def _block(self, index: int, rule: AttentionRule) -> Block:
        config, name = self.config, f"layers.{index}"
        has_norm = index > 0 or config.first_attention_norm
        if config.attention_sinks and config.has_attention(index):
            sinks = self._take(f"{name}.sinks.weight")
            rule = replace(rule, sinks=sinks.to(at_least_float32(sinks.dtype)))
        mixer = self._self_attention(index, rule) if config.has_attention(index) else self._recurrence(name)
        cross = None
        if config.cross_attention:
            cross = self._residual(
                self._cross_attention(name), "hook_cross_attn_out", "hook_resid_mid_cross", "ln_cross", f"{name}.cross"
            )
        scale = self._take_any(f"{name}.stream_scale.weight")
        last = None if config.per_layer_size is None else self._per_layer(name, scale)
        return Block(
            index,
            self._residual(mixer, "hook_attn_out", "hook_resid_mid", "ln1", f"{name}.attn", has_norm=has_norm),
            cross,
            self._feedforward(
                index, "hook_resid_post" if last is None else "hook_resid_mid_mlp", scale if last is None else None
            ),
            parallel=config.parallel_blocks,
            per_layer=last,
            altup=self._altup(name),
        )

    def _residual(
        self,
        f: Sublayer,
        out: str,
        stream: str,
        points: str,
        weights: str,
        *,
        has_norm: bool = True,
        stream_scale: Tensor | None = None,
    ) -> Residual[Sublayer]:
        """Return sublayer f with its norms, `{weights}_norm` and `{weights}_post_norm`, placed as in the config."""
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

    def _altup(self, name: str) -> AltUp | None:
        if self.config.altup is None:
            return None
        return AltUp(
            norm=self._norm(f"{name}.altup_norm"),
            router=self._exact(f"{name}.altup_router"),
            predict=self._exact(f"{name}.altup_predict"),
            correct=self._exact(f"{name}.altup_correct"),
            scale=self._take_any(f"{name}.altup_scale.weight"),
            laurel_left=self._exact(f"{name}.laurel_left"),
            laurel_right=self._exact(f"{name}.laurel_right"),
            laurel_norm=self._norm(f"{name}.laurel_norm"),
        )

    # Sublayers

    def _self_attention(self, index: int, rule: AttentionRule) -> SelfAttention:
        config, name = self.config.at(index), f"layers.{index}"
        kv_layer, shares = config.kv_layer(index), self.shares
        heads, kv_heads = (None, None) if shares is None else (shares.heads, shares.kv_heads)
        has_kv = kv_layer == index
        return SelfAttention(
            qkv=self._linear(f"{name}.qkv"),
            heads=self._heads("attn", rule, f"{name}.attn_out"),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            causal=config.causal,
            window=config.window_of(index),
            gated=config.attention_gate,
            q_norm=self._qk_norm(f"{name}.q_norm", heads),
            k_norm=self._qk_norm(f"{name}.k_norm", kv_heads) if has_kv else None,
            v_norm=self._rms_norm(self.tokens.new_zeros(config.head_dim) + 1) if config.v_norm else None,
            kv_layer=kv_layer,
            has_kv=has_kv,
        )

    def _qk_norm(self, name: str, share: Share | None) -> Norm | None:
        """Return the norm of q or k, which is an RMSNorm in every family, or None. share: this rank's heads."""
        if self.config.qk_norm is None:
            return None
        norm = self._rms_norm(self._take(f"{name}.weight"))
        return norm if share is None or self.config.qk_norm == "head" else NormOfAllHeads(norm, share)

    def _heads(self, name: str, rule: AttentionRule, out: str) -> AttentionHeads:
        if self.shares is None:
            return AttentionHeads(name, self.attention, rule, self._added(out))
        return SplitHeads(name, self.attention, rule, self._added(out), self.shares)

    def _recurrence(self, name: str) -> ShortConvolution | DeltaNet:
        """Return the sublayer of a block without attention."""
        net = self.config.recurrence
        convolution = Convolution.of(self._take(f"{name}.conv.weight"), self._take_any(f"{name}.conv.bias"))
        if not isinstance(net, DeltaNetConfig):
            return ShortConvolution(self._linear(f"{name}.conv_in"), convolution, self._linear(f"{name}.conv_out"))
        wide = at_least_float32(self.tokens.dtype)
        return DeltaNet(
            net,
            self._linear(f"{name}.delta_in"),
            convolution,
            # in float64, since the last bits of float32 exponentials depend on the machine
            rates=self._take(f"{name}.delta_decay.weight").double().exp().to(wide),
            step_bias=self._take(f"{name}.delta_step.bias").to(wide),
            norm=RmsNorm(self._take(f"{name}.delta_norm.weight"), self.config.norm_eps, kernels=self.kernels),
            out=self._linear(f"{name}.delta_out"),
        )

    def _cross_attention(self, name: str) -> CrossAttention:
        rule = AttentionRule(self.config.attention_scale, self.config.attn_logit_softcap)
        return CrossAttention(
            q=self._linear(f"{name}.cross_q"),
            kv=self._linear(f"{name}.cross_kv"),
            heads=self._heads("cross_attn", rule, f"{name}.cross_out"),
            head_dim=self.config.head_dim,
        )

    def _feedforward(self, index: int, stream: str, stream_scale: Tensor | None) -> Residual[Any]:
        config, name, out = self.config, f"layers.{index}", "hook_mlp_out"
        own: Feedforward | MixedFeedforward
        if config.experts is None or not config.has_experts(index):
            own = Feedforward(self._mlp(name, config.sparsities[index] if config.sparsities else 0.0))
        else:
            own = self._experts(name)
            if config.experts.beside_mlp:
                norms = [self._norm(f"{name}.{each}_norm") for each in ("mlp", "dense_post", "experts", "experts_post")]
                both = DenseAndExperts(Feedforward(self._mlp(name)), own, *norms)
                after = self._norm(f"{name}.mlp_post_norm")
                return Residual(both, out=out, stream=stream, norm="ln2_post", after=after, stream_scale=stream_scale)
        return self._residual(own, out, stream, "ln2", f"{name}.mlp", stream_scale=stream_scale)

    def _experts(self, name: str) -> MixedFeedforward:
        assert self.config.experts is not None
        own, gain = self.config.experts, self._take_any(f"{name}.router_norm.weight")
        mixture = Experts(
            self._exact(f"{name}.router"),
            [self._mlp(f"{name}.experts.{e}") for e in range(own.num_experts)],
            num_chosen=own.num_chosen,
            normalized=own.normalized,
            softmax=self.attention.softmax,
            shared=None if own.shared_intermediate_size is None else self._mlp(f"{name}.shared"),
            shared_gate=self._exact(f"{name}.shared.router") if own.shared_gate else None,
            router_norm=None if gain is None else RmsNorm(gain, self.config.norm_eps, kernels=self.kernels),
            scales=self._take_any(f"{name}.expert_scales.weight"),
        )
        return MixedFeedforward(mixture)

    def _mlp(self, name: str, sparsity: float = 0.0) -> Mlp:
        activation = self.config.activation
        if not self.config.gated_mlp:
            return Mlp(self._linear(f"{name}.up", activation), self._added(f"{name}.down"))
        up, down = self._linear(f"{name}.gate_up"), self._added(f"{name}.down")
        gate = self.config.clamped_gate or activation
        return Mlp(up, down, gate, sparsity=sparsity, batch_invariant=self.batch_invariant)

    def _per_layer(self, name: str, stream_scale: Tensor | None) -> Residual[PerLayer]:
        gate, out = self._linear(f"{name}.per_layer_gate"), self._added(f"{name}.per_layer_out")
        return Residual(
            PerLayer(gate, out, self.config.activation, self.batch_invariant),
            out="hook_per_layer_out",
            stream="hook_resid_post",
            norm="ln_per_layer",
            after=self._norm(f"{name}.per_layer_post_norm"),
            stream_scale=stream_scale,
        )

    # Layers

    def _factor(self, number: float) -> Tensor:
        """Return a factor of table rows, rounded to the model's dtype before its use, as in Gemma's training."""
        return torch.tensor(number, dtype=torch.float64).to(self.tokens.device, self.tokens.dtype)

    def _norm(self, name: str) -> Norm:
        weight = self._take(f"{name}.weight")
        if self.config.norm == "rmsnorm":
            return self._rms_norm(weight)
        return LayerNorm(weight, self._take_any(f"{name}.bias"), self.config.norm_eps, kernels=self.kernels)

    def _rms_norm(self, weight: Tensor) -> RmsNorm:
        offset, rounds_once = self.config.norm_weight_offset, self.config.norm_rounds_once
        return RmsNorm(
            weight, self.config.norm_eps, weight_offset=offset, rounds_once=rounds_once, kernels=self.kernels
        )

    def _linear(self, name: str, activation: Activation | None = None) -> Linear:
        weight, bias = self.weights.pop(f"{name}.weight"), self._take_any(f"{name}.bias")
        return self.exactly(weight, bias, quantize=self.quantize, activation=activation, keep_dtype=self.is_whole)

    def _added(self, name: str) -> Linear:
        """Return a matrix whose product is added to the residual stream; ranks sum their products."""
        if self.shares is None:
            return self._linear(name)
        weight, bias = self._take(f"{name}.weight"), self._take_any(f"{name}.bias")
        return SummedLinear(weight, bias, self.shares.group, **self.exactly.keywords)

    def _exact(self, name: str) -> Linear:
        """Return a matrix that is never quantised, since few numbers decide much."""
        return self.exactly(self._take(f"{name}.weight"), self._take_any(f"{name}.bias"))


def take(weights: dict[str, Weight], name: str) -> Tensor:
    """Remove and return a weight. Raises KeyError if it is missing, and ModelLoadError if it is stored quantised."""
    weight = weights.pop(name)
    if isinstance(weight, QuantizedMatrix):
        raise ModelLoadError(f"weights: {name} is stored as {weight.stored}; floating point is accepted")
    return weight


def take_any(weights: dict[str, Weight], name: str) -> Tensor | None:
    """Remove and return a weight, or return None if it is missing. Raises ModelLoadError if it is stored quantised."""
    return take(weights, name) if name in weights else None
