"""Builds one stack from its weights: which part takes which names, and where each norm is applied. It knows no files.

The names are those of model/checkpoint/weight_files.py, without the stack's prefix.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor

from model.config import DeltaNetConfig
from model.layers.attention import AttentionRule
from model.layers.attention_arithmetic import at_least_float32
from model.layers.norm import Norm, RmsNorm
from model.layers.position_bias import alibi, bias_by_distance
from model.layers.rope import Rope
from model.layers.token_table import TokenTable
from model.loading.layer_builder import LayerBuilder
from model.network.altup import AltUp, StreamEnds
from model.network.block import Block, Residual, Sublayer
from model.network.convolution import Convolution
from model.network.delta_net import DeltaNet
from model.network.dense_and_experts import DenseAndExperts
from model.network.embedding import Embedding, embed_at_once, sinusoids
from model.network.fused_decoder import DecodeStep
from model.network.fused_encoder import EncodeStep
from model.network.per_layer import PerLayer, PerLayerInputs
from model.network.short_conv import ShortConvolution
from model.network.stack import Stack
from model.network.sublayers import AttentionHeads, CrossAttention, Feedforward, SelfAttention
from model.sharding.parts import NormOfAllHeads, SplitHeads
from model.sharding.shares import Share


class StackBuilder(LayerBuilder):
    """Builds the stack of the weights that it takes."""

    def stack(self) -> Stack:
        """Build the stack. Raises KeyError when a weight is missing; none may be left over."""
        config = self.config
        bias = self._position_bias()
        rule = AttentionRule(config.attention_scale, config.attn_logit_softcap, bias)
        ropes = self._ropes()
        blocks = [self._block(i, rule) for i in range(config.num_layers)]
        final_norm = self._norm("final_norm") if config.final_norm else None
        embedding = self.embedding()
        triton_step = None
        if self.kernels.uses_triton(self.tokens.dtype, self.tokens.device):
            from model.network.triton_step import TritonStep  # here: a CPU has no need of Triton

            triton_step = TritonStep.of(embedding, blocks, final_norm, ropes)
        stack = Stack(
            config,
            embedding,
            blocks=blocks,
            ropes=ropes,
            final_norm=final_norm,
            decode_step=DecodeStep.of(blocks, final_norm, ropes) if config.causal and self.shares is None else None,
            encode_step=EncodeStep(blocks, config, self.kernels.bfloat16_arithmetic()) if self.is_whole else None,
            triton_step=triton_step,
            stream_ends=self._stream_ends(),
            per_layer=self._per_layer_inputs(),
        )
        left = sorted(self.weights)
        assert not left, f"weights that no part took: {left}"
        return stack

    def embedding(self) -> Embedding:
        """Build what comes before the blocks. Raises KeyError when a weight is missing."""
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

    def _stream_ends(self) -> StreamEnds | None:
        if self.config.altup is None:
            return None
        into, out = (
            [self.exactly(each.contiguous()) for each in weight.chunk(self.config.altup.num_streams - 1)]
            for weight in (self._take("altup_in.weight"), self._take("altup_out.weight"))
        )
        return StreamEnds(into, out)

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

    def _ropes(self) -> list[Rope | None]:
        """Return the rotary embedding of each block, or None; blocks that rotate alike share one."""
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

    def _position_bias(self) -> Tensor | None:
        if self.config.alibi:
            whole = self.config if self.shares is None else self.shares.config
            bias = alibi(whole.num_heads, self.context, self.tokens.dtype, self.tokens.device)
            return bias if self.shares is None else self.shares.heads.part(bias, 0)
        if self.config.position_bias is None:
            return None
        return bias_by_distance(self._take("position_bias.weight"), self.config.position_bias, self.context)

    def _heads(self, name: str, rule: AttentionRule, out: str) -> AttentionHeads:
        if self.shares is None:
            return AttentionHeads(name, self.attention, rule, self._added(out))
        return SplitHeads(name, self.attention, rule, self._added(out), self.shares)

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
        sublayers = (
            self._residual(mixer, "hook_attn_out", "hook_resid_mid", "ln1", f"{name}.attn", has_norm=has_norm),
            cross,
            self._feedforward(
                index, "hook_resid_post" if last is None else "hook_resid_mid_mlp", scale if last is None else None
            ),
        )
        return Block(index, *sublayers, parallel=config.parallel_blocks, per_layer=last, altup=self._altup(name))

    def _feedforward(self, index: int, stream: str, stream_scale: Tensor | None) -> Residual[Any]:
        config, name = self.config, f"layers.{index}"
        out, mlp = "hook_mlp_out", f"{name}.mlp"
        if config.experts is None or not config.has_experts(index):
            own = Feedforward(self._mlp(name, config.sparsities[index] if config.sparsities else 0.0))
            return self._residual(own, out, stream, "ln2", mlp, stream_scale=stream_scale)
        experts = self._experts(name)
        if not config.experts.beside_mlp:
            return self._residual(experts, out, stream, "ln2", mlp, stream_scale=stream_scale)
        norms = [self._norm(f"{name}.{each}_norm") for each in ("mlp", "dense_post", "experts", "experts_post")]
        both = DenseAndExperts(Feedforward(self._mlp(name)), experts, *norms)
        after = self._norm(f"{mlp}_post_norm")
        return Residual(both, out=out, stream=stream, norm="ln2_post", after=after, stream_scale=stream_scale)

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
            gated=config.attention_gate,
            q_norm=self._qk_norm(f"{name}.q_norm", None if self.shares is None else self.shares.heads),
            k_norm=self._qk_norm(f"{name}.k_norm", None if self.shares is None else self.shares.kv_heads)
            if kv_layer == index
            else None,
            v_norm=self._rms_norm_of(self.tokens.new_zeros(config.head_dim) + 1) if config.v_norm else None,
            kv_layer=kv_layer,
            has_kv=kv_layer == index,
        )

    def _recurrence(self, name: str) -> ShortConvolution | DeltaNet:
        """Return what stands in place of attention."""
        net = self.config.recurrence
        convolution = Convolution.of(self._take(f"{name}.conv.weight"), self._take_any(f"{name}.conv.bias"))
        if not isinstance(net, DeltaNetConfig):
            return ShortConvolution(self._linear(f"{name}.conv_in"), convolution, self._linear(f"{name}.conv_out"))
        return DeltaNet(
            net,
            self._linear(f"{name}.delta_in"),
            convolution,
            a_log=self._take(f"{name}.delta_decay.weight"),
            step_bias=self._take(f"{name}.delta_step.bias"),
            norm=RmsNorm(self._take(f"{name}.delta_norm.weight"), self.config.norm_eps, kernels=self.kernels),
            out=self._linear(f"{name}.delta_out"),
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
