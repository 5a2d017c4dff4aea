"""Loading of an engine: threads, device, dtype, the network, its cache, and warm-up steps. It resolves the "auto" and
None of a configuration, once. On a GPU the largest steps run before the cache is made, which gets the rest of the
memory.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model, resolve_device, resolve_dtype, resolve_quantization
from lightwell.model.network.transformer import Transformer
from lightwell.model.ranks.leader import LeadingTransformer
from lightwell.server.engine.config import EngineConfig, SpeculationMode
from lightwell.server.engine.execution.compile_cache import use_writable_cache
from lightwell.server.engine.execution.cuda_graphs import StepSizes, has_graphs, kept_bytes
from lightwell.server.engine.execution.device_executor import DeviceExecutor
from lightwell.server.engine.execution.device_runner import DeviceRunner
from lightwell.server.engine.execution.draft_model import DraftModel, load_draft
from lightwell.server.engine.execution.kernel_choice import choose_kernels
from lightwell.server.engine.execution.profile_run import ProfileRun
from lightwell.server.engine.execution.threads import use_threads
from lightwell.server.engine.execution.warm_up import warm_up
from lightwell.server.engine.info import log_stored_weights
from lightwell.server.engine.memory.card_memory import CardMemory, CardUse, CudaCard, as_size, no_room_for_weights
from lightwell.server.engine.memory.kv_cache_size import fitting_model_len, num_cache_blocks
from lightwell.server.engine.messages.outputs import failure_of
from lightwell.server.engine.tensor_parallel.device_steps import LeadingExecutor
from lightwell.server.engine.tensor_parallel.load import load_shared
from lightwell.server.engine.tensor_parallel.ranks import Ranks

logger = logging.getLogger(__name__)

_CAPTURE_TOKENS = {"cpu": 32, "cuda": 256}
"""Most rows of captures in a step with running text, by device; `capture_budget` adapts their number."""


class Loaded(NamedTuple):
    """The parts of an engine."""

    model: Transformer
    cache: KVCache
    config: EngineConfig
    """With the number of capture tokens for the device."""
    max_model_len: int
    """Most tokens of prompt and answer together."""


def load(config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> Loaded:
    """Load `config.model`, size the cache and run one step, so that the first request finds a warm engine.

    Raises ModelLoadError (a ValueError) for a folder or settings that cannot be served.
    """
    model_config = read_config(config.model)
    use_threads(config.threads, model_config.num_matrix_parameters, config.tensor_parallel, config.num_workers)
    device = resolve_device(config.device)
    if device.type == "cuda":
        use_writable_cache(config.folder)
    if device.index is not None:  # one of several GPUs: compiled kernels run on the current one
        torch.cuda.set_device(device)
    dtype = resolve_dtype(config.dtype, model_config, device)
    kernels = choose_kernels(config, dtype, device)
    quantize = resolve_quantization(config.quantize, dtype, device, kernels)
    max_model_len = config.max_model_len if isinstance(config.max_model_len, int) else model_config.max_model_len
    card = CardMemory(CudaCard(device), config.gpu_memory_utilization) if device.type == "cuda" else None
    model: Transformer
    ranks: Ranks | None = None
    if config.tensor_parallel > 1:
        model, ranks = load_shared(config, model_config, dtype, device, kernels, max_model_len, progress)
    else:
        # Checked before loading too: the tables of a context that does not fit would fill the memory.
        empty = None if card is None else card.before_loading()
        max_model_len = _context(config, model_config, dtype, max_model_len, empty)
        num_cache_blocks(config, model_config, dtype, device, max_model_len, empty)
        try:
            model = load_model(
                config.model,
                model_config,
                dtype,
                device,
                max_model_len=max_model_len,
                kernels=kernels,
                batch_invariant=config.batch_invariant,
                quantize=quantize,
                progress=progress,
            )
        except torch.OutOfMemoryError as error:
            free = 0 if empty is None else empty.free
            raise ModelLoadError(no_room_for_weights(model_config.num_matrix_parameters, dtype, free, error)) from None
    log_stored_weights(model, is_kept=quantize == "none")
    use = None if card is None or config.kv_cache_bytes is not None else measure(card, model, config, max_model_len)
    max_model_len = _context(config, model.cache_config, dtype, max_model_len, use)
    num_blocks = num_cache_blocks(config, model.cache_config, dtype, device, max_model_len, use)
    _log_cache(model, config, num_blocks, use)
    cache = KVCache(
        model.cache_config,
        num_blocks,
        config.block_size,
        dtype,
        device,
        num_sequences=config.max_num_seqs,
        keys_in_rows=model.keys_in_rows,
    )
    _log_states(cache, model.config, dtype)
    config = replace(config, max_capture_tokens=config.max_capture_tokens or _CAPTURE_TOKENS[device.type])
    try:
        warm_up(model, cache, max_model_len, config.max_num_seqs, config.max_num_batched_tokens)
    except (MemoryError, RuntimeError) as error:
        if failure_of(error).reason != "memory":
            raise
        raise ModelLoadError(
            "the largest step needs more memory than there is: lower --max-num-batched-tokens "
            f"({config.max_num_batched_tokens}), --max-num-seqs ({config.max_num_seqs}) or --max-model-len "
            f"({max_model_len})"
        ) from error
    if ranks is not None:
        ranks.settle(config.worker_memory)
    return Loaded(model, cache, config, max_model_len)


def _context(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, max_model_len: int, use: CardUse | None
) -> int:
    """Return the longest context for `--max-model-len auto`, or else `max_model_len`."""
    if config.max_model_len != "auto":
        return max_model_len
    found = fitting_model_len(config, model, dtype, max_model_len, use)
    logger.info("--max-model-len auto: at most %d tokens fit", found)
    return found


def _log_states(cache: KVCache, model: ModelConfig, dtype: torch.dtype) -> None:
    if cache.num_sequences:
        states = as_size(cache.num_sequences * model.state_bytes(dtype.itemsize))
        logger.info(
            "layers without attention keep %s for %d sequences; prefixes are not reused", states, cache.num_sequences
        )


def _log_cache(model: Transformer, config: EngineConfig, num_blocks: int, use: CardUse | None) -> None:
    size = num_blocks * KVCache.bytes_per_block(model.cache_config, config.block_size, model.dtype)
    size += config.max_num_seqs * model.config.state_bytes(model.dtype.itemsize)
    tokens = 0 if model.decoder is None else (num_blocks - 1) * config.block_size
    if tokens or use is not None:
        bound = use or "a smaller --kv-cache-memory lowers it"
        logger.info("the KV cache has %s for %d tokens: %s", as_size(size if tokens else 0), tokens, bound)


def measure(card: CardMemory, model: Transformer, config: EngineConfig, max_model_len: int) -> CardUse:
    """Return the memory of a GPU in the network's largest steps. Raises ModelLoadError if they find none."""
    largest = ProfileRun(
        model=model,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
    )
    if not has_graphs(model, config):
        return card.measure(largest.prefill, None, 0)
    kept = kept_bytes(model.config, model.dtype, config.max_num_seqs, config.max_num_batched_tokens)
    return card.measure(largest.prefill, largest.graphs, kept)


def speculation_of(model: Transformer, config: EngineConfig) -> SpeculationMode:
    """Return the source of drafts for a network; `auto` turns them off where they could change an answer. Raises
    ModelLoadError if another setting must be refused.
    """
    if model.decoder is None or config.speculation == "off":
        return "off"
    problem = ""
    if model.config.recurrence is not None:
        problem = f"{model.config.architecture} has recurrent layers, which cannot take back a wrong draft"
    elif model.device.type != "cpu":
        problem = "drafts are implemented for CPUs"
    elif not model.batch_invariant:
        problem = (
            "with these kernels and this dtype, drafts change the bits of an answer unless --batch-invariant is set"
        )
    if problem and config.speculation != "auto":
        raise ModelLoadError(f"--speculation {config.speculation}: {problem}; auto and off are accepted")
    return "off" if problem else config.speculation


def draft_model_of(model: Transformer, cache: KVCache, config: EngineConfig) -> DraftModel | None:
    """Return the draft model of a configuration, or None. Raises ModelLoadError for one that does not fit."""
    if config.speculation != "draft" or model.decoder is None:
        return None
    if config.draft_model is None:
        raise ModelLoadError("--speculation draft needs --draft-model")
    return DraftModel(
        load_draft(config.draft_model, config.model, model), model.config.vocab_size, cache.num_blocks, cache.block_size
    )


def device_runner_for(
    model: Transformer, cache: KVCache, config: EngineConfig, max_model_len: int
) -> DeviceRunner | None:
    """Return the runner of a network with GPU kernels, with graphs unless they are turned off; else None."""
    if model.decoder is None or model.decoder.gpu_program is None:
        return None
    sizes = StepSizes(config.max_num_seqs, config.max_num_batched_tokens, max_model_len)
    if isinstance(model, LeadingTransformer):
        return DeviceRunner(model, LeadingExecutor(model, cache, sizes, has_graphs(model, config)))
    return DeviceRunner(model, DeviceExecutor(model, cache, sizes, has_graphs(model, config)))
