"""The attention rows that come with generated tokens. They are kept as they came; numpy is needed to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from lightwell_client._arrays import array_from_json
from lightwell_client._result import Result

if TYPE_CHECKING:
    from lightwell_client._arrays import Array


class TokenAttention(Result):
    """The row that chose each token: its query is the position before the token, its keys all positions up to that.

    `array` has the axes that `axes` names, by default [layer, head, query, key], one query per token. Rows of several
    tokens are as long as the longest, zero beyond their own keys.
    """

    axes: tuple[str, ...] = ()
    shape: tuple[int, ...] = (0,)
    dtype: str = "float32"
    kind: str = "pattern"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    pairs: tuple[tuple[int, int], ...] | None = None
    query_positions: tuple[int, ...] = ()
    prompt: MaybeTokenAttention = None
    """The prompt's rows, with the first token, if requested."""
    attention_data: Any = Field(default=(), validation_alias="attention", repr=False)
    values_data: Any = Field(default=None, validation_alias="values", repr=False)
    indices_data: Any = Field(default=None, validation_alias="indices", repr=False)

    @property
    def array(self) -> Array:
        """Return the numbers; with `top_k` the largest of each row, with their positions in `indices`.

        Raises:
            MissingDependency: numpy is not installed.
            InvalidResponse: the numbers do not fit the shape.
        """
        data = self.attention_data if self.values_data is None else self.values_data
        return array_from_json(data, self.dtype, self.shape)

    @property
    def indices(self) -> Array | None:
        """Return the key positions of the values under `top_k`, -1 if a row has fewer. Raises what `array` raises."""
        return None if self.indices_data is None else array_from_json(self.indices_data, "int32", self.shape)


def _none_if_empty(value: Any) -> Any:
    return value or None


MaybeTokenAttention = Annotated[TokenAttention | None, BeforeValidator(_none_if_empty)]
"""A chunk that brings text and no token has an empty object here: that is None."""

TokenAttention.model_rebuild()
