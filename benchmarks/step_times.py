"""Times steps of two networks of one checkpoint in turn, so that variations of the machine's speed affect both."""

import time
from collections.abc import Mapping

import torch

from lightwell.model.batch import Batch
from tests.support.accuracy import Network

DECODING_CONTEXT = 128


@torch.inference_mode()
def seconds(network: Network, batch: Batch, last_rows: slice) -> float:
    """Return the seconds of one step: the network over its rows, and logits of each sequence's last row."""
    started = time.perf_counter()
    network.model.logits(network.model.forward(batch, network.cache)[last_rows])
    return time.perf_counter() - started


def timed_pairs(
    one: Network, other: Network, cases: Mapping[str, tuple[int, int]], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return `rounds` pairs of seconds for each case: of one network and of the other. cases: the sequences of a step,
    and the rows of each.
    """
    pairs = {}
    for case, (num_sequences, num_rows) in cases.items():
        texts = [list(range(num_rows))] * num_sequences
        start = DECODING_CONTEXT if num_rows == 1 else 0
        last_rows = slice(num_rows - 1, num_sequences * num_rows, num_rows)
        batches = {network: network.batch(texts, start) for network in (one, other)}
        found = []
        for turn in range(rounds + 2):
            order = (one, other) if turn % 2 else (other, one)
            times = {network: seconds(network, batches[network], last_rows) for network in order}
            found.append((times[one], times[other]))
        pairs[case] = found[2:]  # the first steps include page faults
    return pairs
