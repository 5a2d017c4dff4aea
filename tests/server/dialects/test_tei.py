"""The routes of Text Embeddings Inference that embed, compare and label, GET /info, and POST / of its clients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient

from model.network.sentence_transformers import EmbeddingDefaults
from tests.server.dialects.heads import answer, classifier, logits_of, served
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site, listening, site, tiny_config, tiny_encoder
from tests.tiny import make_variant

TEXTS = ["The fox saw a crow.", "a crow", "x" * 20]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    return InlineEngine(folder=make_variant("bert", tmp_path_factory.mktemp("bert")))


def serving(engine: InlineEngine, **options: Any) -> Any:
    return site(engine.folder, engine, config=engine.model_config, **options)


async def vectors(at: Site, **fields: Any) -> list[Any]:
    """Return the vectors that POST /v1/embeddings gives."""
    return [each["embedding"] for each in (await answer(at, "/v1/embeddings", **fields))["data"]]


async def test_vectors_are_those_of_v1_in_teis_shape(engine: InlineEngine) -> None:
    async with serving(engine) as at:
        expected = await vectors(at, input=TEXTS, normalize=True)
        for path in ("/embed", "/"):
            assert await answer(at, path, inputs=TEXTS) == expected
            assert await answer(at, path, inputs=TEXTS[0], truncate=False, encoding_format="float") == expected[:1]
            ids = (await answer(at, "/tokenize", prompt=TEXTS[0]))["tokens"]
            assert await answer(at, path, inputs=[ids]) == await answer(at, path, inputs=ids) == expected[:1]
            as_they_are = await answer(at, path, inputs=TEXTS[0], normalize=False, dimensions=4)
            assert as_they_are == await vectors(at, input=TEXTS[0], normalize=False, dimensions=4)
        tokens = await vectors(at, input=TEXTS, pooling="none", normalize=False)
        assert await answer(at, "/embed_all", inputs=TEXTS) == tokens


async def test_similarities_are_cosines(engine: InlineEngine) -> None:
    source, *sentences = TEXTS
    async with serving(engine) as at:
        first, *others = np.array(await answer(at, "/embed", inputs=TEXTS))
        for path in ("/similarity", "/"):
            asked = {"source_sentence": source, "sentences": sentences}
            found = await answer(at, path, inputs=asked, parameters={"truncate": True})
            assert np.abs(np.subtract(found, others @ first)).max() <= 1e-6
        error = await at.error("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "x " * 999]}}, 400)
        assert error["message"].startswith("inputs.sentences[1]: the prompt has ")
        assert error["message"].endswith(" Set parameters.truncate to cut it.")
        late = EmbeddingDefaults(pooling="none", normalize=True)  # type: ignore[arg-type]
    async with serving(engine, defaults=late) as at:
        error = await at.error("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, 400)
        assert "a vector of each token" in error["message"]


@pytest.mark.parametrize(("direction", "kept"), [("Right", b"ab"), ("left", b"cd"), ("Left", b"cd"), ("right", b"ab")])
async def test_a_text_is_cut_at_the_side_that_is_named(direction: str, kept: bytes, tmp_path: Path) -> None:
    async with site(tmp_path, config=tiny_encoder(), max_model_len=2) as at:
        await answer(at, "/embed", inputs="abcd", truncate=True, truncation_direction=direction)
        assert bytes(at.engine.submitted[-1].prompt_token_ids) == kept
        error = await at.error("/embed", {"inputs": "abcd", "truncation_direction": direction}, 400)
    told = "inputs: the prompt has 4 tokens; at most 2 are accepted. Set truncate to cut it."
    assert error == {"message": told, "type": "Validation"}


async def test_info_tells_the_kind_of_the_model_and_its_limits(tmp_path: Path) -> None:
    defaults = EmbeddingDefaults(pooling="cls", normalize=True, truncate=True, max_length=32, is_declared=True)
    async with site(tmp_path, config=tiny_encoder(), defaults=defaults, api_key=("key",)) as at:
        assert (await at.http.get("/info")).json().keys() == {"error", "error_type"}
        told = (await at.http.get("/info", headers={"authorization": "Bearer key"})).json()
    assert (told["model_id"], told["model_type"]) == ("org/tiny", {"embedding": {"pooling": "cls"}})
    assert (told["max_input_length"], told["auto_truncate"], told["model_pipeline_tag"]) == (32, True, None)
    async with site(tmp_path, config=tiny_config()) as at:
        told = (await at.http.get("/info")).json()
    assert (told["model_pipeline_tag"], told["max_total_tokens"]) == ("text-generation", 64)


async def test_the_labels_of_the_inference_api(tmp_path: Path) -> None:
    """Send the body of huggingface_hub's `text_classification`, which expects a list of lists."""
    folder = classifier(tmp_path, "bert", id2label={0: "no", 1: "maybe", 2: "yes"})
    logits = logits_of(folder, TEXTS[0])
    functions = {"none": logits, "sigmoid": 1 / (1 + np.exp(-logits)), "softmax": np.exp(logits) / np.exp(logits).sum()}
    async with served(folder) as at:
        plain = await answer(at, "/predict", inputs=TEXTS[0])
        for path in ("/predict", "/"):
            assert await answer(at, path, inputs=TEXTS[0]) == plain
            assert await answer(at, path, inputs=TEXTS[0], parameters={}) == [plain]
            for name, expected in functions.items():
                (found,) = await answer(at, path, inputs=TEXTS[0], parameters={"function_to_apply": name, "top_k": 2})
                assert np.abs([each["score"] for each in found] - np.sort(expected)[:0:-1]).max() <= 1e-5
        error = await at.error("/", {"inputs": "a", "parameters": {"top_k": 0}}, 400)
        assert error["message"].startswith("parameters.top_k: ")
        kind = (await at.http.get("/info")).json()["model_type"]
    assert kind["classifier"]["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
    assert kind["classifier"]["label2id"] == {"no": 0, "maybe": 1, "yes": 2}


async def test_a_reranker_takes_a_query_and_texts_at_the_root(tmp_path: Path) -> None:
    body: dict[str, Any] = {"query": "who?", "texts": TEXTS[:2]}
    async with served(classifier(tmp_path, "bert", num_labels=1)) as at:
        assert await answer(at, "/", **body) == await answer(at, "/rerank", **body)
        assert (await at.http.get("/info")).json()["model_type"].keys() == {"reranker"}


async def test_huggingface_hub_embeds_compares_and_labels(engine: InlineEngine, tmp_path: Path) -> None:
    """Use huggingface_hub unmodified, as users of a server do: `InferenceClient(model=url)`."""
    at = build_site(engine.folder, engine, config=engine.model_config)
    async with listening(at) as url, AsyncInferenceClient(model=url, provider="hf-inference") as client:
        vector = await client.feature_extraction(TEXTS[0], normalize=True, truncate=True, truncation_direction="left")
        similar = await client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[:2])
        info = await client.get_endpoint_info()
    assert vector.shape == (1, engine.model_config.hidden_size)
    assert abs(np.linalg.norm(vector) - 1) < 1e-5
    assert abs(similar[0] - 1) < 1e-5
    assert info["model_id"] == "org/tiny"
    labelling = InlineEngine(folder=classifier(tmp_path, "bert", id2label={0: "no", 1: "maybe", 2: "yes"}))
    at = build_site(labelling.folder, labelling, config=labelling.model_config)
    async with listening(at) as url, AsyncInferenceClient(model=url) as client:
        labels = await client.text_classification(TEXTS[0], top_k=2)
    assert len(labels) == 2
    assert labels[0].score > labels[1].score > 0
