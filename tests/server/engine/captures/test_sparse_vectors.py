"""Weights of words equal the weights of sentence-transformers' SparseEncoder, for every encoder with a head of a masked
language model, the same bits in any batch.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.network.sentence_transformers import SparseConfig, embedding_defaults
from lightwell.server.engine.messages.request import EmbedTask, SparseTask
from tests import tiny
from tests.server.engine.driving import Answer, Load, alone, assert_same, build, load, request, run

LENGTHS = (5, 100, 17, 64, 1, 65)


def task_of(sparse: SparseConfig) -> SparseTask:
    return SparseTask(is_sum=sparse.is_sum, is_log_twice=sparse.is_log_twice)


def ours(answer: Answer, num_words: int) -> np.ndarray:
    indices, values = answer.array("sparse.indices"), answer.array("sparse.values")
    assert (np.diff(indices) > 0).all()
    assert (values > 0).all()
    found = np.zeros(num_words, np.float32)
    found[indices] = values
    return found


def theirs(model: SparseEncoder, ids: tuple[int, ...]) -> np.ndarray:
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
    with torch.no_grad():
        found: np.ndarray = model(given)["sentence_embedding"][0].numpy()
    return found


def save(raw: Path, folder: Path, **options: Any) -> SparseEncoder:
    """Save a model with sentence-transformers, and return the model that the library loads from the folder."""
    modules = [Transformer(str(raw), transformer_task="fill-mask"), SpladePooling(**options)]
    SparseEncoder(modules=modules, device="cpu").save(str(folder))
    return SparseEncoder(str(folder), device="cpu", local_files_only=True).eval()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        # Jina's code is not in transformers: the library would read a BERT.
        *((name, {}) for name in tiny.MASKED_LMS if name != "jina_bert"),
        ("bert", {"pooling_strategy": "max", "activation_function": "log1p_relu"}),
        ("bert", {"pooling_strategy": "sum"}),
        ("bert", {"pooling_strategy": "sum", "activation_function": "log1p_relu"}),
    ],
    ids=str,
)
def test_weights_are_those_of_the_library_in_any_batch(name: str, options: dict[str, str], tmp_path: Path) -> None:
    raw = tiny.make_variant(name, tmp_path / "raw")
    library, model = save(raw, tmp_path / "folder", **options), load(raw)
    sparse = embedding_defaults(tmp_path / "folder", model.config).sparse
    assert (sparse == SparseConfig()) is not bool(options)
    prompts = [torch.randint(5, tiny.VOCAB_SIZE, (length,)).tolist() for length in LENGTHS]
    crowd = [request(uid, ids, task_of(sparse)) for uid, ids in enumerate(prompts)]
    found = run(build(model, max_num_batched_tokens=128), [*crowd, request(9, prompts[1], EmbedTask(pooling="cls"))])
    for each in crowd:
        expected = theirs(library, each.prompt_token_ids)
        assert abs(ours(found[each.uid], len(expected)) - expected).max() <= 1e-5 * max(1, expected.max())
        assert np.ptp(expected) > 0.1
    del found[9]
    assert_same(found, alone(model, crowd))


def test_what_is_not_supported_is_said(tmp_path: Path) -> None:
    raw = tiny.make("bert", tmp_path / "raw")
    save(raw, tmp_path / "folder")
    folder, config = tmp_path / "folder", read_config(raw)
    pooling = folder / "1_SpladePooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_strategy": "mean"}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match="pooling_strategy"):
        embedding_defaults(folder, config)
    modules = [{"path": "", "type": "x.Router"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert "Router" in (embedding_defaults(folder, config).sparse.refusal or "")


@pytest.mark.parametrize("name", ["llama-gqa", "bart"])
def test_a_network_that_fills_in_no_words_refuses(name: str, model_of: Load) -> None:
    with pytest.raises(ValueError, match=r"SparseTask needs the encoder|has no masked-language-model head"):
        run(build(model_of(name)), [request(0, [5, 6], SparseTask(), encoded=[5, 6] if name == "bart" else ())])
