"""From token ids to the stream that the first block is given. Knows tables; refuses to know blocks.

Axes: T rows, d model width, e width of the token table.
"""

from dataclasses import dataclass

import torch

from model.batch import Batch
from model.capture import LayerLooks
from model.config import ModelConfig
from model.layers.linear import Linear
from model.layers.norm import Norm, take_norm
from model.layers.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Embedding:
    """norm(project(scale * token) + token type + position), of which a family has some."""

    tokens: TokenTable
    """[vocab, e]; both stacks of an encoder-decoder share it."""
    scale: torch.Tensor | None
    """A number, of the tables' dtype."""
    project: Linear | None
    """[d, e]"""
    positions: torch.Tensor | None
    """[context, d]: row 0 is position 0's."""
    token_type: torch.Tensor | None
    """[d], of the first token type: a text is one segment."""
    norm: Norm | None

    @classmethod
    def take(
        cls,
        weights: dict[str, torch.Tensor],
        tokens: TokenTable,
        config: ModelConfig,
        *,
        context: int,
        batch_invariant: bool,
    ) -> "Embedding":
        """Build from the tables and norms of one stack, which leave the dict; `context` bounds computed positions.

        Raises KeyError when a weight is missing.
        """
        # Rounded to the model's dtype before it is used, as Gemma was trained.
        scale = (
            None
            if config.embedding_scale == 1
            else torch.tensor(config.embedding_scale, dtype=torch.float64).to(tokens.device, tokens.dtype)
        )
        positions = weights.pop("pos_embed.weight", None)
        if positions is not None:
            positions = positions[config.position_offset :]
        elif config.sinusoidal_positions:
            positions = sinusoids(context, config.hidden_size).to(tokens.device, tokens.dtype)
        types = weights.pop("token_type_embed.weight", None)
        return cls(
            tokens=tokens,
            scale=scale,
            project=Linear.take(weights, "embed_in", batch_invariant=batch_invariant)
            if "embed_in.weight" in weights
            else None,
            positions=positions,
            token_type=None if types is None else types[0].clone(),
            norm=take_norm(weights, "embed_norm", config) if config.embedding_norm else None,
        )

    def __call__(self, batch: Batch, look: LayerLooks | None = None) -> torch.Tensor:
        """The batch's tokens at their positions -> [T, d]."""
        x = self.tokens(batch.token_ids)  # [T, e]
        if self.scale is not None:
            x = x * self.scale
        if self.project is not None:
            x = self.project(x)  # [T, d]
        if look is not None:
            x = look("hook_embed", x)
        if self.token_type is not None:
            x = x + self._at(look, "hook_token_type_embed", self.token_type.expand(len(x), -1))
        if self.positions is not None:
            x = x + self._at(look, "hook_pos_embed", self.positions[batch.positions])
        if self.norm is None:
            return x
        normed = self.norm(x)
        if look is not None:
            look.of_norm("embed_norm", self.norm, x, normed)
        return normed

    @staticmethod
    def _at(look: LayerLooks | None, point: str, x: torch.Tensor) -> torch.Tensor:
        return x if look is None else look(point, x)


def sinusoids(num_positions: int, width: int) -> torch.Tensor:
    """The fixed positions of Vaswani et al. 2017 (arXiv:1706.03762), section 3.5, as Marian lays them out: all sines,
    then all cosines: [num_positions, width], float64.
    """
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()[:, : width // 2]), 1)
