"""Several residual streams around the blocks of a transformer, written to be read: Gemma 3n, with AltUp (Baykal et al.
2023, arXiv:2301.13310) and LAuReL (Menghani et al. 2024, arXiv:2411.07501).

Axes: S positions, d width.
"""

import math

import torch

from tests.reference import formulas
from tests.reference.stack import Stack


class StackOfStreams(Stack):
    """A decoder with several residual streams; its sublayers see the first of them."""

    def blocks(self, x: torch.Tensor, encoded: torch.Tensor | None) -> torch.Tensor:
        """Return the single vector of all streams after the last block, from x [S, d]."""
        assert self.config.altup is not None
        assert self.of_tokens is not None
        count = self.config.altup.num_streams

        def as_long(y: torch.Tensor, as_this: torch.Tensor) -> torch.Tensor:
            mean_square = (y**2).mean(-1, keepdim=True).clamp(min=1e-5)
            return y * (as_this**2).mean(-1, keepdim=True).sqrt() / mean_square.sqrt()

        into, out = (self.weight(f"altup_{way}.weight").chunk(count - 1) for way in ("in", "out"))
        streams = [x, *(as_long(x @ matrix.T, x) for matrix in into)]
        for layer in range(self.config.num_layers):
            streams = self.block_of_streams(layer, streams)
        last = [as_long(stream @ matrix.T, streams[0]) for stream, matrix in zip(streams[1:], out, strict=True)]
        return torch.stack([streams[0], *last]).mean(0)

    def block_of_streams(self, layer: int, streams: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return all streams after a block, each [S, d]."""
        name, count, config = f"layers.{layer}", len(streams), self.config
        assert config.altup is not None
        assert self.of_tokens is not None

        def small_norm(which: str, y: torch.Tensor) -> torch.Tensor:
            return formulas.rms_norm(y, self.weight(f"{name}.{which}.weight"), config.norm_eps, casts=self.casts)

        def asked_for(y: torch.Tensor) -> torch.Tensor:
            routed = self.linear(f"{name}.altup_router", small_norm("altup_norm", y) / y.shape[-1])
            return torch.tanh(routed.float()).double() if self.casts else torch.tanh(routed)

        self.keep("hook_resid_pre", streams[0], layer)
        weights = self.linear(f"{name}.altup_predict", asked_for(streams[0])).reshape(-1, count, count)
        predicted = [
            streams[to] + sum(weights[:, to, source, None] * streams[source] for source in range(count))
            for to in range(count)
        ]
        x = self.keep("hook_predicted", predicted[0], layer)
        n = self.before(layer, "ln1", x)
        added = self.keep("hook_attn_out", self.after(layer, "ln1", self.attention(layer, n)), layer)
        low = self.linear(f"{name}.laurel_right", self.linear(f"{name}.laurel_left", n))
        around = self.keep("hook_laurel_out", n + small_norm("laurel_norm", low), layer)
        x = self.keep("hook_resid_mid", (x + added + around) / math.sqrt(2), layer)
        added = self.keep("hook_mlp_out", self.after(layer, "ln2", self.feedforward(layer, x)), layer)
        x = self.keep("hook_resid_mid_mlp", x + added, layer)
        weights = 1 + self.linear(f"{name}.altup_correct", asked_for(x))
        corrected = [each + weights[:, i, None] * (x - predicted[0]) for i, each in enumerate(predicted)]
        first = self.keep("hook_resid_post", corrected[0], layer)
        if config.altup.scales_corrected:
            first = first * self.weight(f"{name}.altup_scale.weight")
        given = self.per_layer(layer, first, self.of_tokens[:, layer])
        return [corrected[0], *(each + given for each in corrected[1:])]
