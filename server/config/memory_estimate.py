"""Memory estimate of a server, in bytes, from the configuration of the model and the settings: `lightwell size`.

docs/sizing.md has the formulas and measurements. It reads no weights and loads no torch.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from lightwell.model.analysis.census import MATRICES, WeightGroup, take_census
from lightwell.model.checkpoint.families.fields import Fields, read_object
from lightwell.model.checkpoint.folder import GGUF_NAME
from lightwell.model.checkpoint.gguf import kept_sizes
from lightwell.model.checkpoint.lora_config import adapter_parameters
from lightwell.model.checkpoint.quantized.scheme import read_scheme
from lightwell.model.checkpoint.weight_maps import weights_of
from lightwell.model.config import ModelConfig
from lightwell.model.sharding.split import check_split
from lightwell.server.config.setting_types import format_bytes
from lightwell.server.config.settings import Settings, SettingsError

BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
API_PROCESS = 140 << 20
"""Bytes of the API process: Python, the routes, a tokenizer of some 50,000 entries."""
WORKER = 340 << 20
"""Bytes of a worker: Python, torch, buffers of a step."""
_SCALE = 4
"""Bytes of the number that a row of int8 or fp8 is multiplied by."""
_LEAST_GROUP = 16
"""`LEAST_GROUP` of model/quantized.py: int4 has a scale of two bytes for 16 inputs, or for 32."""
_EVERYWHERE = ("norms", "positions", "token types", "embedding projection", "head transform", "classifier")
"""Components that each rank stores completely."""
_TABLES = ("embedding", "embedding projection", "per-layer embedding", "unembedding")
"""Matrices that quantised checkpoints almost always store unquantised."""
_NOT_QUANTIZED = ("embedding", "per-layer embedding", "stream projection", "router", "classifier")
_OF_KEY_HEADS = ("key", "value", "cross key", "cross value")
_DEALT_OUT = ("cross_q", "up", "gate_up", "head")
"""Weights with biases that are divided among the ranks like their rows; the biases of qkv and cross_kv include key
heads.
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one server, all its workers together."""

    weights: int
    quantized: int
    """Bytes of `weights` that remain quantised as the checkpoint stores them."""
    loading: int
    """Bytes while a worker reads its weights, in addition to processes and other workers: the stored weights, and the
    quantised weights (int8, int4, fp8) or the largest packed one. Each rank reads a whole weight to take its part.
    """
    kv_per_token: int
    """Bytes of one token's keys and values, on all ranks of a worker together."""
    kv_cache: int
    """Bytes of `max_num_seqs` full contexts and states, the largest possible size; 0 for an encoder."""
    state: int
    """Bytes that layers without attention keep of one sequence, however long it is; 0 if there are none."""
    processes: int
    """Bytes of the API process and the worker without weights, cache and captures."""
    adapters: int
    """Bytes of LoRA adapters of the highest rank on all matrices: the number of `--lora`, or `--max-loras` if they may
    be loaded at run time.
    """
    captures: int
    """Bytes while the capture budget is used up: twice `max_capture_bytes`, once in the worker and once on the way."""

    @property
    def idle(self) -> int:
        """Return the bytes of weights, adapters, processes and a completely used cache."""
        return self.weights + self.adapters + self.kv_cache + self.processes

    @property
    def most(self) -> int:
        """Return the limit for a container: `idle` and the whole capture budget, or the bytes while loading if more."""
        return max(self.idle + self.captures, self.loading + self.processes)


def sizes(config: ModelConfig, settings: Settings, file: Path | None = None) -> Sizes:
    """Return the memory of `lightwell serve` with these settings, of the weights also on a GPU.

    file: the model's config.json, which is needed to find matrices that remain quantised. Raises SettingsError for
    `--devices all`, which depends on the machine, and ModelLoadError where the model cannot be divided among
    `--tensor-parallel` ranks.
    """
    if settings.devices == "all":
        raise SettingsError("--devices all depends on the machine; a number is accepted here")
    num_workers = settings.devices if isinstance(settings.devices, int) else len(settings.devices)
    ranks = settings.tensor_parallel
    check_split(config, ranks)
    num_processes = num_workers * ranks
    dtype = resolved_dtype(config, settings)
    per_token = kv_bytes_per_token(config, dtype, ranks)
    limit = settings.max_model_len
    context = limit if isinstance(limit, int) else config.max_model_len
    lengths = [context] if config.encoder is None else [context, min(context, config.encoder.max_model_len)]
    context_tokens = sum(-(-length // settings.block_size) for length in lengths) * settings.block_size  # whole blocks
    one_sequence = context_tokens * per_token + config.state_bytes(BYTES_OF[dtype])
    kv_cache = settings.kv_cache_memory or settings.max_num_seqs * one_sequence
    num_adapters = len(settings.lora) if settings.lora_root is None else settings.max_loras
    stored, kept = (weight_bytes(config, dtype, quantize, ranks) for quantize in ("none", settings.quantize))
    quantized = 0
    on_card = settings.device == "cuda"
    has_products = dtype != ("float32" if on_card else "float16")
    can_keep = has_products and settings.engine_kernels != "torch" and ranks == 1
    if file is not None and config.stored_as is not None and can_keep and settings.quantize == "none":
        quantized, plain = kept_bytes(config, file, BYTES_OF[dtype], on_card=on_card)
        stored = kept = quantized + plain
    beside = kept if settings.quantize != "none" else ranks * largest_weight_bytes(config, dtype)
    return Sizes(
        weights=num_workers * kept,
        quantized=num_workers * quantized,
        loading=num_workers * (stored + beside),
        kv_per_token=per_token,
        kv_cache=num_workers * kv_cache if per_token else 0,
        state=config.state_bytes(BYTES_OF[dtype]),
        processes=API_PROCESS + num_processes * WORKER,
        adapters=num_workers * num_adapters * adapter_parameters(config, settings.max_lora_rank) * BYTES_OF[dtype],
        captures=2 * settings.max_capture_bytes,
    )


def resolved_dtype(config: ModelConfig, settings: Settings) -> str:
    """Return the dtype of the weights; a CPU uses float32 for float16 checkpoints unless float16 is set."""
    if settings.dtype != "auto":
        return settings.dtype
    return "float32" if config.dtype == "float16" and settings.device != "cuda" else config.dtype


def weight_bytes(config: ModelConfig, dtype: str, quantize: str, ranks: int = 1) -> int:
    """Return the bytes of all weights in memory, on all ranks. int8 and fp8: one byte for each number and a scale for
    each row of a matrix, except embeddings and routers. int4: half a byte and a scale for each group, or int8 where the
    inputs make no groups.

    Quantisation excludes several ranks. Float32 matrices of bfloat16 numbers take half the size, which this estimate
    cannot know.
    """
    each = BYTES_OF[dtype]
    total = 0
    for row in take_census(config).rows:
        is_quantized = quantize != "none" and row.component in MATRICES and row.component not in _NOT_QUANTIZED
        if is_quantized and quantize == "int4" and row.shape[1] % _LEAST_GROUP == 0:
            group = 2 * _LEAST_GROUP if row.shape[1] % (2 * _LEAST_GROUP) == 0 else _LEAST_GROUP
            total += row.parameters // 2 + 2 * row.parameters // group
        elif is_quantized:
            outputs = row.count * row.shape[0]
            total += row.parameters + _SCALE * outputs
        elif row.tied_to is None or row.component == "value":  # keys that serve as values are stored twice
            total += each * (row.parameters + _held_again(config, row, ranks))
    return total


def kept_bytes(config: ModelConfig, file: Path, item_size: int, *, on_card: bool = False) -> tuple[int, int]:
    """Return the bytes of the matrices that remain quantised, and of all other weights at `item_size` bytes for each
    number. file: the model's config.json. on_card: whether a GPU stores them.

    A GGUF file names these matrices in its header; otherwise they are all matrices of the blocks, with the format of
    config.json. Raises ModelLoadError for files that cannot be read.
    """
    if config.stored_as == "gguf":
        return kept_sizes.kept_bytes(file.with_name(GGUF_NAME), item_size, on_card=on_card)
    scheme = read_scheme(Fields(read_object(file)))
    quantized = plain = 0
    for row in take_census(config).rows:
        is_kept = scheme is not None and not scheme.is_widened
        if scheme is not None and scheme.method == "mxfp4" and config.experts is not None:  # gpt-oss: experts only
            is_kept = row.weight.startswith("experts.")
        if scheme is not None and is_kept and row.component in MATRICES and row.component not in _TABLES:
            quantized += int(row.parameters * scheme.bits_kept / 8)
        elif row.tied_to is None:
            plain += row.parameters * item_size
    return quantized, plain


def _held_again(config: ModelConfig, row: WeightGroup, ranks: int) -> int:
    """Return the parameters of a group of weights that several ranks hold, counted once for each rank after the first.
    A test compares it with `Shares.of_weight` of model/sharding.
    """
    stack = config.encoder if row.stack == "encoder" and config.encoder is not None else config
    more_key_heads = max(0, ranks - stack.num_kv_heads)  # with fewer key heads than ranks, each rank has one
    owner = row.weight.rpartition(".")[0]
    if row.component in _OF_KEY_HEADS:
        return row.parameters // stack.num_kv_heads * more_key_heads
    if row.component == "biases" and owner in ("qkv", "cross_kv"):
        return row.count * 2 * stack.head_dim * more_key_heads
    is_everywhere = row.component in _EVERYWHERE or (row.component == "biases" and owner not in _DEALT_OUT)
    return row.parameters * (ranks - 1) if is_everywhere else 0


def largest_weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of the largest packed matrix or table: queries, keys and values are one; gate and up are one."""
    return BYTES_OF[dtype] * max(prod(weight.shape) for weight in weights_of(config))


def kv_bytes_per_token(config: ModelConfig, dtype: str, ranks: int = 1) -> int:
    """Return the bytes of keys and values of one position in all layers, on all ranks; 0 for an encoder."""
    if config.kind == "encoder":
        return 0
    # Each rank has the same number of heads, at least one.
    numbers = sum(2 * -(-own.num_kv_heads // ranks) * ranks * own.head_dim for own in config.layers_with_kv)
    return numbers * BYTES_OF[dtype]


def as_table(found: Sizes, settings: Settings, stored_as: str | None = None) -> str:
    """Return the sizes as a readable table, one line for each part, in MiB. stored_as: format of the checkpoint."""
    of_weights = "" if stored_as is None else f" (stored as {stored_as}, {_as_mib(found.quantized)} of them stay so)"
    of_states = f", {found.state} a sequence" if found.state else ""
    lines = {
        f"weights{of_weights}": found.weights,
        f"KV cache ({found.kv_per_token} bytes a token{of_states})": found.kv_cache,
        "API process and worker": found.processes,
        **({"LoRA adapters, at most": found.adapters} if found.adapters else {}),
        "idle": found.idle,
        "while loading, in addition to the processes": found.loading,
        f"captures (--max-capture-bytes {format_bytes(settings.max_capture_bytes)})": found.captures,
        "most: a limit for the container": found.most,
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}} {_as_mib(size):>14}" for name, size in lines.items())


def _as_mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
