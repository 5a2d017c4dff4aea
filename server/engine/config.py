"""How one engine is to be built. Standard library only: it is pickled from the API process to the worker.

Knows nothing of flags or HTTP limits; those are `server.config.settings`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything the worker needs to build its engine; "auto" and None are resolved by the engine, once."""

    model: Path
    """A model folder that exists on this machine."""
    dtype: str = "auto"
    """auto (the checkpoint's) | float32 | bfloat16 | float16 | float64 (in process only)."""
    quantize: str = "none"
    """none | int8: how the matrices of the blocks and of the head are kept."""
    device: str = "auto"
    """auto | cpu | cuda | cuda:N."""
    max_model_len: int | None = None
    """Most tokens of prompt and answer together; None is the model's own context."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    """Token budget of one step."""
    max_capture_tokens: int | None = None
    """Of that, most for what only looks inside while text is generated; `Engine.from_folder` chooses by the device."""
    kv_cache_bytes: int | None = None
    """On each of the worker's devices; None lets the engine choose from the memory that is free."""
    memory_share: int | None = None
    """Bytes of the machine's memory that are this worker's, where others begin beside it; None: all that is free."""
    num_workers: int = 1
    """Workers of the server, which share what a container's CPU quota gives."""
    worker_memory: int | None = None
    """Most bytes of each of the worker's processes; None is what a container leaves it, if there is one."""
    block_size: int = 32
    """Tokens per KV block."""
    enable_prefix_caching: bool = True
    batch_invariant: bool | None = None
    """Whether an answer's bits may depend on its own request alone; None is where that costs little."""
    tensor_parallel: int = 1
    """Processes that hold the model together, each on a device of its own or with its share of the threads."""
    folder: Path | None = None
    """Where these meet, which nobody else may enter and somebody else removes; None: one of their own."""
    start_logging: Callable[[str], object] | None = None
    """Called in each of these but the worker, with a name for it, and so pickled; None: they log warnings alone."""
    cuda_graphs: str = "compiled"
    """Steps of single tokens on a GPU (`server.engine.execution.cuda_graphs`): compiled | plain | off."""
    kernels: Literal["auto", "native", "torch"] = "auto"
    """What computes on a CPU: our kernels where they can, our kernels or an error, or plain torch operations."""
    kernel_arithmetic: Literal["auto", "float32", "bf16-dot"] = "auto"
    """How these multiply bfloat16 numbers: as the CPU is best at, widened to float32, or by its own dot products."""
    threads: int | None = None
    """Compute threads; None is what OMP_NUM_THREADS says or one per core, two at most for a small model."""
