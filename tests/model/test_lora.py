"""Adapters against peft, unmerged and in float32, on every kind of checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.layers.lora import Adapter
from lightwell.model.loading.lora_loader import load_adapter
from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.model import watching
from tests.model.watching import Watched, load, token_ids
from tests.tiny.adapters import make_adapter

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks

RANK = 16
NAMED_APART = {"nomic_bert": 14, "jina_embeddings_v3": 12}
"""The kinds with other module names in transformers than in the files, and an adapter's number of modules."""
LEFT_OUT = tuple(name for name in tiny.VARIANTS if name.split("-")[0] == "llama" or "long" in name)
VARIANTS = ["llama-gqa", *(name for name in tiny.VARIANTS if name not in (*LEFT_OUT, *NAMED_APART))]
"""Kinds of checkpoints; an adapter changes the same parts in all other left-out kinds."""


def run(
    model: Transformer, prompts: list[list[int]], encoded: list[list[int]], adapters: list[Adapter | None]
) -> list[torch.Tensor]:
    """Return the logits, or the last hidden states of an encoder, of prompts that share one batch."""
    each = zip(prompts, encoded, adapters, strict=True)
    watched = [Watched(tokens, encoder_tokens, adapter=adapter) for tokens, encoder_tokens, adapter in each]
    hidden = [seen.hidden for seen in watching.run(model, watched)]
    return hidden if model.config.kind == "encoder" else [model.logits(each) for each in hidden]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_mixed_batch_equals_peft_and_each_row_alone(name: str, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path / "model")
    conv = {"fan_in_fan_out": "gpt2" in name}
    theirs = [
        make_adapter(folder, tmp_path / "0", 0, **conv),
        make_adapter(folder, tmp_path / "1", 1, use_rslora=True, **conv),
    ]
    model = load(folder)
    adapters = [load_adapter(tmp_path / str(i), model, max_rank=RANK) for i in range(2)]
    prompts = [token_ids(length) for length in (19, 1, 11, 14)]
    encoded = [token_ids(9 + i) if model.config.encoder else [] for i in range(4)]
    mixed: list[Adapter | None] = [adapters[0], None, adapters[1], adapters[0]]
    found = run(model, prompts, encoded, mixed)
    for i, which in ((0, 0), (2, 1), (3, 0)):
        expected = _expected(theirs[which], model, prompts[i], encoded[i])
        scale = expected.abs().max().clamp(min=1.0)
        assert (found[i] - expected).abs().max() <= 1e-5 * scale
    for i, adapter in enumerate(mixed):
        alone = run(model, prompts[i : i + 1], encoded[i : i + 1], [adapter])[0]
        assert torch.equal(found[i], alone)
    assert not torch.allclose(found[0], run(model, prompts[:1], encoded[:1], [None])[0], atol=1e-2)


@pytest.mark.every_family
@pytest.mark.parametrize("name", NAMED_APART)
def test_modules_that_have_other_names_than_the_files_are_refused(name: str, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path / "model")
    make_adapter(folder, tmp_path / "adapter", 0, fan_in_fan_out=False)
    with pytest.raises(ModelLoadError, match=f"{NAMED_APART[name]} modules are not matrices of this network's blocks"):
        load_adapter(tmp_path / "adapter", load(folder), max_rank=RANK)


@torch.no_grad()
def _expected(theirs: Any, model: Transformer, tokens: list[int], encoded: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    if model.config.kind == "encoder":
        states: torch.Tensor = theirs.base_model.model.base_model(ids).last_hidden_state[0]
        return states
    given = {"input_ids": ids}
    if model.config.kind == "encoder-decoder":
        given = {"input_ids": torch.tensor([encoded]), "decoder_input_ids": ids}
    logits: torch.Tensor = theirs(**given).logits[0]
    return logits


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Path]:
    """Return a network and an adapter for it."""
    path = tmp_path_factory.mktemp("llama")
    folder = tiny.make_variant("llama-gqa", path / "model")
    make_adapter(folder, path / "adapter", 0)
    return load(folder), path / "adapter"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; 'LORA' is accepted"),
        ({"use_dora": True}, "use_dora is True; only plain LoRA is supported"),
        ({"bias": "all"}, "bias is 'all'; 'none' is accepted"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is .*; only plain LoRA is supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'; such an adapter also changes the base model"),
        ({"r": 17}, "r is 17; ranks of 1 to 16 are accepted"),
        ({"rank_pattern": {"q_proj": 99}}, "rank_pattern is .*; ranks of 1 to 16 are accepted"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "alpha_pattern has the key .*; names of modules, or the ends"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan; a number from -1000000 to 1000000 is accepted"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000*...; a number from -1000000 to 1000000 is accepted"),
        ({"r": 4}, r"lora_A.weight is \[3, 48\]; the network and adapter_config.json require \[4, 48\]"),
        ({"not_known_to_us": 1}, "not_known_to_us is 1; only plain LoRA is supported"),
    ],
)
def test_an_adapter_that_is_no_plain_lora_is_refused_by_name(
    fields: dict[str, Any], message: str, llama: tuple[Transformer, Path], tmp_path: Path
) -> None:
    model, adapter = llama
    shutil.copytree(adapter, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(ModelLoadError, match=message) as error:
        load_adapter(tmp_path, model, max_rank=RANK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base_model.model.lm_head.lora_A.weight": (3, 48)}, "1 modules have only one of lora_A and lora_B: lm_head"),
        (
            {f"base_model.model.lm_head.lora_{x}.weight": shape for x, shape in (("A", (3, 48)), ("B", (320, 3)))},
            "1 modules are not matrices of this network's blocks, .*: lm_head",
        ),
        ({"base_model.model.lm_head.weight": (320, 48)}, "1 tensors do not belong to a plain LoRA"),
    ],
)
def test_tensors_that_have_no_place_are_named(
    changed: dict[str, tuple[int, int]], message: str, llama: tuple[Transformer, Path], tmp_path: Path
) -> None:
    model, adapter = llama
    shutil.copytree(adapter, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "adapter_model.safetensors"
    save_file(load_file(path) | {name: torch.ones(shape) for name, shape in changed.items()}, path)
    with pytest.raises(ModelLoadError, match=message):
        load_adapter(tmp_path, model, max_rank=RANK)


def test_weights_in_other_files_are_not_read(llama: tuple[Transformer, Path], tmp_path: Path) -> None:
    model, adapter = llama
    shutil.copytree(adapter, tmp_path, dirs_exist_ok=True)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match=r"contains no readable adapter_model\.safetensors"):
        load_adapter(tmp_path, model, max_rank=RANK)


def test_modules_may_have_ranks_and_scales_of_their_own(tmp_path: Path) -> None:
    folder = tiny.make_variant("llama-gqa", tmp_path / "model")
    theirs = make_adapter(
        folder, tmp_path / "a", 0, rank_pattern={"q_proj": 5, "layers.1.mlp.up_proj": 2}, alpha_pattern={"v_proj": 9}
    )
    model, tokens = load(folder), token_ids(17)
    found = run(model, [tokens], [[]], [load_adapter(tmp_path / "a", model, max_rank=RANK)])[0]
    expected = _expected(theirs, model, tokens, [])
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1.0)
