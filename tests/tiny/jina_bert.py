"""Jina BERT, version 2, for the tests: transformers' BERT with two changes by the papers' formulas, since its own code
is in no release of transformers. A bias by distance is added to its scores (Press et al. 2021, arXiv:2108.12409, on
both sides alike) in place of positions, and feed-forwards are gated (Shazeer 2020, arXiv:2002.05202). Tensors have the
names of the published checkpoints.
"""

import math
from typing import Any

import torch
import transformers as hf
from torch import nn


class NoPositions(nn.Module):
    """A table of positions that adds nothing and has no weights."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.zeros((*positions.shape, 1), dtype=torch.get_default_dtype())


class GatedFeedforward(nn.Module):
    """The gated feed-forward of a layer, with the norm of its sum."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gated_layers(x).chunk(2, -1)
        y: torch.Tensor = self.layernorm(x + self.wo(nn.functional.gelu(gate) * up))
        return y


class JinaBertModel(hf.BertModel):
    """A Jina BERT without a head."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.embeddings.position_embeddings = NoPositions()
        for layer in self.encoder.layer:
            del layer.intermediate, layer.output
            layer.mlp = GatedFeedforward(config)
            layer.feed_forward_chunk = layer.mlp.forward

    def forward(self, input_ids: torch.Tensor, **asked: Any) -> Any:
        places = torch.arange(input_ids.shape[1])
        away = (places[:, None] - places).abs().to(self.dtype)
        slopes = torch.tensor(slopes_of(self.config.num_attention_heads), dtype=self.dtype)
        asked["attention_mask"] = -slopes[None, :, None, None] * away
        return super().forward(input_ids, **asked)


class JinaBertForMaskedLM(hf.BertForMaskedLM):
    """A Jina BERT with the head that fills in masked words."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config)
        self.post_init()


def slopes_of(num_heads: int) -> list[float]:
    """Return the slope of each head, by the paper: a geometric sequence that starts at its own ratio. For numbers that
    are no power of 2: the slopes of the next lower power, then every second one of twice as many heads.
    """
    power = math.log2(num_heads)
    if power == int(power):
        ratio = 2 ** (-8 / num_heads)
        return [ratio ** (head + 1) for head in range(num_heads)]
    lower = 2 ** int(power)
    return slopes_of(lower) + slopes_of(2 * lower)[::2][: num_heads - lower]
