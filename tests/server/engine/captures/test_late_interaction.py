"""Vectors of each token equal the vectors of sentence-transformers' MultiVectorEncoder (ColBERT), the same bits in any
batch.
"""

import json
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from lightwell.model.network.sentence_transformers import EmbeddingDefaults, embedding_defaults
from lightwell.server.engine.messages.request import EmbedTask
from tests import tiny
from tests.server.engine.driving import alone, assert_same, build, load, request, run

LENGTHS = (5, 40, 17, 1)


def save(top: Path, **mask: list[str]) -> tuple[Path, MultiVectorEncoder]:
    """Save a model with sentence-transformers, and return the folder and the model that the library loads from it."""
    torch.manual_seed(3)
    body = Transformer(str(tiny.make("bert", top / "raw")))
    dense = Dense(
        body.get_embedding_dimension(), 24, bias=False, activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )  # fmt: skip
    modules = [body, dense, MultiVectorMask(**mask), Normalize(module_input_name="token_embeddings")]
    prompts = {"query": "[Q] ", "document": "[D] "}
    MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts).save(str(top / "folder"))
    return top / "folder", MultiVectorEncoder(str(top / "folder"), device="cpu", local_files_only=True).eval()


def defaults_of(folder: Path) -> EmbeddingDefaults:
    return embedding_defaults(folder, load(folder).config)


def test_each_token_has_the_vector_that_the_library_gives_it(tmp_path: Path) -> None:
    folder, library = save(tmp_path)
    model, defaults = load(folder), defaults_of(folder)
    assert defaults.is_late
    assert defaults.normalize
    assert defaults.prompts == {"query": "[Q] ", "document": "[D] "}
    task = EmbedTask(pooling="none", normalize=defaults.normalize, dense=True)
    crowd = [
        request(uid, torch.randint(5, tiny.VOCAB_SIZE, (length,)).tolist(), task) for uid, length in enumerate(LENGTHS)
    ]
    found = run(build(model, max_num_batched_tokens=64), crowd)
    for each in crowd:
        ids = torch.tensor([each.prompt_token_ids])
        with torch.no_grad():
            expected = library({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["token_embeddings"][
                0
            ].numpy()
        vectors = found[each.uid].array("embedding")
        assert vectors.shape == (len(each.prompt_token_ids), 24)
        assert abs(vectors - expected).max() <= 1e-5
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert_same(found, alone(model, crowd))


def test_what_would_leave_tokens_out_or_add_some_is_refused(tmp_path: Path) -> None:
    folder, _ = save(tmp_path / "skips", skiplist_words=["a"])
    defaults = defaults_of(folder)
    assert not defaults.is_late
    assert "skiplist_words" in (defaults.refusal or "")
    folder, _ = save(tmp_path / "expands")
    (written,) = folder.glob("sentence_*_config.json")
    values = json.loads(written.read_text(encoding="utf-8"))
    expansion = {"strategy": "fixed", "attend": False, "length": 32}
    written.write_text(json.dumps({**values, "query_expansion": expansion}), encoding="utf-8")
    assert "query_expansion" in (defaults_of(folder).refusal or "")
