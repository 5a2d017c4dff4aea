"""The formulas of the papers, each by itself, in float64: norms, activations, rotation, buckets of distance, softmax.

`casts`: a family with rounding to float32 inside transformers' float64 models, which is then copied; None gives the
plain formula. Axes: S positions, d width, D head_dim.
"""

import math

import torch

from lightwell.model.config import Activation, PositionBiasConfig, RopeConfig
from tests.reference.rotary import turns

SOFTMAX_IN_FLOAT32 = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_5", "smollm3", "granite",
    "granite4", "granite_moe", "granite_moe_shared", "lfm2", "gemma2", "gemma3", "gemma3n", "gemma4", "phi3", "olmo2",
    "olmo3", "olmoe", "gpt_neox", "opt", "modernbert",
)  # fmt: skip
SOFTMAX_OF_CHOSEN = ("granite4", "granite_moe", "granite_moe_shared")
"""Families that take the softmax, in float32, of only the logits of the chosen experts."""
GEMMAS = ("gemma2", "gemma3", "gemma3n", "gemma4", "qwen3_5")
"""Families that add 1 to the weights of their norms in float32."""


def rms_scale(x: torch.Tensor, eps: float, casts: str | None = None) -> torch.Tensor:
    """Return sqrt(mean(x^2) + eps) over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467): [..., 1]."""
    wide = x.float() if casts else x
    return torch.sqrt((wide**2).mean(-1, keepdim=True) + eps)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0, casts: str | None = None
) -> torch.Tensor:
    """Return x / rms_scale(x) * (weight + offset)."""
    if casts is None:
        return x / rms_scale(x, eps) * (weight + offset)
    mean = (x.float() ** 2).mean(-1, keepdim=True) + eps
    inverse = mean**-0.5 if casts in ("gemma4", "gemma3n") else torch.rsqrt(mean)  # their last bits differ
    if casts == "t5":  # only the mean is rounded
        return weight * (x * inverse)
    if casts in GEMMAS:
        return (x.float() * inverse * (weight.float() + offset)).double()
    return (x.float() * inverse).double() * weight


def layer_norm_scale(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Return sqrt(var(x) + eps) over the last axis (Ba et al. 2016, arXiv:1607.06450): [..., 1]."""
    centred = x - x.mean(-1, keepdim=True)
    return torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    y = (x - x.mean(-1, keepdim=True)) / layer_norm_scale(x, eps) * weight
    return y if bias is None else y + bias


def activate(x: torch.Tensor, kind: Activation) -> torch.Tensor:
    """Apply an activation: Hendrycks and Gimpel 2016 (arXiv:1606.08415) for gelu, its tanh approximation and silu."""
    match kind:
        case "silu":
            return x / (1 + torch.exp(-x))
        case "gelu":
            return x * (1 + torch.erf(x / math.sqrt(2))) / 2
        case "gelu_tanh":
            return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "relu":
            return torch.where(x > 0, x, 0.0)


def without_small(x: torch.Tensor, share: float) -> torch.Tensor:
    """Return x minus a threshold, at least 0. The threshold is the quantile `share` of a normal distribution with each
    row's mean and deviation (Gemma 3n's code, which rounds the quantile's place to float32).
    """
    normal = torch.distributions.Normal(0.0, 1.0)
    place = normal.icdf(torch.tensor(share, dtype=torch.float32)).double()
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean) ** 2).mean(-1, keepdim=True).sqrt()
    return torch.clamp(x - (mean + place * deviation), min=0)


def rotate(x: torch.Tensor, rope: RopeConfig, max_len: int, casts: str | None = None) -> torch.Tensor:
    """Rotate x [S, H, D]: of the first R dimensions, which are rotated, i and i + R/2 are the coordinates of a point
    that rotates by position * frequency (Su et al. 2021, arXiv:2104.09864); the others stay.
    """
    dims = x.shape[-1] if rope.rope_type == "proportional" else rope.dims or x.shape[-1]
    max_len = len(x) if rope.rope_type == "longrope" else max_len  # the text's own length chooses the factors
    radians, scaling = turns(rope, dims, max_len, torch.float32 if casts else torch.float64)
    out, half = x.clone(), dims // 2
    for position in range(len(x)):
        angle = position * radians  # [R / 2]
        cos, sin = (angle.cos() * scaling).double(), (angle.sin() * scaling).double()
        first, second = x[position, :, :half], x[position, :, half : 2 * half]
        if casts == "modernbert":  # also rounds the vectors
            first, second = first.float().double(), second.float().double()
        out[position, :, :half] = first * cos - second * sin
        out[position, :, half : 2 * half] = second * cos + first * sin
    return out


def bucket(distance: int, config: PositionBiasConfig) -> int:
    """Return the bucket of key position - query position (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    In each direction, the first half of the buckets has one distance each; the second half is spaced by logarithms.
    """
    num_buckets, first = config.num_buckets, 0
    if config.bidirectional:
        num_buckets //= 2
        first = num_buckets if distance > 0 else 0
    elif distance > 0:
        distance = 0
    distance, exact = abs(distance), num_buckets // 2
    if distance < exact:
        return first + distance
    # In float32, as in the code that trained T5: a distance at the edge of two buckets depends on it.
    portion = torch.log(torch.tensor(distance / exact, dtype=torch.float32)) / math.log(config.max_distance / exact)
    return first + min(exact + int(portion * (num_buckets - exact)), num_buckets - 1)


def alibi(num_heads: int, distance: int) -> torch.Tensor:
    """Return the bias of each head for a key at a distance (Press et al. 2021, arXiv:2108.12409): -distance times
    2^(-8/n), 2^(-16/n), ... for the greatest power of two n that is not more than `num_heads`; the remaining heads have
    the odd ones of 2n, 2^(-4/n), 2^(-12/n), .... [H]
    """
    n = 2 ** math.floor(math.log2(num_heads))
    powers = [8 * (head + 1) / n if head < n else 4 * (2 * (head - n) + 1) / n for head in range(num_heads)]
    return -distance * 2 ** -torch.tensor(powers, dtype=torch.float64)


def sinusoid(position: int, width: int, casts: str | None = None) -> torch.Tensor:
    """Return the row of a fixed position table (Vaswani et al. 2017, arXiv:1706.03762, section 3.5), as Marian
    orders it: all sines, then all cosines. [width]
    """
    angles = [position / 10000 ** (2 * (i // 2) / width) for i in range(width)]
    row = torch.tensor(
        [math.sin(angle) for angle in angles[0::2]] + [math.cos(angle) for angle in angles[1::2]], dtype=torch.float64
    )
    return row.float().double() if casts else row


def softmax(scores: torch.Tensor, casts: str | None = None) -> torch.Tensor:
    """Return the softmax over the last axis; -inf becomes 0."""
    if casts in SOFTMAX_IN_FLOAT32:
        return torch.softmax(scores.float(), -1).double()
    powers = torch.exp(scores - scores.max(-1, keepdim=True).values)
    return powers / powers.sum(-1, keepdim=True)


def soft_cap(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Return cap * tanh(x / cap) (Bello et al. 2016, arXiv:1611.09940); None is no cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, decay: torch.Tensor, head: int
) -> torch.Tensor:
    """Return the output of a value head at each position, [S, d_value]. The head's matrix is a state: after decay, the
    value stored for the key is moved towards the new value (Yang et al. 2024, arXiv:2412.06464, equation 10). q, k
    [S, key heads, d_key].
    """
    key_head = head * k.shape[1] // v.shape[1]
    matrix, read = v.new_zeros(k.shape[2], v.shape[2]), []
    for position in range(len(q)):
        key, query = (x[position, key_head] / torch.sqrt((x[position, key_head] ** 2).sum() + 1e-6) for x in (k, q))
        matrix = matrix * decay[position, head]
        wrong = v[position, head] - key @ matrix
        matrix = matrix + torch.outer(key, beta[position, head] * wrong)
        read.append(query @ matrix / math.sqrt(len(query)))
    return torch.stack(read)
