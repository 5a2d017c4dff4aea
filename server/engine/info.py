"""Description of an engine: its limits, kernels and stored weights."""

import logging

from lightwell.model.config import ModelConfig
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.triton_grouped_weight import TritonGroupedWeight
from lightwell.model.network.transformer import Transformer
from lightwell.server.engine.execution.kernel_choice import kernels_in_use
from lightwell.server.engine.memory.card_memory import as_size
from lightwell.server.engine.messages.base_task import Stacks
from lightwell.server.engine.messages.outputs import EngineInfo

logger = logging.getLogger(__name__)


def engine_info(model: Transformer, cache: KVCache, max_model_len: int, speculation: str = "off") -> EngineInfo:
    grouped = _grouped_bytes(model)
    kernels, level, arithmetic = kernels_in_use(model.kernels, model.dtype, model.device)
    return EngineInfo(
        max_model_len=max_model_len,
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        reuses_prefixes=model.config.reuses_prefixes,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        batch_invariant=model.batch_invariant,
        speculation=speculation,
        kernels=kernels,
        kernel_level=level,
        kernel_arithmetic=arithmetic,
        activations=model.kernels.activations,
        num_matrices=len(model.matrices),
        num_grouped=len(grouped),
        grouped_bytes=sum(grouped),
    )


def log_stored_weights(model: Transformer, *, is_kept: bool) -> None:
    """Log the number of matrices that stay quantised as in the checkpoint. is_kept: not quantised in another way."""
    if model.config.stored_as is not None:
        grouped = _grouped_bytes(model) if is_kept else []
        logger.info(
            "weights are stored as %s: %d of %d matrices stay so, in %s; the others, and activations, are %s",
            model.config.stored_as,
            len(grouped),
            len(model.matrices),
            as_size(sum(grouped)),
            str(model.dtype).removeprefix("torch."),
        )


def _grouped_bytes(model: Transformer) -> list[int]:
    """Return the bytes of each matrix that is stored as integers with scales of groups."""
    weights = [matrix.weight for matrix in model.matrices]
    return [weight.num_bytes for weight in weights if isinstance(weight, GroupedWeight | TritonGroupedWeight)]


def stacks_of(config: ModelConfig) -> Stacks:
    """Return the number of blocks in each of a model's stacks."""
    if config.kind == "encoder":
        return Stacks(decoder=0, encoder=config.num_layers)
    return Stacks(decoder=config.num_layers, encoder=0 if config.encoder is None else config.encoder.num_layers)
