"""Interventions that take words out of a pass: they mask their keys, or replace their embeddings by the mean of all.

A masked key is invisible to all queries, in all layers and heads, as with 0 in the attention mask of transformers; a
query without any other visible key keeps its own. Later words keep their positions. Other token mixers (convolutions,
delta nets) are not masked, and neither is the state that a head of labels reads.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config
from lightwell.model.hooks.points import Stack
from lightwell.server.engine.messages.outputs import Array
from lightwell.server.engine.messages.request import Intervention
from lightwell.server.http.tensor_formats import NumpyArray, for_engine

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
        words: the words; not all words of an encoder before a decoder.
        lengths: the number of tokens of each stack.
        mean_embeddings: the embedding [d] that replaces the words' in each stack; {} masks their keys.
    """
    found: list[Intervention] = []
    for stack, length in lengths.items():
        taken = sorted({word.position for word in words if word.stack == stack})
        if not taken:
            continue
        if mean_embeddings:
            value = for_engine(mean_embeddings[stack])
            found.append(
                Intervention(stack=stack, layer=None, point="hook_embed", op="set", array=value, positions=tuple(taken))
            )
            continue
        own = stack_config(config, stack)
        value = _hidden(taken, length)  # one for all layers: of a long text it is large
        for layer in own.attention_layers:
            found += _masked(own, stack, layer, taken, length, value)
        if stack == "encoder" and config.cross_attention:
            found += [
                Intervention(stack="decoder", layer=layer, point=f"cross_{_SCORES}", op="add", array=value)
                for layer in config.attention_layers
            ]
    return tuple(found)


def _masked(
    config: ModelConfig, stack: Stack, layer: int, taken: Sequence[int], length: int, value: Array
) -> list[Intervention]:
    """Return the changes of one layer's scores; `value` hides all taken words."""
    blind = [query for query in taken if _sees_only(config, layer, query, length, taken)]
    others = tuple(query for query in range(length) if query not in blind) if blind else None

    def change(queries: tuple[int, ...] | None, added: Array) -> Intervention:
        return Intervention(stack=stack, layer=layer, point=_SCORES, op="add", array=added, positions=queries)

    found = [change(others, value)] if others != () else []
    if len(taken) > 1:
        found += [change((query,), _hidden([key for key in taken if key != query], length)) for query in blind]
    return found


def _sees_only(config: ModelConfig, layer: int, query: int, length: int, taken: Sequence[int]) -> bool:
    """Return whether a query sees no other keys than these."""
    window = config.window_of(layer) or length
    first = max(0, query - window + 1)
    last = query if config.causal else min(length - 1, query + window - 1)
    return last - first < len(taken) and all(key in taken for key in range(first, last + 1))


def _hidden(keys: Sequence[int], length: int) -> Array:
    """Return the addition to the scores of all keys, for every head and query: [1, 1, key]."""
    added = np.zeros((1, 1, length), np.float32)
    added[..., list(keys)] = -np.inf
    return for_engine(added)
