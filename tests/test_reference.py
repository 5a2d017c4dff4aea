"""The slow network equals transformers (eager) on every kind of checkpoint, so it may judge the fast one."""

from pathlib import Path

import pytest
import torch
import transformers

from model.checkpoint import load_weights
from model.config import ModelConfig
from tests import reference, tiny

TOKENS = [0, *((17 * i * i + 31 * i + 5) % tiny.VOCAB_SIZE for i in range(1, 60))]


@pytest.fixture(scope="module", params=list(tiny.VARIANTS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant(request.param, tmp_path_factory.mktemp(request.param))


def test_the_reference_equals_transformers_in_float64(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    with torch.no_grad():
        theirs = model(torch.tensor([TOKENS]), output_attentions=True, output_hidden_states=True)
    ours = reference.run(config, load_weights(folder, config, torch.float64), TOKENS, hf_casts=True)
    assert (ours.logits - theirs.logits[0]).abs().max() <= 1e-10
    for mine, layer in zip(theirs.attentions, ours.layers, strict=True):
        assert (layer.pattern - mine[0]).abs().max() <= 1e-10
    for hidden, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert (hidden - other[0]).abs().max() <= 1e-10


def test_the_patterns_of_test_checkpoints_are_neither_flat_nor_one_hot(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    trace = reference.run(config, load_weights(folder, config, torch.float64), TOKENS)
    for layer in trace.layers:
        last_rows = layer.pattern[:, 30:]
        entropy = -(last_rows * last_rows.clamp_min(1e-300).log()).sum(-1).mean()
        assert 0.3 < entropy < 3.5  # nats; 45 keys seen evenly would be 3.8
