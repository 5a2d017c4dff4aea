"""A decoder written to be read: one sequence, whole matrices, one head at a time, float64, plain torch.

The fast network is proved against this, and this against transformers. It reads our canonical weights
(model/weight_maps) and shares no code with the layers it proves, except the frequencies of rotary embedding, which
have tests of their own.

Axes: S positions of the sequence (query or key), H heads, K key heads, D head_dim, d width, L layers.
"""

import math
from dataclasses import dataclass

import torch

from model.config import ModelConfig
from model.layers.rope import frequencies


@dataclass(frozen=True)
class LayerTrace:
    """Everything one block computes on the way."""

    resid_pre: torch.Tensor  # [S, d]
    q: torch.Tensor  # [S, H, D], before rotation
    k: torch.Tensor  # [S, K, D]
    v: torch.Tensor  # [S, K, D]
    rot_q: torch.Tensor  # [S, H, D]; equal to q without rotary embedding
    rot_k: torch.Tensor  # [S, K, D]
    dots: torch.Tensor  # [H, S, S], q.k, unmasked
    scores: torch.Tensor  # [H, S, S], scaled, -inf where the query must not look
    pattern: torch.Tensor  # [H, S, S], rows sum to 1
    z: torch.Tensor  # [S, H, D]
    attn_out: torch.Tensor  # [S, d]
    resid_mid: torch.Tensor  # [S, d]
    mlp_hidden: torch.Tensor  # [S, ff], what the last matrix is given
    mlp_out: torch.Tensor  # [S, d]
    resid_post: torch.Tensor  # [S, d]


@dataclass(frozen=True)
class Trace:
    """The result of one pass."""

    logits: torch.Tensor  # [S, vocab]
    final: torch.Tensor  # [S, d], after the final norm
    layers: list[LayerTrace]

    @property
    def hidden_states(self) -> list[torch.Tensor]:
        """As transformers gives them: the embedding, each block's output, and the last one after the final norm."""
        return [layer.resid_pre for layer in self.layers] + [self.final]


def run(
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    token_ids: list[int],
    *,
    hf_casts: bool = False,
    max_len: int | None = None,
) -> Trace:
    """Compute everything for one sequence.

    weights: our names, float64. `hf_casts`: put in the casts to float32 that transformers keeps whatever the model's
    dtype (RMSNorm, rotary tables and, in Llama, softmax). `max_len`: the context that rotary frequencies are chosen for
    (config.max_model_len when None).
    """
    return _Pass(config, weights, hf_casts, max_len or config.max_model_len).run(token_ids)


class _Pass:
    def __init__(self, config: ModelConfig, weights: dict[str, torch.Tensor], hf_casts: bool, max_len: int) -> None:
        self.config = config
        self.weights = weights
        self.hf_casts = hf_casts
        self.max_len = max_len

    def run(self, token_ids: list[int]) -> Trace:
        x = torch.stack([self.weights["embed.weight"][token] for token in token_ids])
        if self.config.learned_positions:
            x = x + self.weights["pos_embed.weight"][: len(token_ids)]
        layers = []
        for index in range(self.config.num_layers):
            layers.append(self.block(f"layers.{index}", x))
            x = layers[-1].resid_post
        final = self.norm("final_norm", x)
        head = self.weights.get("head.weight", self.weights["embed.weight"])
        return Trace(final @ head.T, final, layers)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, eps = self.weights[f"{name}.weight"], self.config.norm_eps
        if self.config.norm == "rmsnorm":
            wide = x.float() if self.hf_casts else x
            return (wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps) * weight + self.weights[f"{name}.bias"]

    def activation(self, x: torch.Tensor) -> torch.Tensor:
        match self.config.activation:
            case "silu":
                return x / (1 + torch.exp(-x))
            case "gelu":
                return x * (1 + torch.erf(x / math.sqrt(2))) / 2
            case "gelu_tanh":
                return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
            case "relu":
                return torch.where(x > 0, x, 0.0)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [S, H, D]: dimensions i and i + D/2 are the coordinates of a point that turns by position * frequency."""
        if self.config.rope is None:
            return x
        wide = torch.float32 if self.hf_casts else torch.float64
        turns = frequencies(self.config.rope, x.shape[-1], self.max_len, wide)
        out, half = torch.empty_like(x), x.shape[-1] // 2
        for position in range(len(x)):
            angle = position * turns.inverse  # [D / 2]
            cos, sin = (angle.cos() * turns.scaling).double(), (angle.sin() * turns.scaling).double()
            first, second = x[position, :, :half], x[position, :, half:]
            out[position, :, :half] = first * cos - second * sin
            out[position, :, half:] = second * cos + first * sin
        return out

    def softmax(self, scores: torch.Tensor) -> torch.Tensor:
        if self.hf_casts and self.config.family != "gpt2":
            return torch.softmax(scores.float(), -1).double()
        powers = torch.exp(scores - scores.max(-1, keepdim=True).values)
        return powers / powers.sum(-1, keepdim=True)

    def block(self, name: str, x: torch.Tensor) -> LayerTrace:
        config, length, width = self.config, len(x), self.config.head_dim
        qkv = self.linear(f"{name}.qkv", self.norm(f"{name}.attn_norm", x))
        sizes = [heads * width for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        q, k, v = (part.reshape(length, -1, width) for part in torch.split(qkv, sizes, dim=-1))
        rot_q, rot_k = self.rotate(q), self.rotate(k)
        visible = torch.tril(torch.ones(length, length, dtype=torch.bool))
        dots, scores, patterns, zs = [], [], [], []
        for head in range(config.num_heads):
            kv_head = head * config.num_kv_heads // config.num_heads
            dots.append(rot_q[:, head] @ rot_k[:, kv_head].T)
            scores.append((dots[-1] * config.attention_scale).masked_fill(~visible, -math.inf))
            patterns.append(self.softmax(scores[-1]))
            zs.append(patterns[-1] @ v[:, kv_head])
        z = torch.stack(zs, 1)
        attn_out = self.linear(f"{name}.attn_out", z.reshape(length, -1))
        middle = x + attn_out
        hidden = self.mlp_hidden(name, self.norm(f"{name}.mlp_norm", middle))
        mlp_out = self.linear(f"{name}.down", hidden)
        return LayerTrace(
            resid_pre=x,
            q=q,
            k=k,
            v=v,
            rot_q=rot_q,
            rot_k=rot_k,
            dots=torch.stack(dots),
            scores=torch.stack(scores),
            pattern=torch.stack(patterns),
            z=z,
            attn_out=attn_out,
            resid_mid=middle,
            mlp_hidden=hidden,
            mlp_out=mlp_out,
            resid_post=middle + mlp_out,
        )

    def mlp_hidden(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if not self.config.gated_mlp:
            return self.activation(self.linear(f"{name}.up", x))
        gate, up = self.linear(f"{name}.gate_up", x).chunk(2, dim=-1)
        return self.activation(gate) * up
