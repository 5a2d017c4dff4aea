"""Measures what int8 weights cost in accuracy and gain in speed, in this process.

1. Accuracy, of the built-in model or `--model`: perplexity (e to the mean negative log-likelihood of a token) of a text
   that it was not trained on, read in windows of the model's context, and the largest difference of any logit from the
   float32 network's, over `--tokens` tokens.
2. Speed, of the 124M checkpoint in bfloat16: steps of the network with and without int8, one after the other in turn;
   the ratio is the median over the pairs, so that a machine whose speed varies affects both. It needs a quiet machine.

    python -m benchmarks.quantized --text held_out.txt
"""

import argparse
import math
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.checkpoint import make_checkpoint
from benchmarks.models import CACHE
from model.batch import Batch, Span
from model.checkpoint.registry import read_config
from model.kernels.int8_rows import Quantization
from model.kv_cache import KVCache
from model.loading.loader import DTYPES, load_model
from model.tokenization.tokenizer import Tokenizer
from server.engine.execution.threads import use_threads
from server.lifecycle.supervisor import prepare_environment
from tests.support.processes import ROOT

KINDS: tuple[tuple[str, Quantization], ...] = (
    *(("float32", "none"), ("bfloat16", "none")),
    *(("float32", "int8"), ("bfloat16", "int8")),
)
DECODING_CONTEXT = 128
CASES = {
    "decode, 1": (1, 1),
    "decode, 2": (2, 1),
    "decode, 8": (8, 1),
    "decode, 32": (32, 1),
    "prompt of 128": (1, 128),
}
"""Sequences of a step, and rows of each."""
BLOCK_SIZE, NUM_BLOCKS = 32, 400


class Network:
    """A model of one dtype and quantisation, with a cache of its own."""

    def __init__(self, folder: Path, dtype: str, quantize: Quantization, threads: int | None = None) -> None:
        config = read_config(folder)
        use_threads(threads, config.num_matrix_parameters)
        device = torch.device("cpu")
        self.model = load_model(folder, config, DTYPES[dtype], device, quantize=quantize)
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

    @torch.inference_mode()
    def seconds(self, batch: Batch, last_rows: slice) -> float:
        """Return the seconds of one step: the network over its rows, and logits of each sequence's last row."""
        started = time.perf_counter()
        self.model.logits(self.model.forward(batch, self.cache)[last_rows])
        return time.perf_counter() - started


@dataclass
class Accuracy:
    """The accuracy of one network over a text, summed up window by window."""

    loss: float = 0.0
    num_tokens: int = 0
    largest_difference: float = 0.0

    def add(self, logits: torch.Tensor, ids: torch.Tensor, exact: torch.Tensor) -> None:
        """Add a window: logits and exact [tokens, vocab]; each row but the last is asked for the token after it."""
        chances = torch.log_softmax(logits[:-1].double(), -1)
        self.loss -= chances.gather(1, ids[1:, None]).sum().item()
        self.num_tokens += len(ids) - 1
        self.largest_difference = max(self.largest_difference, (logits - exact).abs().max().item())

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.num_tokens)


def accuracies(folder: Path, text: str, num_tokens: int) -> dict[tuple[str, Quantization], Accuracy]:
    """Return the accuracy of each of KINDS over the first tokens of a text; the first kind is what the others'
    logits are compared with.
    """
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


def print_accuracies(found: dict[tuple[str, Quantization], Accuracy]) -> None:
    first = found[KINDS[0]]
    print(f"{first.num_tokens} tokens of text")
    print(f"{'weights':<24}{'perplexity':>12}{'against float32':>18}{'largest logit error':>22}")
    for (dtype, quantize), accuracy in found.items():
        name = dtype if quantize == "none" else f"{dtype}, {quantize}"
        change = 100 * (accuracy.perplexity / first.perplexity - 1)
        print(f"{name:<24}{accuracy.perplexity:>12.4f}{change:>+17.3f}%{accuracy.largest_difference:>22.4f}")


def time_steps(folder: Path, rounds: int, threads: int | None) -> None:
    """Print the steps' times without and with int8, and their ratio."""
    plain, int8 = (Network(folder, "bfloat16", quantize, threads) for quantize in ("none", "int8"))
    print(f"\n{'bfloat16, 124M':<24}{'none, ms':>12}{'int8, ms':>12}{'times as fast':>16}")
    for case, (num_sequences, num_rows) in CASES.items():
        texts = [list(range(num_rows))] * num_sequences
        start = DECODING_CONTEXT if num_rows == 1 else 0
        last_rows = slice(num_rows - 1, num_sequences * num_rows, num_rows)
        batches = {network: network.batch(texts, start) for network in (plain, int8)}
        pairs = []
        for turn in range(rounds + 2):
            order = (plain, int8) if turn % 2 else (int8, plain)
            times = {network: network.seconds(batches[network], last_rows) for network in order}
            pairs.append((times[plain], times[int8]))
        pairs = pairs[2:]  # the first steps meet memory that nobody has touched
        without, with_int8 = (1000 * statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{case:<24}{without:>12.2f}{with_int8:>12.2f}{ratio:>16.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a file of text that the model was not trained on; none: no accuracy")
    parser.add_argument("--model", type=Path, default=ROOT / "model" / "fables", help="whose accuracy is measured")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=30, help="pairs of steps; 0: no speed")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the 124M checkpoint is kept")
    options = parser.parse_args()
    if options.text is not None:
        print_accuracies(accuracies(options.model, options.text.read_text(encoding="utf-8"), options.tokens))
    if options.rounds:
        prepare_environment(options.threads)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
            fresh_process.submit(time_steps, make_checkpoint(options.cache), options.rounds, options.threads).result()


if __name__ == "__main__":
    main()
