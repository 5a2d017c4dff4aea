"""Adapters of models in GGUF files with quantised weights, against peft on the numbers in the files."""

import random
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.layers.lora import Adapter
from lightwell.model.loading.loader import load_model
from lightwell.model.loading.lora_loader import load_adapter
from tests.gguf_files import ARCHITECTURES, make_network, write_gguf
from tests.model.test_lora import RANK, run
from tests.model.watching import CPU
from tests.tiny.adapters import adapt

pytestmark = [
    pytest.mark.every_family,  # each architecture has a table of its own
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),  # peft asks
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_adapter_adds_what_peft_adds_to_the_files_numbers(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    # Only quantised matrices with whole blocks of rows stay quantised.
    wide = {} if architecture in ("gpt2", "bert") else {"hidden_size": 128, "intermediate_size": 192}
    network, kind = make_network(architecture, **wide), random.choice([Type.Q8_0, Type.Q4_1, Type.F16])
    write_gguf(network, architecture, kind, tmp_path / "a.gguf")
    folder = resolve(str(tmp_path / "a.gguf"))
    model = load_model(folder, read_config(folder), torch.float32, CPU)
    stack = model.decoder or model.encoder
    assert stack is not None
    are_quantised = {isinstance(linear.weight, GroupedWeight) for block in stack.blocks for linear in block.matrices}
    assert are_quantised == {kind != Type.F16}
    adapted = adapt(network, tmp_path / "adapter", random.randrange(1000), fan_in_fan_out=architecture == "gpt2")
    adapter = load_adapter(tmp_path / "adapter", model, max_rank=RANK)
    prompts = [torch.randint(96, (length,)).tolist() for length in (19, 1, 11)]
    mixed: list[Adapter | None] = [adapter, None, adapter]
    found = run(model, prompts, [[]] * 3, mixed)
    adapted.double()
    for i, prompt in enumerate(prompts):
        with torch.inference_mode():
            if mixed[i] is None:
                with adapted.disable_adapter():
                    expected = adapted(torch.tensor([prompt]))[0][0]
            else:
                expected = adapted(torch.tensor([prompt]))[0][0]
        assert (found[i] - expected).abs().max() <= 4e-5 * expected.abs().max()
        assert torch.equal(found[i], run(model, [prompt], [[]], [mixed[i]])[0])
    plain = run(model, prompts[:1], [[]], [None])[0]
    assert (found[0] - plain).abs().max() > 0.01 * plain.abs().max()
