"""The routes of Text Generation Inference and Text Embeddings Inference, and POST / of their clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import ValidationError

from lightwell.model.network.sentence_transformers import EmbeddingDefaults, SparseConfig
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.engine.messages.request import GenerateTask, SparseTask
from lightwell.server.http.errors import EngineError, QueueFull
from tests import tiny
from tests.server.dialects.heads import answer, classifier, logits_of, served
from tests.server.dialects.routes import refuses
from tests.server.engine.captures.test_sparse_vectors import save, theirs
from tests.server.fake_client import FakeEngine
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site, events_of, listening, site, tiny_config, tiny_encoder, tiny_masked_lm
from tests.tiny import make_variant

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def tasks_of(at: Site) -> list[GenerateTask]:
    return [each.task for each in at.engine.submitted if isinstance(each.task, GenerateTask)]


async def test_an_answer_has_tgis_form(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(script=tuple(b"hi"))) as at:
        asked: dict[str, Any] = {"inputs": "ab", "parameters": {"max_new_tokens": 3}}
        assert await answer(at, "/generate", **asked) == {"generated_text": "hih"}
        assert await answer(at, "/", **asked) == [{"generated_text": "hih"}]
        full = {"max_new_tokens": 3, "return_full_text": True}
        assert await answer(at, "/generate", inputs="ab", parameters=full) == {"generated_text": "abhih"}
        detailed = {"max_new_tokens": 2, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
        told = (await answer(at, "/generate", inputs="ab", parameters=detailed))["details"]
    (task,) = tasks_of(at)[-1:]
    assert (told["finish_reason"], told["generated_tokens"], told["seed"]) == ("length", 2, None)
    assert [each["id"] for each in told["prefill"]] == list(b"ab")
    assert told["prefill"][0]["logprob"] is None
    assert [(each["id"], each["text"], each["special"]) for each in told["tokens"]] == [
        (104, "h", False),
        (105, "i", False),
    ]
    assert [len(each) for each in told["top_tokens"]] == [2, 2]
    assert task.sampling.temperature == 0


async def test_the_advice_for_a_long_prompt_names_tgis_field(plain: Site) -> None:
    error = (await plain.post("/generate", {"inputs": "x" * 3_000})).json()
    assert error["error"].endswith(" are accepted. Set parameters.truncate to cut it.")


async def test_a_streams_texts_join_to_the_whole_text(tmp_path: Path) -> None:
    script = tuple("aé世".encode())
    async with site(tmp_path, FakeEngine(script=script)) as at:
        asked: dict[str, Any] = {
            "inputs": "x",
            "parameters": {"max_new_tokens": 6, "details": True, "seed": 5, "top_k": 9},
        }
        for path, more in (("/generate_stream", {}), ("/generate", {"stream": True}), ("/", {"stream": True})):
            events = events_of(await at.post(path, {**asked, **more}))
            assert [each["index"] for each in events] == [1, 2, 3, 4, 5, 6]
            assert [each["token"]["id"] for each in events] == list(script)
            assert "".join(each["token"]["text"] for each in events) == events[-1]["generated_text"] == "aé世"
            assert all(each["generated_text"] is each["details"] is None for each in events[:-1])
            end = {"finish_reason": "length", "generated_tokens": 6, "seed": 5, "input_length": 1}
            assert events[-1]["details"] == end
    assert tasks_of(at)[0].sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("engine", "parameters", "reason", "text"),
    [
        (FakeEngine(eos_after=2), {}, "eos_token", "hi"),
        (FakeEngine(), {"stop": ["ih"]}, "stop_sequence", "hih"),
        (FakeEngine(), {"max_new_tokens": 2}, "length", "hi"),
    ],
)
async def test_the_end_is_told(
    engine: FakeEngine, parameters: dict[str, Any], reason: str, text: str, tmp_path: Path
) -> None:
    async with site(tmp_path, engine) as at:
        told = await answer(at, "/generate", inputs="x", parameters={**parameters, "details": True})
        events = events_of(await at.post("/generate_stream", {"inputs": "x", "parameters": parameters}))
    assert (told["generated_text"], told["details"]["finish_reason"]) == (text, reason)
    assert events[-1]["generated_text"] == text
    if reason == "eos_token":
        assert told["details"]["tokens"][-1] == events[-1]["token"]
        assert (events[-1]["token"]["text"], events[-1]["token"]["special"]) == ("<|end|>", True)


async def test_parameters_are_those_of_completions_by_other_names(plain: Site) -> None:
    alike = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.5, "frequency_penalty": 0.5, "seed": 7,
    }  # fmt: skip
    theirs = {
        **alike, "max_new_tokens": 5, "stop": ["zz"], "truncate": 2, "typical_p": None, "watermark": False,
        "best_of": 1,
    }  # fmt: skip
    ours = {**alike, "max_tokens": 5, "stop": ["zz"], "truncate_prompt_tokens": 2}
    await answer(plain, "/v1/completions", prompt="abcd", **ours)
    await answer(plain, "/generate", inputs="abcd", parameters=theirs)
    await answer(plain, "/generate", inputs="abcd")
    expected, found, default = plain.engine.submitted
    assert found.task == expected.task
    assert found.prompt_token_ids == expected.prompt_token_ids == tuple(b"cd")
    assert isinstance(default.task, GenerateTask)
    assert (default.task.sampling.max_tokens, default.task.sampling.temperature) == (60, 0.0)
    plain.model.adapters._served["tales"] = ServedAdapter("tales", 1, Path("/loras/tales"), 0)
    await answer(plain, "/generate", inputs="abcd", parameters={"adapter_id": "tales"})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": -1}, "parameters.temperature: input should be greater than or equal to 0"),
        ({"max_new_tokens": 500}, "parameters.max_new_tokens: 500 is too large"),
        ({"grammar": {"type": "json", "value": {"type": "no"}}}, "parameters.grammar.value.type: "),
        ({"grammar": {"type": "regex", "value": {}}}, "parameters.grammar.value: a regular expression is accepted"),
        ({"grammar": {"type": "xml", "value": ""}}, "parameters.grammar.type: "),
        ({"watermark": True}, "parameters.watermark: not supported"),
        ({"best_of": 2}, "parameters.best_of: not supported"),
        ({"adapter_id": "none"}, "The model 'none' does not exist here"),
        ({"max_tokens": 2}, "parameters.max_tokens: no such field"),
        ({"decoder_input_details": True, "details": True}, "parameters.decoder_input_details: a stream"),
    ],
)
async def test_what_is_refused_is_named_as_the_client_wrote_it(
    parameters: dict[str, Any], message: str, plain: Site
) -> None:
    for path in ("/generate", "/"):
        found = await plain.post(path, {"inputs": "x", "parameters": parameters, "stream": True})
        assert found.status_code in (400, 404), found.text
        assert found.json()["error"].startswith(message)
        assert found.json()["error_type"] == "validation"
    assert not plain.engine.submitted


async def test_errors_of_the_server_have_tgis_types(tmp_path: Path) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 4}}
    async with site(tmp_path, FakeEngine(fail_after=2, failure=EngineError("it broke"))) as at:
        assert (await at.post("/generate", body)).json() == {"error": "it broke", "error_type": "generation"}
        events = events_of(await at.post("/generate_stream", body))
        assert [each.get("error") for each in events] == [None, None, "it broke"]
        at.engine.full = QueueFull("full", code="queue_full", retry_after=1)
        full = await at.post("/generate", body)
    assert (full.status_code, full.json()["error_type"]) == (429, "overloaded")


async def test_huggingface_hub_generates_streams_and_chats(tmp_path: Path) -> None:
    """Use the package unmodified: its schemas for chats, and its model name for a URL."""
    engine = InlineEngine(folder=make_variant("llama-gqa", tmp_path))
    at = build_site(engine.folder, engine, config=engine.model_config)
    async with listening(at) as url, AsyncInferenceClient(model=url) as client:
        asked: dict[str, Any] = {"max_new_tokens": 5, "seed": 1, "do_sample": True}
        text = await client.text_generation("Once", **asked)
        detailed = await client.text_generation("Once", details=True, decoder_input_details=True, **asked)
        streamed = [each async for each in await client.text_generation("Once", stream=True, details=True, **asked)]
        held = await client.text_generation("Once", max_new_tokens=40, grammar={"type": "json", "value": SCHEMA})
        with pytest.raises(ValidationError, match="is too large"):
            await client.text_generation("Once", max_new_tokens=500)
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
        messages = [{"role": "user", "content": "Once"}]
        chat = await client.chat_completion(messages, max_tokens=40, response_format=form)
    assert text == detailed.generated_text == streamed[-1].generated_text
    assert [each.id for each in detailed.details.tokens] == [each.token.id for each in streamed]
    assert len(detailed.details.prefill) == streamed[-1].details.input_length
    assert json.loads(held)["a"] in (1, 2)
    assert json.loads(chat.choices[0].message.content)["a"] in (1, 2)


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
        monkeypatch.setattr("lightwell.server.dialects.huggingface.sparse._WORDS_AT_ONCE", 2)
        assert (await at.post(ROUTE, {"inputs": ["abc", "ddef"]})).json() == whole
    assert [len(words) for words in whole] == [3, 3]
