"""Configuration of feed-forward layers: experts, clamped gates and several residual streams."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts, in place of the mlp or next to it. A router chooses experts for each token (Shazeer et al.
    2017, arXiv:1701.06538).
    """

    num_experts: int
    num_chosen: int
    """Experts of one token."""
    intermediate_size: int
    """Neurons of one expert."""
    normalized: bool
    """Whether the weights of the chosen experts are divided by their sum."""
    shared_intermediate_size: int | None = None
    """Neurons of the shared expert, an mlp for every token, or None without one."""
    shared_gate: bool = False
    """Whether the shared expert's output is multiplied by a gate, the sigmoid of one number a token (Qwen2-MoE)."""
    dense_layers: tuple[int, ...] = ()
    """Layers with an mlp of the network's `intermediate_size` in place of experts."""
    beside_mlp: bool = False
    """Whether layers with experts also have an mlp. The mlp, the experts and the router then have norms of their own,
    and each expert's output has a factor (Gemma 4).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUpConfig:
    """Several residual streams; sublayers read the first (AltUp: Baykal et al. 2023, arXiv:2301.13310). A low-rank path
    around attention (LAuReL: Menghani et al. 2024, arXiv:2411.07501).
    """

    num_streams: int
    laurel_rank: int
    scales_corrected: bool
    """Whether the corrected stream is multiplied elementwise by a weight before the per-layer token embeddings gate it.
    """


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """A clamped gate (gpt-oss): min(g, limit) * sigmoid(alpha * min(g, limit)) * (u + 1), with the gate g, and the
    gated value u clamped to -limit ... limit.
    """

    limit: float
    alpha: float
