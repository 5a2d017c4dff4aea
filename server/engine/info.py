"""Describes an engine to its callers: the limits it settled on, and the stacks that its requests may name."""

from model.config import ModelConfig
from model.kv_cache import KVCache
from model.network.transformer import Transformer
from server.engine.base_task import Stacks
from server.engine.execution.kernel_choice import kernels_in_use
from server.engine.outputs import EngineInfo


def engine_info(model: Transformer, cache: KVCache, max_model_len: int) -> EngineInfo:
    """Return the info of an engine with this model and this cache."""
    kernels, level, arithmetic = kernels_in_use(model.kernels, model.dtype, model.device)
    return EngineInfo(
        max_model_len=max_model_len,
        max_encoder_len=_max_encoder_len(model.config, max_model_len),
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        batch_invariant=model.batch_invariant,
        kernels=kernels,
        kernel_level=level,
        kernel_arithmetic=arithmetic,
    )


def stacks_of(config: ModelConfig) -> Stacks:
    """Return the number of blocks in each of a model's stacks."""
    if config.kind == "encoder":
        return Stacks(decoder=0, encoder=config.num_layers)
    return Stacks(decoder=config.num_layers, encoder=0 if config.encoder is None else config.encoder.num_layers)


def _max_encoder_len(config: ModelConfig, max_model_len: int) -> int:
    """Return the most tokens that the encoder reads; 0 if there is no encoder."""
    if config.kind == "encoder":
        return max_model_len
    return 0 if config.encoder is None else min(max_model_len, config.encoder.max_model_len)
