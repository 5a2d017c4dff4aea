"""Takes words out of a pass: as interventions that mask their keys, or put the mean of all embeddings in their place.

A masked key is seen by no query, in no layer and no head, as if the attention mask of transformers were 0 there; a
query that would see no key at all keeps its own. The words after it keep their positions. What brings numbers from one
position to another without attention (convolutions, delta nets) is not masked, and neither is the state that a head of
labels reads.
"""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np

from model.config import ModelConfig
from model.hooks.point_names import stack_config
from model.hooks.points import Stack
from server.engine.outputs import Array
from server.engine.request import Intervention
from server.http.tensor_formats import NumpyArray

TakeOut = Literal["keys", "embedding"]
_SCORES = "attn.hook_attn_scores"


class Word(NamedTuple):
    """A token of an input."""

    stack: Stack
    position: int


def without(
    config: ModelConfig, words: Collection[Word], lengths: dict[Stack, int], mean_embeddings: dict[Stack, NumpyArray]
) -> tuple[Intervention, ...]:
    """Return the interventions that take words out of a pass.

    Args:
        config: of the model.
        words: the words; not all keys of an encoder that a decoder looks at.
        lengths: the number of tokens that each stack reads.
        mean_embeddings: of each stack what takes the place of the words' embeddings [d]; {} masks their keys.
    """
    found: list[Intervention] = []
    for stack, length in lengths.items():
        taken = sorted({word.position for word in words if word.stack == stack})
        if not taken:
            continue
        if mean_embeddings:
            value = _array(mean_embeddings[stack])
            found.append(
                Intervention(stack=stack, layer=None, point="hook_embed", op="set", value=value, positions=tuple(taken))
            )
            continue
        own = stack_config(config, stack)
        for layer in own.attention_layers:
            found += _masked(own, stack, layer, taken, length)
        if stack == "encoder" and config.cross_attention:
            value = _array(_hidden(taken, length))
            found += [
                Intervention(stack="decoder", layer=layer, point=f"cross_{_SCORES}", op="add", value=value)
                for layer in config.attention_layers
            ]
    return tuple(found)


def _masked(config: ModelConfig, stack: Stack, layer: int, taken: Sequence[int], length: int) -> list[Intervention]:
    """Return the changes of one layer's scores."""
    blind = [query for query in taken if _seen(config, layer, query, length) <= set(taken)]
    others = tuple(query for query in range(length) if query not in set(blind)) if blind else None

    def change(queries: tuple[int, ...] | None, keys: Sequence[int]) -> Intervention:
        value = _array(_hidden(keys, length))
        return Intervention(stack=stack, layer=layer, point=_SCORES, op="add", value=value, positions=queries)

    found = [change(others, taken)] if others != () else []
    alone = [change((query,), [key for key in taken if key != query]) for query in blind if len(taken) > 1]
    return [*found, *alone]


def _seen(config: ModelConfig, layer: int, query: int, length: int) -> set[int]:
    """Return the keys that a query sees."""
    window = config.window_of(layer) or length
    return set(range(max(0, query - window + 1), (query if config.causal else min(length - 1, query + window - 1)) + 1))


def _hidden(keys: Sequence[int], length: int) -> NumpyArray:
    """Return what is added to the scores of all keys, for every head and query alike: [1, 1, key]."""
    added = np.zeros((1, 1, length), np.float32)
    added[..., list(keys)] = -np.inf
    return added


def _array(numbers: NumpyArray) -> Array:
    small = np.ascontiguousarray(numbers, np.float32)
    return Array(small.dtype.name, small.shape, small.tobytes())
