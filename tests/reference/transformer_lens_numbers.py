"""Writes the numbers that TransformerLens computes for checkpoints: tests/model/test_transformer_lens.py compares our
points with them.

It imports nothing of ours, since TransformerLens is in an environment of its own. To run it by hand, in a clone:

    tests/tools/install.sh transformer-lens
    python -m tests.model.test_transformer_lens  # makes the checkpoints, and runs this file on them
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformer_lens.model_bridge import TransformerBridge

TOKENS = [5, 9, 200, 7, 30, 11]


def numbers(folder: Path) -> dict[str, torch.Tensor]:
    """Return every point of a checkpoint's first and last block and every point outside the blocks, for one input."""
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    bridge.cfg.use_attn_result = True
    logits, cache = bridge.run_with_cache(torch.tensor([TOKENS]))
    blocks = (None, "0", str(bridge.cfg.n_layers - 1))
    wanted = {name: x for name, x in cache.items() if (name.split(".")[1] if "blocks." in name else None) in blocks}
    wanted["logits"] = logits
    return {name: x[0].float().clone().contiguous() for name, x in wanted.items() if x.is_floating_point()}


def write(folders: list[Path], file: Path) -> None:
    """Write the numbers of these checkpoints; a tensor with several names is kept once."""
    tensors: dict[str, torch.Tensor] = {}
    same: dict[str, str] = {}
    for folder in folders:
        of_this: dict[str, torch.Tensor] = {}
        for name, x in numbers(folder).items():
            first = next((n for n, y in of_this.items() if torch.equal(x, y)), None)
            if first is None:
                of_this[name] = x
            else:
                same[f"{folder.name}/{name}"] = f"{folder.name}/{first}"
        tensors |= {f"{folder.name}/{name}": x for name, x in of_this.items()}
    about = {"transformer_lens": version("transformer-lens"), "tokens": json.dumps(TOKENS), "same": json.dumps(same)}
    save_file(tensors, file, metadata=about)


if __name__ == "__main__":
    *given, out = map(Path, sys.argv[1:])
    write(given, out)
