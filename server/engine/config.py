"""Configuration of one engine. It is pickled from the API process to the worker, so it needs only the standard
library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SpeculationMode = Literal["auto", "off", "ngram", "draft"]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A LoRA adapter that is loaded with the model."""

    number: int
    """How requests name it; 1 or more."""
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The settings with which a worker builds its engine; the engine resolves "auto" and None, once."""

    model: Path
    """A model folder that exists on this machine."""
    dtype: str = "auto"
    """Number type of the weights: auto (the checkpoint's) | float32 | bfloat16 | float16 | float64 (in process
    only).
    """
    quantize: str = "none"
    """Quantisation of the matrices of the blocks and of the head: none | int8 | int4 | fp8 (on a GPU)."""
    device: str = "auto"
    """Where the model runs: auto | cpu | cuda | cuda:N."""
    max_model_len: int | Literal["auto"] | None = None
    """Most tokens of prompt and answer together; None means the model's own context length, and auto at most as much of
    it as the KV cache has room for.
    """
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    """Token budget of one step."""
    max_capture_tokens: int | None = None
    """Most tokens of that budget for inspection requests while text is generated; None means a number for the device.
    """
    kv_cache_bytes: int | None = None
    """Bytes of the KV cache on each of the worker's devices; None means a part of the free memory."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's whole memory that the worker may use, KV cache included; `kv_cache_bytes` overrides it."""
    memory_share: int | None = None
    """Bytes of the machine's memory for this worker when other workers start next to it; None means all free memory."""
    num_workers: int = 1
    """Workers of the server; they share a container's CPU quota."""
    worker_memory: int | None = None
    """Most bytes of each of the worker's processes; None means most of the free memory of the machine or container."""
    block_size: int = 32
    """Tokens per KV block."""
    enable_prefix_caching: bool = True
    batch_invariant: bool | None = None
    """Whether an answer's bits depend only on its own request; None means yes where the cost is small."""
    speculation: SpeculationMode = "off"
    """Drafts of next tokens (`server.engine.scheduling.speculation`): auto (where they save time) | off | ngram (always
    a fixed number) | draft (as many, of the draft model).
    """
    draft_model: Path | None = None
    """A folder with a smaller model of the same vocabulary, for drafts."""
    tensor_parallel: int = 1
    """Processes that hold the model together, each on its own device or with its share of the threads."""
    folder: Path | None = None
    """Private folder in which these processes meet; its creator removes it. None means that they make their own."""
    start_logging: Callable[[str], object] | None = None
    """Called with a name in each of these processes except the worker, so it must be picklable; None means that they
    log only warnings.
    """
    cuda_graphs: Literal["on", "off"] = "on"
    """Whether steps run as graphs on a GPU (`server.engine.execution.cuda_graphs`)."""
    kernels: Literal["auto", "native", "triton", "torch"] = "auto"
    """The kernels: `auto` uses ours where possible; `native` (CPU) and `triton` (GPU) require them and raise an error
    otherwise; `torch` uses plain torch operations.
    """
    kernel_arithmetic: Literal["auto", "float32", "bf16-dot"] = "auto"
    """How our kernels multiply bfloat16 numbers: as the CPU does best (auto), widened to float32, or with its own
    dot products (bf16-dot).
    """
    activations: Literal["dtype", "int8", "auto"] = "dtype"
    """The precision of rows that our kernels multiply by weights of 8 or 4 bits: the network's dtype, 8 bits, or the
    faster one on this CPU (auto).
    """
    adapters: tuple[AdapterFolder, ...] = ()
    max_lora_rank: int = 64
    """The highest rank of an adapter."""
    threads: int | None = None
    """Compute threads; None means OMP_NUM_THREADS, or one per core, at most two for a small model."""
