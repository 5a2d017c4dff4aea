"""Decides how many cache blocks to allocate. It reads what the machine has; it knows nothing of requests."""

import torch

from model.checkpoint.folder import ModelLoadError
from model.config import ModelConfig
from model.kv_cache import KVCache
from server.engine.config import EngineConfig
from server.engine.memory.memory_limit import data_bytes, free_in_share

CPU_SHARE = 0.4
"""Share of the memory that is free once the weights are loaded; the rest is for activations, captures and other
processes.
"""
GPU_SHARE = 0.85


def num_cache_blocks(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device, max_model_len: int
) -> int:
    """Return the number of blocks for `max_num_seqs` full contexts, or what fits the configured or free memory,
    including the null block.

    A context of an encoder-decoder holds what the encoder read in addition to what the decoder did. An encoder keeps
    nothing from one step to the next: it gets the fewest blocks possible. Raises ModelLoadError if not even one full
    context fits.
    """
    if model.kind == "encoder":
        return 2
    block_bytes = KVCache.bytes_per_block(model, config.block_size, dtype)
    one_context = -(-max_model_len // config.block_size)
    if model.encoder is not None:
        one_context += -(-min(max_model_len, model.encoder.max_model_len) // config.block_size)
    if config.kv_cache_bytes is not None:
        available = config.kv_cache_bytes
        blocks = available // block_bytes
    else:
        free = free_memory(device, config.memory_share)
        if device.type == "cpu":
            free //= config.tensor_parallel  # whose processes share it
        if config.worker_memory is not None and device.type == "cpu":
            free = max(0, min(free, config.worker_memory - data_bytes()))
        available = int(free * (CPU_SHARE if device.type == "cpu" else GPU_SHARE))
        blocks = min(config.max_num_seqs * one_context, available // block_bytes)
    if blocks < one_context:
        given, ranks = config.kv_cache_bytes, config.tensor_parallel
        flag = "" if given is None else f"--kv-cache-memory {given * ranks} (bytes)"
        memory, least = flag or f"{available} bytes of the free memory", one_context * block_bytes * ranks
        raise ModelLoadError(
            f"{memory} holds {blocks * config.block_size} tokens in the KV cache, fewer than one context of "
            f"{max_model_len}; set --kv-cache-memory to at least {least} or lower --max-model-len"
        )
    return blocks + 1


def free_memory(device: torch.device, share: int | None = None) -> int:
    """Return the bytes that could be allocated now, within the limits of the container if there is one, and on a CPU
    within this worker's share of the machine's memory.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = free_in_share(share)
    if free is None:
        raise ModelLoadError("/proc/meminfo does not say how much memory is free; set --kv-cache-memory")
    return free
