"""Division of a GPU's memory: the largest steps are measured, and the KV cache gets the rest.

As in vLLM, `--gpu-memory-utilization` is a share of the whole GPU, and the order is: weights, a run of the largest
steps, the KV cache, then graphs. `CudaCard` measures, `CardUse` calculates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lightwell.model.checkpoint.folder import ModelLoadError, one_line

CAPTURE_BYTES = 1 << 28
"""Estimate of the bytes of captures during a step: a few pieces of attention rows (`model.hooks.attention_hooks`)."""
_FILE_BITS = {"a file of 8 bits, such as GGUF Q8_0": 8.5, "a file of 4 bits, such as GGUF Q4_K_M, AWQ or GPTQ": 4.9}
"""Average bits of a parameter in quantised files, which stay quantised on a GPU."""
_SHARE_OF_WEIGHTS = 0.75
"""Share of the free memory that weights may take, so that a cache and the largest step fit too."""


@dataclass(frozen=True, slots=True)
class CudaCard:
    """A GPU of this machine: its memory in bytes, as counted by its driver and torch."""

    device: torch.device

    def total(self) -> int:
        """Return the size of the GPU's memory."""
        return int(torch.cuda.mem_get_info(self.device)[1])

    def free(self) -> int:
        """Return the free bytes."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    def reserved(self) -> int:
        """Return the bytes that torch holds in this process, used or cached."""
        return int(torch.cuda.memory_reserved(self.device))

    def allocated(self) -> int:
        """Return the bytes of this process's tensors."""
        return int(torch.cuda.memory_allocated(self.device))

    def peak(self) -> int:
        """Return the largest number of `allocated` bytes since `reset_peak`."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def reset_peak(self) -> None:
        """Start to measure a new peak."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def release(self) -> None:
        """Wait for running work, and return torch's cached memory to the driver."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """The use of a GPU's memory, in bytes, without the KV cache."""

    total: int
    """Size of the GPU's memory."""
    utilization: float
    """Share of it that this worker may use: `--gpu-memory-utilization`."""
    free: int
    """Free bytes after the weights are loaded."""
    weights: int = 0
    activations: int = 0
    """Most bytes of tensors, without the weights, in the largest steps."""
    other: int = 0
    """Bytes of libraries since this worker began to load, outside torch's allocator."""
    graphs: int = 0
    """Estimate of the bytes of graphs and of captures."""

    @property
    def budget(self) -> int:
        """Return the bytes that this worker may use."""
        return int(self.total * self.utilization)

    @property
    def taken(self) -> int:
        """Return the used bytes of the budget."""
        return self.weights + self.activations + self.other + self.graphs

    @property
    def kv_cache(self) -> int:
        """Return the rest of the budget for the KV cache, or of the free bytes if these are fewer because of other
        processes; negative if the other uses do not fit.
        """
        return min(self.budget - self.taken, self.free - self.activations - self.graphs)

    @property
    def is_short_of_free(self) -> bool:
        """Return whether other processes, and not the budget, bound the KV cache."""
        return self.free - self.activations - self.graphs < self.budget - self.taken

    def what_would_do(self, kv_cache: int) -> str:
        """Return the settings that give a KV cache of at least `kv_cache` bytes, for an error message."""
        missing = kv_cache - self.kv_cache
        lower = "a lower --max-model-len, --max-num-batched-tokens or --max-num-seqs"
        share = math.ceil(100 * (self.taken + kv_cache) / self.total) / 100
        if self.is_short_of_free:
            return (
                f"other processes have left {as_size(self.free)} of it free: end one that has {as_size(missing)}, or "
                f"set {lower}"
            )
        return f"set it to at least {share:.2f}, or {lower}" if share <= 1 else f"no share is enough: set {lower}"

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{as_size(self.budget)} of the card's {as_size(self.total)} (--gpu-memory-utilization "
            f"{self.utilization:g}), less {as_size(self.weights)} of weights, {as_size(self.activations)} of peak "
            f"activations, {as_size(self.other)} of libraries and {as_size(self.graphs)} for graphs and captures"
        )


class CardMemory:
    """Measures the GPU memory of a worker while it starts. Make it before anything is loaded."""

    def __init__(self, card: CudaCard, utilization: float) -> None:
        """Measure the memory in use before loading: other processes, and CUDA itself (some hundred MiB)."""
        self._card = card
        self._utilization = utilization
        self._total = card.total()
        self._taken_before = self._total - card.free() - card.reserved()

    def before_loading(self) -> CardUse:
        """Return the use of the GPU before anything is loaded."""
        return CardUse(total=self._total, utilization=self._utilization, free=self._card.free())

    def measure(
        self, prefill: Callable[[], object], graphs: Callable[[], object] | None, graph_outputs: int
    ) -> CardUse:
        """Run the largest steps after the weights are loaded, and return the use of the GPU. graphs: runs the largest
        steps that are graphs; None without graphs. graph_outputs: bytes of the graphs' results.

        Raises ModelLoadError if the steps find no memory.
        """
        card = self._card
        card.release()
        weights = card.allocated()
        free = card.free()
        try:
            prefilling = self._peak_of(prefill)
            in_graphs = 0 if graphs is None else self._peak_of(graphs)
        except torch.OutOfMemoryError as error:
            raise ModelLoadError(
                f"the largest step and the weights ({as_size(weights)}) do not fit into the {as_size(free)} of free "
                f"memory on the card: lower --max-num-batched-tokens, --max-num-seqs or --max-model-len "
                f"({one_line(error)})"
            ) from None
        card.release()
        free = card.free() + card.allocated() - weights  # memory that the steps keep counts as activations
        return CardUse(
            total=self._total,
            utilization=self._utilization,
            free=free,
            weights=weights,
            activations=max(prefilling, in_graphs) - weights,
            other=max(0, self._total - card.free() - card.reserved() - self._taken_before),
            graphs=CAPTURE_BYTES + (0 if graphs is None else in_graphs - weights + graph_outputs),
        )

    def _peak_of(self, step: Callable[[], object]) -> int:
        self._card.reset_peak()
        step()
        return self._card.peak()


def no_room_for_weights(num_parameters: int, dtype: torch.dtype, free: int, error: Exception) -> str:
    """Return the error of weights that do not fit into the free bytes of a GPU, with the formats that would fit.
    num_parameters: of the matrices.
    """
    sizes = {str(dtype).removeprefix("torch."): 8 * dtype.itemsize} | _FILE_BITS
    needed = {name: int(num_parameters * bits / 8) for name, bits in sizes.items()}
    fitting = [f"{name} (about {as_size(size)})" for name, size in needed.items() if size < _SHARE_OF_WEIGHTS * free]
    advice = f"would fit: {', '.join(fitting)}" if fitting else "no file of this model would fit; choose a smaller one"
    taken = ", ".join(f"{as_size(size)} in {name}" for name, size in needed.items())
    return (
        f"the weights do not fit into the {as_size(free)} of free memory on the card. The matrices take about {taken}; "
        f"{advice} ({one_line(error)})"
    )


def as_size(num_bytes: int) -> str:
    """Return bytes for people: 1.5 GiB, or 12 MiB."""
    return f"{num_bytes / (1 << 30):.1f} GiB" if abs(num_bytes) >= 1 << 30 else f"{num_bytes >> 20} MiB"
