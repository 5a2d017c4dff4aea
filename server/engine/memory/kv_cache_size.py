"""Size of the KV cache, from the configuration and the free memory."""

from bisect import bisect_right

import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.config import ModelConfig
from lightwell.model.kv_cache import KVCache
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.memory.card_memory import CardUse, as_size
from lightwell.server.engine.memory.process_memory import data_bytes, free_in_share

CPU_SHARE = 0.4
"""Share of the free memory after loading for the KV cache; the rest is for activations, captures and other
processes.
"""


def num_cache_blocks(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    card: CardUse | None = None,
) -> int:
    """Return the number of blocks, null block included, for `max_num_seqs` full contexts, or as many as fit into the
    configured memory, the rest of a GPU's memory (`card`) or the machine's free memory, next to the sequences' states.

    A context of an encoder-decoder includes the encoder's positions. An encoder needs no cache and gets the fewest
    blocks. Raises ModelLoadError if not even one full context fits, if the configured memory never fits, or if a GPU
    has no memory for the largest step.
    """
    if model.kind == "encoder":
        if card is not None and card.kv_cache < 0:
            raise ModelLoadError(f"{card}, leave nothing: {card.what_would_do(0)}")
        return 2
    block_bytes = KVCache.bytes_per_block(model, config.block_size, dtype)
    one_context = _blocks_of_context(config, model, max_model_len)
    states = config.max_num_seqs * model.state_bytes(dtype.itemsize)
    if config.kv_cache_bytes is not None:
        _check_configured(config.kv_cache_bytes * config.tensor_parallel, config, device, card)
    available = _available(config, card)
    blocks = max(0, available - states) // block_bytes
    if config.kv_cache_bytes is None:
        blocks = min(config.max_num_seqs * one_context, blocks)
    if blocks >= one_context:
        return blocks + 1
    beside = f", with {states} bytes of states for --max-num-seqs {config.max_num_seqs}," if states else ""
    holds = (
        f"holds{beside} {blocks * config.block_size} tokens in the KV cache, fewer than one context of {max_model_len}"
    )
    if config.kv_cache_bytes is None and card is not None:
        fitting = _fitting(config, model, max_model_len, blocks)
        shorter = f"; --max-model-len {fitting} fits, and auto chooses it" if fitting else ""
        raise ModelLoadError(
            f"the remaining memory {holds}: {card}; {card.what_would_do((one_context + 1) * block_bytes + states)}"
            f"{shorter}"
        )
    given, ranks = config.kv_cache_bytes, config.tensor_parallel
    memory = f"{available} bytes of the free memory" if given is None else f"--kv-cache-memory {given * ranks} (bytes)"
    raise ModelLoadError(
        f"{memory} {holds}; set --kv-cache-memory to at least {(one_context * block_bytes + states) * ranks} or lower "
        f"--max-model-len{' or --max-num-seqs' if states else ''}"
    )


def fitting_model_len(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, max_model_len: int, card: CardUse | None = None
) -> int:
    """Return the longest context, at most `max_model_len`, that fits into the memory of `num_cache_blocks`; at least
    one block, which may not fit.
    """
    if model.kind == "encoder":
        return max_model_len
    states = config.max_num_seqs * model.state_bytes(dtype.itemsize)
    blocks = max(0, _available(config, card) - states) // KVCache.bytes_per_block(model, config.block_size, dtype)
    return _fitting(config, model, max_model_len, blocks) or min(max_model_len, config.block_size)


def _fitting(config: EngineConfig, model: ModelConfig, max_model_len: int, blocks: int) -> int:
    """Return the longest context that fits into some blocks, in whole blocks, or 0."""
    if _blocks_of_context(config, model, max_model_len) <= blocks:
        return max_model_len
    lengths = range(config.block_size, min(blocks * config.block_size, max_model_len) + 1, config.block_size)
    place = bisect_right(lengths, blocks, key=lambda length: _blocks_of_context(config, model, length))
    return lengths[place - 1] if place else 0


def _blocks_of_context(config: EngineConfig, model: ModelConfig, length: int) -> int:
    """Return the blocks of one context, the encoder's positions included."""
    blocks = -(-length // config.block_size)
    if model.encoder is not None:
        blocks += -(-min(length, model.encoder.max_model_len) // config.block_size)
    return blocks


def _available(config: EngineConfig, card: CardUse | None) -> int:
    """Return the bytes for the cache and the states."""
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes
    return _free_on_cpu(config) if card is None else max(0, card.kv_cache)


def _check_configured(num_bytes: int, config: EngineConfig, device: torch.device, card: CardUse | None) -> None:
    """Raise ModelLoadError if `num_bytes` on all ranks never fit. A GPU of unknown use is not checked."""
    on_cpu = device.type == "cpu"
    most = free_in_share(config.memory_share) if on_cpu else None if card is None else card.total
    if most is not None and num_bytes > most:
        memory = "free memory of this machine or its container" if on_cpu else "memory of the GPU"
        raise ModelLoadError(
            f"--kv-cache-memory {num_bytes} (bytes), {as_size(num_bytes)}, is more than the {memory}, {as_size(most)}; "
            "at most that is accepted"
        )


def _free_on_cpu(config: EngineConfig) -> int:
    """Return the bytes for a cache in the machine's memory, within this worker's share and a container's limits."""
    free = free_in_share(config.memory_share)
    if free is None:
        raise ModelLoadError("/proc/meminfo does not contain the free memory; set --kv-cache-memory")
    free //= config.tensor_parallel  # the ranks share it
    if config.worker_memory is not None:
        free = max(0, min(free, config.worker_memory - data_bytes()))
    return int(free * CPU_SHARE)
