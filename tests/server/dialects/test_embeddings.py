"""POST /v1/embeddings."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from safetensors.numpy import load as load_safetensors

from lightwell.model.config import ModelConfig
from lightwell.model.network.sentence_transformers import DenseConfig, EmbeddingDefaults
from lightwell.server.engine.messages.request import EmbedTask, Pooling
from lightwell.server.generation.embeddings import _warn_of_ids
from lightwell.server.generation.prompts.prompt import Prompt, fit_input, packed
from lightwell.server.http.errors import EngineError
from tests.server.dialects.routes import refuses
from tests.server.fake_client import HIDDEN_SIZE, FakeEngine
from tests.server.serving import Site, site, tiny_config, tiny_encoder, tiny_encoder_decoder

PATH = "/v1/embeddings"


def vector(token: int, layer: int = -1, width: int = HIDDEN_SIZE) -> list[float]:
    return [token + layer + 0.25 * j for j in range(width)]


async def task_of(at: Site, **body: Any) -> EmbedTask:
    answer = await at.post(PATH, {"input": "ab", **body})
    assert answer.status_code == 200, answer.text
    task = at.engine.submitted[-1].task
    assert isinstance(task, EmbedTask)
    return task


async def test_an_answer_has_openais_shape(plain: Site) -> None:
    answer = (await plain.post(PATH, {"input": ["ab", "c"]})).json()
    assert (answer["object"], answer["model"]) == ("list", "org/tiny")
    assert [(entry["object"], entry["index"]) for entry in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    assert [entry["embedding"] for entry in answer["data"]] == [vector(98), vector(99)]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 3


async def test_what_is_asked_for_reaches_the_engine(plain: Site) -> None:
    told = await task_of(plain, layer=-1, pooling="mean", normalize=False, dimensions=3)
    assert told == EmbedTask(layer=3, pooling="mean", normalize=False, dimensions=3)


async def test_a_folder_for_late_interaction_gives_the_vectors_of_tokens_and_no_others(tmp_path: Path) -> None:
    dense = DenseConfig(path="1_Dense", in_features=HIDDEN_SIZE, out_features=3, bias=False, is_tanh=False)
    late = EmbeddingDefaults(
        pooling="mean", normalize=True, dense=(dense,), is_late=True, prompts={"query": "[Q]"}, refusal="late"
    )
    async with site(tmp_path, defaults=late) as at:
        task = await task_of(at, pooling="none", prompt_name="query")
        assert bytes(at.engine.submitted[-1].prompt_token_ids) == b"[Q]ab"
        mean = await task_of(at, pooling="mean")
        await refuses(at, PATH, {"input": "ab"}, param="pooling")
    assert task == EmbedTask(pooling="none", normalize=True, dense=True)
    assert not mean.dense


async def test_pooling_none_gives_a_vector_a_token(plain: Site) -> None:
    (entry,) = (await plain.post(PATH, {"input": "ab", "pooling": "none", "layer": 0})).json()["data"]
    assert entry["tokens"] == ["a", "b"]
    assert entry["shape"] == [2, HIDDEN_SIZE]
    assert entry["embedding"] == [vector(97, 0), vector(98, 0)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dimensions": 9}, "dimensions"),
        ({"layer": 4}, "layer"),
        ({"layer": -5}, "layer"),
        ({"input": [[]]}, "input[0]"),
    ],
)
async def test_what_the_model_lacks_is_400(fields: dict[str, Any], param: str, plain: Site) -> None:
    assert (await plain.error(PATH, {"input": "ab", **fields}, 400))["param"] == param


async def test_binary_forms_hold_the_same_numbers(plain: Site) -> None:
    tensors = await plain.post(PATH, {"input": ["a", "b"]}, headers={"accept": "application/vnd.safetensors"})
    npy = await plain.post(PATH, {"input": "a", "pooling": "none"}, headers={"accept": "application/x-npy"})
    lines = await plain.post(PATH, {"input": "ab", "pooling": "none"}, headers={"accept": "application/x-ndjson"})
    assert load_safetensors(tensors.content)["embedding.1"].tolist() == vector(98)
    assert np.load(io.BytesIO(npy.content)).tolist() == [vector(97)]
    first, *rest = [json.loads(line) for line in lines.text.splitlines()]
    assert first["tokens"] == ["a", "b"]
    assert [(line["token"], line["embedding"]) for line in rest] == [(0, vector(97)), (1, vector(98))]


async def test_a_worker_that_fails_fails_the_request(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(failure=EngineError("boom"))) as at:
        error = await at.error(PATH, {"input": ["a", "b"]}, 500)
    assert error["message"] == "boom"


DECLARED = EmbeddingDefaults(
    pooling="cls", normalize=False, max_length=5, truncate=True, is_declared=True, lowercase=True,
    prompts={"query": "Q: ", "none": ""},
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "pooling"), [(tiny_config(), "last"), (tiny_encoder(), "mean"), (tiny_encoder_decoder(), "mean")]
)
async def test_what_stands_for_null_follows_from_the_kind_of_model(
    config: ModelConfig, pooling: Pooling, tmp_path: Path
) -> None:
    async with site(tmp_path, config=config) as at:
        assert await task_of(at) == EmbedTask(layer=None, pooling=pooling, normalize=True, dimensions=None)


async def test_a_folder_that_declares_its_embeddings_is_obeyed(tmp_path: Path) -> None:
    async with site(tmp_path, defaults=DECLARED) as at:
        assert await task_of(at, input="ABCDEFGH") == EmbedTask(pooling="cls", normalize=False)
        assert bytes(at.engine.submitted[-1].prompt_token_ids) == b"abcde"
        told = await task_of(at, input="x", pooling="mean", normalize=True)
        await refuses(at, PATH, {"input": "abcdef", "truncate": False}, "at most 5 are accepted")
    assert (told.pooling, told.normalize) == ("mean", True)


async def test_a_prompt_is_put_before_texts_and_not_before_ids(tmp_path: Path) -> None:
    async with site(tmp_path, defaults=DECLARED) as at:
        await task_of(at, input=["A", "B"], prompt_name="query")
        assert [bytes(s.prompt_token_ids) for s in at.engine.submitted] == [b"q: a", b"q: b"]
        await task_of(at, input=[65], prompt_name="query")
        assert at.engine.submitted[-1].prompt_token_ids == (65,)
        error = await at.error(PATH, {"input": "a", "prompt_name": "passage"}, 400)
    assert "unknown prompt 'passage'; accepted: 'query', 'none'" in error["message"]
    async with site(tmp_path, defaults=replace(DECLARED, default_prompt_name="query")) as at:
        await task_of(at, input="A")
        await task_of(at, input="A", prompt_name="none")
        assert [bytes(s.prompt_token_ids) for s in at.engine.submitted] == [b"q: a", b"a"]


async def test_pooling_that_cannot_be_had_is_refused_unless_another_is_named(tmp_path: Path) -> None:
    async with site(tmp_path, defaults=replace(DECLARED, refusal="modules.json: a Dense follows")) as at:
        await refuses(at, PATH, {"input": "a"}, "a Dense follows", param="pooling", code="not_supported_by_model")
        assert at.engine.submitted == []
        assert (await task_of(at, input="a", pooling="last")).pooling == "last"


async def test_dense_layers_are_for_what_the_folder_declares(tmp_path: Path) -> None:
    wide = DenseConfig(path="2_Dense", in_features=HIDDEN_SIZE, out_features=20, bias=True, is_tanh=False)
    async with site(tmp_path, defaults=replace(DECLARED, dense=(wide,))) as at:
        told = (await at.http.get("/v1/capabilities")).json()["embeddings"]
        whole = await task_of(at, input="a")
        assert await task_of(at, input="a", dimensions=20) == structs.replace(whole, dimensions=20)
        assert [(await task_of(at, input="a", **more)).dense for more in ({}, {"pooling": "cls"}, {"layer": 1})] == [
            True, False, False,
        ]  # fmt: skip
        assert at.engine.submitted[0].capture_bytes == 4 * 20
        await refuses(at, PATH, {"input": "a", "dimensions": 21}, "1 to 20 are accepted")
        await refuses(at, PATH, {"input": "a", "dimensions": 20, "pooling": "cls"}, f"1 to {HIDDEN_SIZE} are accepted")
    assert (told["dimensions"], told["defaults"]["dense"]) == (20, [20])


async def test_an_encoder_decoder_embeds_with_its_encoder(tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder_decoder()) as at:
        answer = await at.post(PATH, {"input": "ab", "pooling": "none", "layer": -1})
        (submitted,) = at.engine.submitted
        await refuses(at, PATH, {"input": "ab", "layer": 3}, "there is no layer 3; accepted are 0 to 2")
    assert bytes(submitted.encoder_token_ids) == b"ab"
    assert submitted.task == EmbedTask(layer=2, pooling="none", normalize=True)
    assert answer.json()["data"][0]["tokens"] == ["a", "b"]
    assert answer.json()["data"][0]["shape"] == [2, HIDDEN_SIZE]


async def test_a_cut_keeps_the_special_tokens_at_both_ends(plain: Site) -> None:
    """Truncate as transformers does: the text is cut, so that an encoder still sees its [CLS] and [SEP]."""
    spans = [(0, 0), *((i, i + 1) for i in range(6)), (0, 0)]
    prompt = Prompt(packed([256, *b"abcdef", 256]), offsets=packed(sum(spans, ())), num_ending=1)
    cut = fit_input(plain.context, prompt, True, "input", 5)
    assert ([*cut.ids], cut.spans) == ([256, *b"abc", 256], [*spans[:4], (0, 0)])
    assert fit_input(plain.context, prompt, True, "input", 8) == prompt
    assert len(fit_input(plain.context, prompt, True, "input", 1).ids) == 1


async def test_token_ids_are_warned_of_once(plain: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Warn because langchain's OpenAIEmbeddings sends tiktoken's ids, which are wrong for this model."""
    _warn_of_ids.cache_clear()
    for value in ("a text", [1, 2], [[1, 2], [3]], [1]):
        assert (await plain.post("/v1/embeddings", {"input": value})).status_code == 200
    (record,) = [each for each in caplog.records if "check_embedding_ctx_length" in each.message]
    assert record.levelname == "WARNING"
