"""Loading of one model in several processes, the ranks. If one of them ends, the worker ends."""

import logging
import os
from collections.abc import Callable

import torch

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.analysis.weight_reader import Lookup
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.config import ModelConfig
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.network.transformer import Transformer
from lightwell.model.ranks.leader import LeadingTransformer, load_leading
from lightwell.model.sharding.split import check_split
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.tensor_parallel.ranks import Ranks

logger = logging.getLogger(__name__)


def load_shared(
    config: EngineConfig,
    model_config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    kernels: KernelConfig,
    max_model_len: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[LeadingTransformer, Ranks]:
    """Start `config.tensor_parallel` - 1 more processes, and load a part in each of them; this process loads the first.

    Afterwards this process ends when one of them ends. Raises ModelLoadError for a model or a setting that does not
    work with tensor parallelism, and if one of the processes ends before.
    """
    check_split(model_config, config.tensor_parallel)
    if config.quantize != "none":
        raise ModelLoadError(f"--tensor-parallel {config.tensor_parallel} accepts only --quantize none")
    num_cards = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) + config.tensor_parallel > num_cards:
        raise ModelLoadError(
            f"--tensor-parallel {config.tensor_parallel} needs as many GPUs, and torch finds {num_cards}; "
            "no more than that, or --device cpu, is accepted"
        )
    ranks = Ranks.start(
        config.tensor_parallel,
        device,
        threads=torch.get_num_threads(),
        folder=config.folder,
        start_logging=config.start_logging,
        on_loss=_end,
    )
    try:
        model = load_leading(
            config.model,
            model_config,
            dtype,
            device,
            ranks.group,
            ranks.send,
            max_model_len=max_model_len,
            kernels=kernels,
            batch_invariant=config.batch_invariant,
            progress=progress,
            before_apart=ranks.wait_for_loss,
        )
        ranks.wait_loaded()
    except BaseException:
        ranks.close()
        raise
    return model, ranks


def weights_of(model: Transformer) -> Lookup:
    """Return the source of the weights for questions about them."""
    return model.whole_weights if isinstance(model, LeadingTransformer) else LiveWeights(model)


def _end(reason: str) -> None:
    """End this process, since the ranks cannot continue without one of them. Another worker replaces it."""
    logger.error("the worker ends: %s", reason)
    logging.shutdown()
    os._exit(1)
