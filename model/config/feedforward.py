"""Defines what stands beside, around or in place of a plain feed-forward."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts in place of the mlp, or beside it: a router chooses some of many for each token (Shazeer et
    al. 2017, arXiv:1701.06538).
    """

    num_experts: int
    num_chosen: int
    """The experts that a token goes through."""
    intermediate_size: int
    """The neurons of one expert."""
    normalized: bool
    """Whether the weights of the chosen experts are divided by their sum."""
    shared_intermediate_size: int | None = None
    """The neurons of an mlp that every token goes through besides, or None if there is none."""
    shared_gate: bool = False
    """Whether the output of that mlp is multiplied by the sigmoid of one number a token (Qwen2-MoE)."""
    dense_layers: tuple[int, ...] = ()
    """The layers that have one mlp, of the network's `intermediate_size`, instead."""
    beside_mlp: bool = False
    """Whether layers with experts have one mlp too, beside them; the mlp and the experts then have norms of their own,
    the router a norm, and each expert's output a factor (Gemma 4).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUpConfig:
    """Several residual streams, of which sublayers see the first (Baykal et al. 2023, arXiv:2301.13310), and a low-rank
    path around attention (Menghani et al. 2024, arXiv:2411.07501).
    """

    num_streams: int
    laurel_rank: int
    scales_corrected: bool
    """Whether the corrected stream is multiplied by a weight, number by number, before a layer's inputs of the tokens
    gate it.
    """


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """A gate whose numbers are clamped (gpt-oss): min(g, limit) * sigmoid(alpha * min(g, limit)) * (u + 1), where u is
    what the gate lets through, clamped to -limit ... limit.
    """

    limit: float
    alpha: float
