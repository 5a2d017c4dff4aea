"""The table of docs/sizing.md: models on cards of 8 to 80 GB, and the flags that make them fit, on simulated cards."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.server.config.memory_estimate import weight_bytes
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.execution.cuda_graphs import kept_bytes
from lightwell.server.engine.memory.card_memory import CAPTURE_BYTES, CardUse
from lightwell.server.engine.memory.kv_cache_size import fitting_model_len, num_cache_blocks
from tests.source_tree import ROOT

GIB = 1 << 30
CUDA = torch.device("cuda")
CARDS = (8, 12, 24, 48, 80)
ROWS, SEQUENCES = 2048, 64
"""The defaults of --max-num-batched-tokens and --max-num-seqs."""


class Case(NamedTuple):
    name: str
    kind: str
    fields: dict[str, int]
    bits: float = 16
    """Bits of a parameter in the file."""


_LLAMA = {"vocab_size": 128256, "max_position_embeddings": 131072, "num_key_value_heads": 8, "num_attention_heads": 32}
_1B = _LLAMA | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
_8B = _LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128}
_QWEN = {"vocab_size": 151936, "max_position_embeddings": 40960, "hidden_size": 5120, "head_dim": 128}
_14B = {"intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8}
_32B = {"intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8}
CASES = (
    Case("Llama 3.2 1B, bfloat16", "LlamaForCausalLM", _1B | {"tie_word_embeddings": True}),
    Case("Llama 3.1 8B, bfloat16", "LlamaForCausalLM", _8B),
    Case("Llama 3.1 8B, Q4_K_M", "LlamaForCausalLM", _8B, 4.9),
    Case("Qwen3 14B, Q4_K_M", "Qwen3ForCausalLM", _QWEN | _14B, 4.9),
    Case("Qwen3 32B, Q4_K_M", "Qwen3ForCausalLM", _QWEN | _32B, 4.9),
)


def cell(case: Case, size: int, folder: Path) -> str:
    """Return a cell of the table, after trying it."""
    kind = case.kind.removesuffix("ForCausalLM").lower()
    named = {"architectures": [case.kind], "model_type": kind, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(named | {"hidden_act": "silu"} | case.fields))
    config = read_config(folder)
    width, inner = config.hidden_size, config.intermediate_size
    weights = int(weight_bytes(config, "bfloat16", "none") * case.bits / 16)
    unpacked = 0 if case.bits == 16 else 2 * max(1 << 27, 2 * width * inner)
    use = CardUse(
        total=size * GIB,
        utilization=0.9,
        free=size * GIB - weights - GIB,  # 1 GiB of CUDA and libraries
        weights=weights,
        activations=2 * ROWS * (4 * width + 3 * inner) + 32 * SEQUENCES * config.vocab_size + unpacked,
        other=GIB // 2,
        graphs=CAPTURE_BYTES + kept_bytes(config, torch.bfloat16, SEQUENCES, ROWS),
    )
    engine = EngineConfig(model=folder)

    def fits(length: int) -> int:
        return num_cache_blocks(engine, config, torch.bfloat16, CUDA, length, use)

    whole = config.max_model_len
    found = fitting_model_len(engine, config, torch.bfloat16, whole, use)
    if found == whole:
        return f"{whole // 1024}k, {(fits(whole) - 1) * engine.block_size // 1024}k in all"
    if use.kv_cache < (1024 << 10):
        return "no"
    with pytest.raises(ModelLoadError, match=f"--max-model-len {found} fits, and auto chooses it"):
        fits(whole)
    assert fits(found) * engine.block_size >= found
    return f"auto: {found // 1024}k"


def test_the_table_of_cards_is_the_computed_one(tmp_path: Path) -> None:
    rows = [f"| {case.name} | {' | '.join(cell(case, size, tmp_path) for size in CARDS)} |" for case in CASES]
    assert "\n".join(rows) in (ROOT / "docs/sizing.md").read_text(encoding="utf-8"), "\n".join(["", *rows])
