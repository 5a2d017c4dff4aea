"""Perplexity of a text and largest logit error of a network in several dtypes and with int8 weights."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kernels.int8_rows import Quantization
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import DTYPES, load_model
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.engine.execution.threads import use_threads

KINDS: tuple[tuple[str, Quantization], ...] = (
    *(("float32", "none"), ("bfloat16", "none")),
    *(("float32", "int8"), ("bfloat16", "int8")),
)
BLOCK_SIZE, NUM_BLOCKS = 32, 400


class Network:
    """A model of one dtype and quantisation, with a cache of its own."""

    def __init__(
        self, folder: Path, dtype: str, quantize: Quantization, threads: int | None = None, **options: bool
    ) -> None:
        config = read_config(folder)
        use_threads(threads, config.num_matrix_parameters)
        device = torch.device("cpu")
        self.model = load_model(folder, config, DTYPES[dtype], device, quantize=quantize, **options)
        self.cache = KVCache(config, NUM_BLOCKS, BLOCK_SIZE, DTYPES[dtype], device)

    def batch(self, texts: list[list[int]], start: int = 0) -> Batch:
        """Return one span for each text, from position `start` on."""
        num_blocks = -(-(start + len(texts[0])) // BLOCK_SIZE)
        spans = [
            Span(ids, start, list(range(1 + i * num_blocks, 1 + (i + 1) * num_blocks)), self.model.config.num_layers)
            for i, ids in enumerate(texts)
        ]
        return Batch(spans, BLOCK_SIZE, self.model.device)

    @torch.inference_mode()
    def all_logits(self, ids: list[int]) -> torch.Tensor:
        """Return the logits [tokens, vocab] float32 of one text that fits the context."""
        hidden = self.model.forward(self.batch([ids]), self.cache)[: len(ids)]
        return self.model.logits(hidden).float()


@dataclass
class Accuracy:
    """The accuracy of one network over a text, summed up window by window."""

    loss: float = 0.0
    num_tokens: int = 0
    largest_difference: float = 0.0

    def add(self, logits: torch.Tensor, ids: torch.Tensor, exact: torch.Tensor) -> None:
        """Add a window: logits and exact [tokens, vocab]; each row but the last predicts the token after it."""
        chances = torch.log_softmax(logits[:-1].double(), -1)
        self.loss -= chances.gather(1, ids[1:, None]).sum().item()
        self.num_tokens += len(ids) - 1
        self.largest_difference = max(self.largest_difference, (logits - exact).abs().max().item())

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.num_tokens)


def accuracies(folder: Path, text: str, num_tokens: int) -> dict[tuple[str, Quantization], Accuracy]:
    """Return the accuracy of each of KINDS over the first tokens of a text, compared with the first kind's logits."""
    networks = {kind: Network(folder, *kind) for kind in KINDS}
    ids = Tokenizer.from_folder(folder).encode(text[: 8 * num_tokens], add_special_tokens=False).ids[:num_tokens]
    window = read_config(folder).max_model_len
    found = {kind: Accuracy() for kind in KINDS}
    for first in range(0, len(ids) - 1, window):
        part = ids[first : first + window]
        if len(part) < 2:
            break
        exact = networks[KINDS[0]].all_logits(part)
        for kind, network in networks.items():
            found[kind].add(network.all_logits(part), torch.tensor(part), exact)
    return found
