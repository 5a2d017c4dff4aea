"""Makes LoRA adapters of the tiny checkpoints with peft."""

from pathlib import Path
from typing import Any

import peft
import torch
from transformers.pytorch_utils import Conv1D

from tests.tiny import theirs


def make_adapter(folder: Path, path: Path, seed: int, **options: Any) -> Any:
    """Write an adapter of the checkpoint's blocks, with weights of visible effect, and return peft's model of it."""
    return adapt(theirs(folder, torch.float32), path, seed, **options)


def adapt(network: Any, path: Path, seed: int, **options: Any) -> Any:
    """Do the same for a network of transformers."""
    torch.manual_seed(seed)
    linears = [name for name, each in network.named_modules() if isinstance(each, torch.nn.Linear | Conv1D)]
    targets = [name for name in linears if any(part.isdigit() for part in name.split("."))]
    targets = [name for name in targets if ".altup" not in name]  # these matrices belong to no sublayer
    if any(getattr(network.config, name, 0) for name in ("num_experts", "num_local_experts")):
        # peft would give a layer's single mlp the names of experts, and a shared expert's names are refused.
        targets = [name for name in targets if ".mlp." not in name and ".router." not in name and "shared" not in name]
    config = peft.LoraConfig(target_modules=targets, **{"r": 3, "lora_alpha": 5, **options})
    adapted = peft.get_peft_model(network, config).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape) * 0.1
    adapted.save_pretrained(str(path))
    return adapted
