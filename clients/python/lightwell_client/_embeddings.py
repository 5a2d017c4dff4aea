"""Embeddings as vectors and as a matrix. It reads base64 or lists.

Numbers are kept as packed float32; numpy is imported only for a matrix.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from lightwell_client._arrays import require_numpy
from lightwell_client._exceptions import InvalidResponse, MissingDependency
from lightwell_client._mapping import as_asked, require_pandas
from lightwell_client._notebook import NotebookView, described, listed, maps, page
from lightwell_client._plots import heat_map
from lightwell_client._results import Usage

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Embedding:
    """One input's vector, or with `pooling="none"` one vector for each of its tokens."""

    index: int
    data: bytes = field(repr=False)
    """The vectors one after another, float32, little endian."""
    num_vectors: int = 1
    tokens: tuple[str, ...] | None = None
    """The input's tokens, with `pooling="none"`."""

    def __repr__(self) -> str:
        axis, length = "input" if self.tokens is None else "token", len(self.data) // FLOAT32_BYTES // self.num_vectors
        return f"Embedding(index={self.index}, {described((axis, 'd'), (self.num_vectors, length), 'float32')})"

    def _names(self, axis: str, length: int) -> list[str]:
        return list(self.tokens) if axis == "token" and self.tokens is not None else _numbers(axis, length)

    @property
    def vector(self) -> tuple[float, ...]:
        """Return the vector of a pooled embedding; this needs no numpy.

        Raises:
            ValueError: there is one vector per token.
        """
        if self.tokens is not None or self.num_vectors != 1:
            raise ValueError(f"there are {self.num_vectors} vectors, one a token: use `matrix`")
        return struct.unpack(f"<{len(self.data) // FLOAT32_BYTES}f", self.data)

    @property
    def outputs(self) -> Self:
        """Return this embedding: vLLM has the vector there."""
        return self

    @property
    def embedding(self) -> list[float]:
        """Return `vector` as a list, by vLLM's name. Raises its errors."""
        return list(self.vector)

    @property
    def matrix(self) -> Array:
        """Return the vectors as [token, d], float32; [1, d] when pooled; each call returns a new array.

        Raises:
            MissingDependency: numpy is not installed.
        """
        np = require_numpy("a matrix of embeddings")
        flat: Array = np.frombuffer(self.data, "<f4").copy()
        return flat.reshape(self.num_vectors, -1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the vector of a pooled embedding, [d], else the vectors, [token, d]."""
        return as_asked(self.matrix[0] if self.tokens is None else self.matrix, dtype, copy)


@dataclass(frozen=True, slots=True)
class Embeddings(NotebookView):
    """The answer to `embed`: as many embeddings as inputs, in their order."""

    model: str
    data: tuple[Embedding, ...]
    usage: Usage | None = field(default=None, repr=False)
    compute_dtype: str | None = None
    """The dtype in which the network computed these numbers, whatever they were sent in."""

    def __iter__(self) -> Iterator[Embedding]:
        return iter(self.data)

    def __repr__(self) -> str:
        """Return the fields in a line, then a line for each input."""
        return listed(
            f"Embeddings(model={self.model!r}, compute_dtype={self.compute_dtype!r})", [*map(repr, self.data)]
        )

    def _repr_html_(self) -> str | None:
        """Return the notebook view: one heat map of all vectors, or one per input if there is a vector per token.
        Without numpy it returns None, and the notebook shows the text of print.
        """
        try:
            require_numpy("a heat map")
        except MissingDependency:
            return None
        if all(one.tokens is None for one in self.data):
            return page(repr(self), [], maps("vectors", self.matrix, ("input", "d"), _numbers), 1)
        pictures = (
            picture
            for one in self.data
            for picture in maps(f"input {one.index}", one.matrix, ("token", "d"), one._names)
        )
        return page(repr(self), [], pictures, len(self.data))

    def plot(self, ax: Any = None) -> Any:
        """Draw the vectors as a heat map, a row for each input, or for each token if there is a vector per token.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        matrix = require_numpy("plot()").concatenate([one.matrix for one in self.data])
        axis, columns = ("input" if self.data[0].tokens is None else "token"), _numbers("d", matrix.shape[1])
        rows = [name for one in self.data for name in (one.tokens or (str(one.index),))]
        return heat_map(
            matrix, rows, columns, names=(axis, "d"), label="value", title=f"embeddings, {self.model}", ax=ax
        )

    def to_pandas(self) -> Any:
        """Return the vectors as a data frame, a row for each input.

        Raises:
            MissingDependency: pandas is not installed.
            ValueError: there is one vector per token: take each embedding's own `matrix`.
        """
        pandas, matrix = require_pandas(), self.matrix
        return pandas.DataFrame(matrix, index=pandas.RangeIndex(len(matrix), name="input"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return `matrix`, for `np.asarray`. Raises its errors."""
        return as_asked(self.matrix, dtype, copy)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Embedding:
        return self.data[index]

    @property
    def vectors(self) -> list[tuple[float, ...]]:
        """Return one vector per input; this needs no numpy.

        Raises:
            ValueError: there is one vector per token.
        """
        return [embedding.vector for embedding in self.data]

    @property
    def matrix(self) -> Array:
        """Return the vectors as [input, d], float32.

        Raises:
            MissingDependency: numpy is not installed.
            ValueError: there is one vector per token: take each embedding's own `matrix`.
        """
        np = require_numpy("a matrix of embeddings")
        if any(embedding.tokens is not None for embedding in self.data):
            raise ValueError("there is one vector a token: use the `matrix` of each embedding")
        stacked: Array = np.concatenate([embedding.matrix for embedding in self.data])
        return stacked


def parse_embeddings(body: Any, count: int) -> Embeddings:
    """Read the embeddings from the JSON body of /v1/embeddings, for `count` inputs.

    Raises:
        InvalidResponse: fields are missing, or a vector cannot be read.
    """
    try:
        entries = sorted(body["data"], key=lambda entry: int(entry["index"]))
        data = tuple(_parse_entry(entry) for entry in entries)
        usage = Usage.model_validate(body["usage"]) if body.get("usage") else None
        if [embedding.index for embedding in data] != list(range(count)):
            raise ValueError(f"{count} embeddings were requested; {[e.index for e in data]} came")
        dtype = body.get("compute_dtype")
        return Embeddings(model=str(body.get("model", "")), data=data, usage=usage, compute_dtype=dtype)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise InvalidResponse(f"not an embeddings answer: {type(error).__name__}: {error}") from error


def _parse_entry(entry: dict[str, Any]) -> Embedding:
    tokens, value = entry.get("tokens"), entry["embedding"]
    if isinstance(value, list) and value and isinstance(value[0], list | str):
        rows = [_packed(row) for row in value]
        num_vectors = len(rows)
        if len({len(row) for row in rows}) != 1:
            raise ValueError("the vectors of one input differ in length")
        data = b"".join(rows)
    else:
        data, num_vectors = _packed(value), 1 if tokens is None else len(tokens)
    if tokens is not None and num_vectors != len(tokens):
        raise ValueError(f"{num_vectors} vectors came for {len(tokens)} tokens")
    if not data or not num_vectors or len(data) % (FLOAT32_BYTES * num_vectors):
        raise ValueError(f"{len(data)} bytes do not make {num_vectors} vectors of float32")
    return Embedding(int(entry["index"]), data, num_vectors, None if tokens is None else tuple(tokens))


def _packed(value: str | list[float]) -> bytes:
    """Return base64 or numbers as packed float32."""
    return base64.b64decode(value, validate=True) if isinstance(value, str) else struct.pack(f"<{len(value)}f", *value)


def _numbers(_: str, length: int) -> list[str]:
    return [str(number) for number in range(length)]
