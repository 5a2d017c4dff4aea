"""Measure the upper limits of this machine: memory bandwidth, large matrix products, and the products of one step.

A step of a model consists of matrix products and other work. `Products` times only the products, with the server's
weight layout; as in a step, the weights are read from memory each time. Large products are torch's (oneDNN or MKL).
"""

import statistics
import time
from collections.abc import Callable

import torch

from lightwell.model.config import ModelConfig
from lightwell.model.kernels.choice import AUTO
from lightwell.model.kernels.forms import Weight, lay_weight

_LARGE = 2048
_READ_BYTES = 1 << 29


def seconds(function: Callable[[], object], repeats: int = 7) -> float:
    """Return the median time of a call, after one warm-up call."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def bytes_per_second() -> float:
    """Return the bytes that all threads read from memory per second: a sum over an array larger than the caches."""
    data = torch.ones(_READ_BYTES // 4)
    return _READ_BYTES / seconds(data.sum)


def operations_per_second(dtype: torch.dtype) -> float:
    """Return the operations a second of a large product (two for each multiplication and addition)."""
    weight, x = torch.randn(2, _LARGE, _LARGE).to(dtype)
    return 2 * _LARGE**3 / seconds(lambda: x @ weight)


class Products:
    """The matrix products of a Llama-shaped network, without norms, attention and activations."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        shapes = [(heads, width), (width, config.num_heads * config.head_dim)]
        shapes += [(2 * inner, width), (width, inner)]

        def laid(outputs: int, inputs: int) -> Weight:
            return lay_weight(torch.randn(outputs, inputs).to(dtype), arithmetic=AUTO.bfloat16_arithmetic())

        self._layers = [(laid(*shape), shape[1]) for _ in range(config.num_layers) for shape in shapes]
        self._head = laid(config.vocab_size, width), width
        self._dtype = dtype

    def step_seconds(self, rows: int, sampled_rows: int) -> float:
        """Return the seconds of one pass over `rows` tokens, with logits of `sampled_rows` of them."""
        x = {inputs: torch.randn(rows, inputs).to(self._dtype) for _, inputs in self._layers}
        last = torch.randn(sampled_rows, self._head[1]).to(self._dtype)

        def step() -> None:
            for weight, inputs in self._layers:
                weight.multiply(x[inputs])
            self._head[0].multiply(last)

        with torch.inference_mode():
            return seconds(step)
