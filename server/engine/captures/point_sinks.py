"""Sinks of named points: hidden states, traces, the logit lens and head scores.

As with attention (`server.engine.captures.attention_sink`), each number depends only on its own row.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as ReadOnlySequence
from functools import partial

import numpy as np
import torch

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.head_pairs import HeadPairs
from lightwell.model.hooks.hooks import AttentionTap, Read, RowSink
from lightwell.model.hooks.point_names import sizes, stack_config
from lightwell.model.hooks.points import BY_NAME
from lightwell.model.layers.fixed_shapes import aligned_rows
from lightwell.model.network.pooling import RunningPooling, finished, splade
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.row_search import ordered_top_ids
from lightwell.server.engine.captures.attention_sink import (
    TORCH_DTYPES,
    as_array,
    check_heads,
    gathering,
    why_not,
)
from lightwell.server.engine.captures.sink import Sink
from lightwell.server.engine.captures.window import Positions, Window
from lightwell.server.engine.messages.base_task import stage_of
from lightwell.server.engine.messages.outputs import Array
from lightwell.server.engine.messages.request import (
    ClassifyTask,
    EmbedTask,
    HeadScoresTask,
    LensTask,
    PointCapture,
    SparseTask,
)
from lightwell.server.engine.sequence import Sequence

_LENS_NUMBERS = 1 << 22
"""Most logits of a lens at a time: 16 MB in float32, and about 100 MB with the numbers computed from them."""
NUM_MEASURES = 6
"""Number of measures of a row of attention, without the offsets: see HeadScoresTask."""


def stream_read(layer: int, rows: ReadOnlySequence[int], deliver: Callable[[torch.Tensor], None]) -> Read:
    """Return a read of the residual stream: 0 before the first block, i after block i."""
    if layer == 0:
        return Read("hook_resid_pre", 0, rows, None, deliver)
    return Read("hook_resid_post", layer - 1, rows, None, deliver)


def _rows_of(window: Window, positions: Positions) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return the batch rows of these positions in a window, each row once; the indices of the positions found; and for
    each of these the index of its row.
    """
    places = window.find(positions)
    found, inverse = np.unique(positions[places], return_inverse=True)
    return window.rows(found), torch.from_numpy(places), torch.from_numpy(inverse)


class PointSink(Sink):
    """The numbers of one point with a position axis: [position, ...], in the order asked for.

    Raises ValueError for a position that the input does not have, or a head or unit that the point does not have.
    """

    def __init__(self, capture: PointCapture, config: ModelConfig, length: int, encoder_length: int) -> None:
        point = BY_NAME[capture.point]
        shape = list(sizes(config, capture.stack, point, length, encoder_length, capture.layer))
        self.stage = stage_of(capture.stack, capture.point)
        self._capture = capture
        self._positions = np.arange(shape[0]) if capture.positions is None else np.array(capture.positions, np.int64)
        if np.any((self._positions < 0) | (self._positions >= shape[0])):
            raise ValueError(f"{capture.name} has positions 0 to {shape[0] - 1}; requested are {capture.positions}")
        shape[0] = len(self._positions)
        if capture.heads is not None:
            if any(not 0 <= head < shape[1] for head in capture.heads):
                raise ValueError(f"{capture.name} has heads 0 to {shape[1] - 1}; requested are {capture.heads}")
            shape[1] = len(capture.heads)
        if capture.units is not None:
            num_units = math.prod(shape[1:])
            if any(not 0 <= unit < num_units for unit in capture.units):
                raise ValueError(f"{capture.name} has units 0 to {num_units - 1}; requested are {capture.units}")
            shape[1:] = [len(capture.units)]
        self._values = gathering(shape, TORCH_DTYPES[capture.dtype])

    @property
    def num_bytes(self) -> int:
        return self._values.nbytes

    def hooks(self, window: Window) -> list[Read]:
        rows, where, source = _rows_of(window, self._positions)
        if not rows:
            return []
        capture = self._capture

        def deliver(found: torch.Tensor) -> None:
            if capture.units is not None:
                found = found.flatten(1)[:, list(capture.units)]
            found = found.cpu()
            self.problem = self.problem or why_not(found, capture.name, self._values.dtype)
            self._values[where] = found.to(self._values.dtype)[source]

        return [Read(capture.point, capture.layer, rows, capture.heads, deliver)]

    def arrays(self) -> dict[str, Array]:
        return {self._capture.name: as_array(self._values)}


class EmbeddingSink(Sink):
    """The pooled hidden states of one sequence: [d], or [token, d] when pooling is none.

    Without a layer they are the stack's output, which `take_hidden` receives.
    """

    def __init__(self, task: EmbedTask, seq: Sequence, model: Transformer) -> None:
        self.stage = "encoder" if seq.encoder_token_ids else "decoder"
        self._task = task
        self._dense = model.dense if task.dense else ()
        modes = task.modes or (task.pooling,)
        self._pooled = [RunningPooling(mode) for mode in modes]
        self.reads_first_alone = task.layer is None and set(modes) == {"cls"}
        """Whether the vector needs only the state of the first token."""

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self._pooled)

    def hooks(self, window: Window) -> list[Read]:
        rows = self._rows(window)
        if not rows or self._task.layer is None:
            return []
        return [stream_read(self._task.layer, rows, self._keep)]

    def take_hidden(self, window: Window, hidden: torch.Tensor) -> None:
        """Take the stack's output, [T, d] of the whole batch."""
        rows = self._rows(window)
        if self.reads_first_alone:
            rows = rows[:1]
        if rows and self._task.layer is None:
            self._keep(hidden[rows.start : rows.stop].clone())

    @staticmethod
    def _rows(window: Window) -> range:
        skip = max(0, window.captured - window.start)
        return range(window.first_row + skip, window.first_row + window.num_rows)

    def mark(self) -> Callable[[], None]:
        before = [each.copy() for each in self._pooled]

        def take_back() -> None:
            self._pooled = [each.copy() for each in before]

        return take_back

    def _keep(self, hidden: torch.Tensor) -> None:
        if not self._dense and len(self._pooled) == 1:
            hidden = hidden[:, : self._task.dimensions]
        hidden = hidden.contiguous()
        for each in self._pooled:
            each.add(hidden)

    def arrays(self) -> dict[str, Array]:
        vectors = finished(self._vectors(), self._task.normalize, self._task.dimensions, self._dense)
        return {"embedding": as_array((vectors if self._task.pooling == "none" else vectors[0]).float())}

    def _vectors(self) -> torch.Tensor:
        return torch.cat([each.vectors() for each in self._pooled], -1)


class ClassifierSink(EmbeddingSink):
    """Gathers the input state of the classification head; the answer is the head's logits [label].

    Raises ValueError when the model has no such head.
    """

    def __init__(self, task: ClassifyTask, seq: Sequence, model: Transformer) -> None:
        if model.classifier is None:
            raise ValueError(f"{model.config.architecture} has no classification head")
        super().__init__(EmbedTask(pooling=model.classifier.config.state, normalize=False), seq, model)
        self._classifier = model.classifier

    def arrays(self) -> dict[str, Array]:
        return {"logits": as_array(self._classifier(self._vectors()[0]))}


class SparseSink(EmbeddingSink):
    """Gathers the states of all tokens; the answer is the head's words, with their weights.

    Raises ValueError when the model is no encoder with a head.
    """

    def __init__(self, task: SparseTask, seq: Sequence, model: Transformer) -> None:
        if model.head is None or model.decoder is not None:
            raise ValueError(f"{model.config.architecture} has no masked-language-model head")
        super().__init__(EmbedTask(pooling="none", normalize=False), seq, model)
        self._weights = partial(splade, logits_of=model.logits, is_sum=task.is_sum, is_log_twice=task.is_log_twice)

    def arrays(self) -> dict[str, Array]:
        weights = self._weights(self._vectors()).cpu()
        words = weights.nonzero().flatten()
        return {"sparse.indices": as_array(words.int()), "sparse.values": as_array(weights[words])}


class LensSink(Sink):
    """The logit lens at each layer: the numbers of LensTask, [layer, position, ...].

    Raises ValueError when the model has no head, or computes its logits from several streams.
    """

    def __init__(self, task: LensTask, seq: Sequence, model: Transformer) -> None:
        if model.head is None:
            raise ValueError(f"{model.config.architecture} has no language-model head, so it computes no logits")
        if model.config.altup is not None:
            raise ValueError(f"{model.config.architecture} computes its logits from several streams, not from one")
        self.stage = "encoder" if model.decoder is None else "decoder"
        vocab = model.config.vocab_size
        self._layers = task.layers
        self._logits_of = model.lens
        self._piece = max(1, _LENS_NUMBERS // vocab)
        self._positions = np.array(task.positions, np.int64)
        targets = torch.tensor(task.target_token_ids, dtype=torch.int64)
        self._targets = targets[:, None] if task.is_target_of_position else targets.expand(len(task.positions), -1)
        num_targets = self._targets.shape[1]
        shape, k = (len(task.layers), len(task.positions)), min(task.top_k, vocab)
        self._ids = torch.zeros(*shape, k, dtype=torch.int32)
        self._logprobs = torch.zeros(*shape, k)
        self._entropy = torch.zeros(shape)
        self._target_logprobs = torch.zeros(*shape, num_targets)
        self._target_ranks = torch.zeros(*shape, num_targets, dtype=torch.int32)

    @property
    def num_bytes(self) -> int:
        kept = (self._ids, self._logprobs, self._entropy, self._target_logprobs, self._target_ranks)
        return sum(each.nbytes for each in kept)

    def hooks(self, window: Window) -> list[Read]:
        rows, where, source = _rows_of(window, self._positions)
        if not rows:
            return []

        def deliver(i: int, stream: torch.Tensor) -> None:
            for first in range(0, len(where), self._piece):
                part = slice(first, first + self._piece)
                self._keep(i, where[part], self._logits_of(stream[source[part].to(stream.device)]))

        return [stream_read(layer, rows, partial(deliver, i)) for i, layer in enumerate(self._layers)]

    def _keep(self, i: int, where: torch.Tensor, logits: torch.Tensor) -> None:
        """Keep the numbers of logits [n, vocab] of the answer's positions `where`, at the `i`-th of its layers."""
        logprobs = aligned_rows(logits).log_softmax(-1)[:, : logits.shape[1]]  # [n, vocab]
        if self._ids.shape[-1]:
            ids = ordered_top_ids(logits, self._ids.shape[-1])
            self._ids[i, where] = ids.int().cpu()
            self._logprobs[i, where] = logprobs.gather(1, ids).float().cpu()
        # In float64: torch adds the float32 numbers of a single row in another order.
        self._entropy[i, where] = torch.special.entr(logprobs.double().exp()).sum(-1).float().cpu()
        if self._targets.numel():
            wanted = self._targets[where].to(logits.device)  # [n, target]
            self._target_logprobs[i, where] = logprobs.gather(1, wanted).float().cpu()
            larger = [(logits > column).sum(-1) for column in logits.gather(1, wanted).T[..., None]]
            self._target_ranks[i, where] = (torch.stack(larger, 1) + 1).int().cpu()

    def arrays(self) -> dict[str, Array]:
        found = {"ids": self._ids, "logprobs": self._logprobs, "entropy": self._entropy}
        if self._targets.numel():
            found |= {"target_logprobs": self._target_logprobs, "target_ranks": self._target_ranks}
        return {f"lens.{name}": as_array(numbers) for name, numbers in found.items()}


class HeadScoresSink(Sink, RowSink):
    """A few measures of each row of attention: [pair, query, measure], float32.

    Raises ValueError for a head that the model lacks.
    """

    def __init__(self, task: HeadScoresTask, seq: Sequence, model: Transformer) -> None:
        check_heads(task.pairs, task.part, model.config)
        token_ids = seq.encoder_token_ids if task.part == "encoder" else seq.token_ids
        self.stage = "encoder" if task.part == "encoder" else "decoder"
        self._ids = torch.tensor(token_ids)
        self._offsets = task.offsets
        own = stack_config(model.config, task.part)
        self._pairs = HeadPairs.of(task.pairs, own.num_layers, own.num_heads)
        self._queries = torch.empty(0, dtype=torch.int64)
        """Positions of the window's rows."""
        self._scores = torch.zeros(len(task.pairs), len(token_ids), NUM_MEASURES + len(task.offsets))

    @property
    def num_bytes(self) -> int:
        return self._scores.nbytes

    def hooks(self, window: Window) -> list[AttentionTap]:
        positions = window.find(np.arange(len(self._ids)))
        if not len(positions):
            return []
        self._queries = torch.from_numpy(positions)
        return [AttentionTap(window.span, window.rows(positions), self._pairs, "pattern", self)]

    def take(self, layer: int, first: int, rows: torch.Tensor) -> None:
        queries = self._queries[first : first + rows.shape[1]]
        slots = torch.tensor(self._pairs.places[layer])
        self._scores[slots[:, None], queries] = self._measure(rows.cpu(), queries)

    def _measure(self, rows: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """Return [heads, n, measure] of rows [heads, n, keys] of these queries. Sums are in float64, so that keys of
        later chunks, with weight 0, change nothing.
        """
        keys = torch.arange(rows.shape[2])
        before = torch.zeros(len(queries), len(keys), dtype=torch.bool)  # the key after an earlier copy of the query
        ids = self._ids[: len(keys)]
        before[:, 1:] = (ids[:-1] == self._ids[queries][:, None]) & (keys[:-1] < queries[:, None])
        distance = (queries[:, None] - keys).abs()
        wide = rows.double()
        found = [
            self._at(rows, queries - 1),
            self._at(rows, queries),
            rows[:, :, 0],
            torch.special.entr(wide).sum(-1),
            (wide * distance).sum(-1),
            (wide * before).sum(-1),
            *(self._at(rows, queries - offset) for offset in self._offsets),
        ]
        return torch.stack([each.float() for each in found], -1)

    @staticmethod
    def _at(rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return the weight on one key of each row, 0 if there is no such key: keys [n] -> [heads, n]."""
        there = (keys >= 0) & (keys < rows.shape[2])
        return rows[:, torch.arange(len(keys)), keys.clamp(0, rows.shape[2] - 1)] * there

    def arrays(self) -> dict[str, Array]:
        return {"heads.scores": as_array(self._scores)}
