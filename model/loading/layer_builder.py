"""Makes the layers of a stack from its weights: each takes what it needs, by name, out of a dict. It knows no blocks.

The names are those of model/checkpoint/weight_files.py, without the stack's prefix.
"""

from functools import partial

import torch
from torch import Tensor

from model.checkpoint.folder import ModelLoadError
from model.config import Activation, ModelConfig
from model.kernels.choice import KernelConfig
from model.kernels.int8_rows import Quantization
from model.kernels.products import DOT
from model.layers.attention import TextAttention
from model.layers.attention_choice import attention_for
from model.layers.experts import Experts
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import LayerNorm, Norm, RmsNorm
from model.layers.token_table import TokenTable
from model.network.fused_encoder import why_not_whole
from model.network.sublayers import MixedFeedforward
from model.quantized import QuantizedMatrix, Weight
from model.sharding.parts import SummedLinear
from model.sharding.shares import Shares


class LayerBuilder:
    """Takes the weights of one stack out of a dict, so that originals are freed as they are packed."""

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
        """Keep what the stack is built from. tokens [vocab, e]: the table that both stacks share; `context` is the
        longest sequence that will be run.

        `kernels`: what computes; `batch_invariant`: whether a row's bits may depend on its own sequence alone;
        `quantize`: the blocks' matrices; `shares`: of the stack whose part `config` and `weights` are, if several ranks
        hold one together.
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
        """Makes a layer of a matrix that is not quantised."""
        self.quantize: Quantization = quantize
        why_not = why_not_whole(config, tokens.dtype, tokens.device, quantize, kernels)
        is_stored_quantized = any(isinstance(each, QuantizedMatrix) for each in weights.values())
        self.is_whole = shares is None and not is_stored_quantized and why_not is None
        """Whether an `EncodeStep` can run the whole stack."""
        self.attention = attention_for(
            tokens.dtype,
            tokens.device,
            kernels=kernels,
            batch_invariant=batch_invariant,
            has_sinks=config.attention_sinks,
        )
        if self.is_whole and tokens.dtype == torch.bfloat16 and kernels.bfloat16_arithmetic() == DOT:
            self.attention = TextAttention()

    def _factor(self, number: float) -> Tensor:
        """Return a factor of a table's rows, rounded to the model's dtype before it is used, as Gemma was trained."""
        return torch.tensor(number, dtype=torch.float64).to(self.tokens.device, self.tokens.dtype)

    def _norm(self, name: str) -> Norm:
        if self.config.norm == "rmsnorm":
            return self._rms_norm(name)
        weight, bias = self._take(f"{name}.weight"), self._take_any(f"{name}.bias")
        return LayerNorm(weight, bias, self.config.norm_eps, kernels=self.kernels)

    def _rms_norm(self, name: str) -> RmsNorm:
        return self._rms_norm_of(self._take(f"{name}.weight"))

    def _rms_norm_of(self, weight: Tensor) -> RmsNorm:
        offset, rounds_once = self.config.norm_weight_offset, self.config.norm_rounds_once
        return RmsNorm(
            weight, self.config.norm_eps, weight_offset=offset, rounds_once=rounds_once, kernels=self.kernels
        )

    def _linear(self, name: str, activation: Activation | None = None) -> Linear:
        weight, bias = self.weights.pop(f"{name}.weight"), self._take_any(f"{name}.bias")
        return self.exactly(weight, bias, quantize=self.quantize, activation=activation, keep_dtype=self.is_whole)

    def _added(self, name: str) -> Linear:
        """Return a matrix whose product is added to the residual stream."""
        if self.shares is None:
            return self._linear(name)
        weight, bias = self._take(f"{name}.weight"), self._take_any(f"{name}.bias")
        return SummedLinear(weight, bias, self.shares.group, kernels=self.kernels, batch_invariant=self.batch_invariant)

    def _exact(self, name: str) -> Linear:
        """Return a matrix that is not quantised: few of its numbers decide much."""
        return self.exactly(self._take(f"{name}.weight"), self._take_any(f"{name}.bias"))

    def _mlp(self, name: str, sparsity: float = 0.0) -> Mlp:
        activation = self.config.activation
        if not self.config.gated_mlp:
            return Mlp(self._linear(f"{name}.up", activation), self._added(f"{name}.down"))
        up, down = self._linear(f"{name}.gate_up"), self._added(f"{name}.down")
        gate = self.config.clamped_gate or activation
        return Mlp(up, down, gate, sparsity=sparsity, batch_invariant=self.batch_invariant)

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


def take(weights: dict[str, Weight], name: str) -> Tensor:
    """Remove a weight. Raises KeyError if there is none, and ModelLoadError if it is stored quantised."""
    weight = weights.pop(name)
    if isinstance(weight, QuantizedMatrix):
        raise ModelLoadError(f"weights: {name} is stored as {weight.stored}; floating point is accepted")
    return weight


def take_any(weights: dict[str, Weight], name: str) -> Tensor | None:
    """Remove a weight, if it is there. Raises ModelLoadError as `take`."""
    return take(weights, name) if name in weights else None
