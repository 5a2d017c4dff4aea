"""POST /embed_sparse: the words of each input that the network finds, and the fields of Text Embeddings Inference."""

from pathlib import Path

import numpy as np
import pytest
import torch

from model.network.sentence_transformers import EmbeddingDefaults, SparseConfig
from server.engine.request import SparseTask
from tests import tiny
from tests.server.dialects.routes import refuses
from tests.server.engine.captures.test_sparse_vectors import save, theirs
from tests.server.inline_engine import InlineEngine
from tests.server.serving import site, tiny_encoder, tiny_masked_lm

ROUTE = "/embed_sparse"


async def test_each_input_gets_the_words_that_the_library_finds(tmp_path: Path) -> None:
    raw = tiny.make_variant("bert", tmp_path / "raw")
    library = save(raw, tmp_path / "folder")
    engine = InlineEngine(folder=raw)
    texts = ["abcab", "The fox", "x" * 60]
    async with site(tmp_path, engine, config=engine.model_config, max_model_len=128) as at:
        answer = (await at.post(ROUTE, {"inputs": texts})).json()
        (alone,) = (await at.post(ROUTE, {"inputs": texts[0], "truncate": False})).json()
        ids = (await at.post(ROUTE, {"inputs": list(texts[1].encode())})).json()
    assert len(answer) == len(texts)
    assert alone == answer[0]
    assert ids == [answer[1]]
    for text, found in zip(texts, answer, strict=True):
        expected = theirs(library, tuple(text.encode()))
        assert [each["index"] for each in found] == np.flatnonzero(expected).tolist()
        values = [each["value"] for each in found]
        assert abs(np.array(values) - expected[expected > 0]).max() <= 1e-5 * max(1, expected.max())
    assert torch.tensor(values).min() > 0


async def test_the_files_of_the_folder_say_how_words_are_weighed(tmp_path: Path) -> None:
    defaults = EmbeddingDefaults(
        pooling="mean", normalize=True, prompts={"query": "ab"}, sparse=SparseConfig(is_sum=True, is_log_twice=True)
    )
    async with site(tmp_path, config=tiny_masked_lm(), defaults=defaults) as at:
        await at.post(ROUTE, {"inputs": "c", "prompt_name": "query"})
        error = await at.error(ROUTE, {"inputs": "c", "prompt_name": "passage"}, 400)
        (submitted,) = at.engine.submitted
    assert submitted.task == SparseTask(is_sum=True, is_log_twice=True)
    assert submitted.prompt_token_ids == tuple(b"abc")
    assert error["message"].startswith("prompt_name")
    assert "'query'" in error["message"]


async def test_what_is_too_long_is_cut_if_asked_and_else_refused(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_masked_lm(), max_model_len=8) as at:
        error = await at.error(ROUTE, {"inputs": ["a", "x" * 9]}, 400)
        assert (
            await at.post(ROUTE, {"inputs": "x" * 9, "truncate": True, "truncation_direction": "Right"})
        ).status_code == 200
        assert at.engine.submitted[-1].prompt_token_ids == tuple(b"x" * 8)
        await at.post(ROUTE, {"inputs": "y" + "x" * 8, "truncate": True, "truncation_direction": "left"})
        assert at.engine.submitted[-1].prompt_token_ids == tuple(b"x" * 8)
        middle = await at.error(ROUTE, {"inputs": "a", "truncation_direction": "middle"}, 400)
    assert error["message"].startswith("inputs")
    assert middle["message"].startswith("truncation_direction")


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_model_without_such_vectors_says_why(is_refused: bool, tmp_path: Path) -> None:
    defaults = EmbeddingDefaults(pooling="mean", normalize=True, sparse=SparseConfig(refusal="a Router"))
    config = tiny_masked_lm() if is_refused else tiny_encoder()
    async with site(tmp_path, config=config, defaults=defaults) as at:
        told = (await at.http.get("/v1/capabilities")).json()["routes"][ROUTE]
        error = await at.error(ROUTE, {"inputs": "a"}, 400)
    assert told["works"] is False
    assert told["reason"] in error["message"]
    assert ("a Router" if is_refused else "has no masked-language-model head") in error["message"]
    assert error["type"] == "Validation"


async def test_an_answer_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_masked_lm(), max_response_bytes=100) as at:
        await refuses(at, ROUTE, {"inputs": ["abc"] * 200}, "--max-response-bytes", status=413)
        assert len(at.engine.submitted) <= 64  # the size of the answer is known only after inputs were computed


async def test_more_inputs_than_may_ever_be_captured_are_refused_at_once(tmp_path: Path) -> None:
    config = tiny_masked_lm()
    async with site(tmp_path, config=config, max_capture_bytes=8 * config.vocab_size * 100) as at:
        assert (await at.post(ROUTE, {"inputs": ["a"] * 130})).status_code == 413
        assert at.engine.submitted == []


async def test_words_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(tmp_path, config=tiny_masked_lm()) as at:
        whole = (await at.post(ROUTE, {"inputs": ["abc", "ddef"]})).json()
        monkeypatch.setattr("server.dialects.huggingface.sparse._WORDS_AT_ONCE", 2)
        assert (await at.post(ROUTE, {"inputs": ["abc", "ddef"]})).json() == whole
    assert [len(words) for words in whole] == [3, 3]
