"""The client against the real server with the default model: answers match the documented API."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot

from lightwell_client import (
    AsyncClient,
    AttentionResult,
    BadRequest,
    ChatCompletion,
    Client,
    Completion,
    InspectionResult,
    NotFound,
    PageView,
    TooLarge,
    TraceResult,
)
from lightwell_client._notebook import NotebookView
from lightwell_client.interventions import patch, zero
from tests.client.test_examples import run as run_example
from tests.client.test_readme import run_blocks
from tests.support.shared import shared_server

mpl.use("Agg")  # no display in tests

PROMPT = "Once upon a time there was a king who had a "


@pytest.fixture(scope="module")
def url() -> str:
    return shared_server("--served-model-name", "fables", "--dtype", "float32").url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def test_a_stream_joined_is_the_whole_text(client: Client) -> None:
    whole = client.generate(PROMPT, max_tokens=24, temperature=0)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    chunks = list(client.stream(PROMPT, max_tokens=24, temperature=0, include_usage=True))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


def test_choices_of_a_stream_can_be_told_apart(client: Client) -> None:
    whole = client.generate([PROMPT, "The fox"], max_tokens=6, seed=1, n=2)
    texts = [""] * 4
    for chunk in client.stream([PROMPT, "The fox"], max_tokens=6, seed=1, n=2):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_attention_comes_with_its_tokens_and_axes(client: Client) -> None:
    result = client.attention("The fox ran home.")
    tokens = client.tokenize("The fox ran home.")
    assert result.token_ids == tuple(tokens.ids)
    assert list(result.tokens) == tokens.strings
    size = len(tokens)
    assert result.shape == (len(result.layers), len(result.heads), size, size)
    np.testing.assert_allclose(result.attention.sum(-1), 1, atol=1e-5)
    assert not np.triu(result.attention, 1).any()
    assert result._repr_html_().count("<img") == result.shape[0] * result.shape[1]


def test_every_selection_agrees_with_the_whole(client: Client) -> None:
    text = "The fox ran home."
    whole = client.attention(text)
    one = client.attention(text, layers=-1, heads=[3, 1], query_positions=-1)
    np.testing.assert_array_equal(one.attention[0, :, 0], whole.attention[-1, [3, 1], -1])
    np.testing.assert_array_equal(one.matrix(layer=-1, head=-5), one.matrix(layer=5, head=3))
    np.testing.assert_array_equal(
        client.trace(text, "attn.hook_pattern").point("attn.hook_pattern", -1).array[3], whole.matrix(-1, 3)
    )
    pairs = client.attention(text, pairs=[(2, 5), (0, 1)])
    np.testing.assert_array_equal(pairs.matrix(2, 5), whole.matrix(2, 5))
    columns = client.attention(text, layers=1, orientation="columns")
    np.testing.assert_array_equal(columns.matrix(1, 4), whole.matrix(1, 4).T)
    reduced = client.attention(text, reduce="mean")
    np.testing.assert_allclose(reduced.matrix(2), whole.attention[2].mean(0), atol=1e-6)
    largest = client.attention(text, top_k=2)
    assert largest.indices is not None
    np.testing.assert_array_equal(largest.attention[..., 0], whole.attention.max(-1))
    rounded = client.attention(text, dtype="uint8")
    np.testing.assert_array_equal(rounded.attention, np.rint(whole.attention * 255).astype("uint8"))
    many = client.attention([text, "A goose."])
    np.testing.assert_array_equal(many[0].attention, whole.attention)


def test_a_head_without_output_changes_what_comes_and_the_next_request_is_untouched(client: Client) -> None:
    clean = client.next(PROMPT, full=True)["logits"]
    heads = [zero("attn.hook_z", layer=layer, head=0) for layer in range(6)]
    assert not np.array_equal(client.next(PROMPT, full=True, interventions=heads)["logits"], clean)
    np.testing.assert_array_equal(client.next(PROMPT, full=True)["logits"], clean)
    with pytest.raises(BadRequest, match="hook_z"):
        client.next(PROMPT, interventions=[zero("attn.hook_zz", layer=0)])


@pytest.mark.parametrize("point", ["attn.hook_attn_scores", "attn.hook_pattern"])
def test_what_a_trace_tells_of_attention_can_be_put_back(point: str, client: Client) -> None:
    """Guard against refusals: masked scores were refused by the server, and a few of them by the client's own JSON."""
    for text in (PROMPT, "The fox"):
        told = client.trace(text, [point, "logits"], layers=2)
        value = told.point(point, 2).array
        for change in (patch(point, value, layer=2), {"point": point, "op": "patch", "layer": 2, "value": value}):
            again = client.trace(text, ["logits"], interventions=[change])
            np.testing.assert_allclose(again["logits"], told["logits"], atol=1e-5)
        other = client.trace(text, ["logits"], interventions=[zero(point, layer=2)])
        assert not np.allclose(other["logits"], told["logits"], atol=1e-3), "the change is seen"


def test_the_heads_that_matter_are_found_by_taking_them_out(url: str, tmp_path: Path) -> None:
    done = run_example("take_a_head_out.py", PROMPT, " son", "--top", "2", "--base-url", url, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    changes = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert len(changes) == 2
    assert changes == sorted(changes)


def test_tokens_models_version_health(client: Client) -> None:
    text = "Ein Fuchs, ein König 🦊!"
    assert client.detokenize(client.tokenize(text).ids) == text
    [model] = client.models()
    assert model.max_model_len == 512
    assert client.generate("x", model=model.id, max_tokens=1).model == model.id
    assert client.version()
    assert client.health().ready
    assert client.capabilities()


def test_what_the_server_refuses_names_the_field(client: Client) -> None:
    with pytest.raises(BadRequest) as caught:
        client.generate("x", temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.request_id
    with pytest.raises(NotFound, match="nobody"):
        client.generate("x", model="nobody")
    with pytest.raises(NotFound, match="nobody"):
        list(client.stream("x", model="nobody"))
    with pytest.raises((BadRequest, TooLarge)):
        client.attention("x", layers=99)
    assert client.generate("x", max_tokens=1).choices


async def test_many_streams_at_once_each_bring_the_text_that_comes_alone(url: str) -> None:
    prompts = [f"{PROMPT}{word}" for word in ("fox", "goose", "son", "golden ring")]
    async with AsyncClient(url) as client:

        async def streamed(prompt: str) -> str:
            return "".join([chunk.text async for chunk in client.stream(prompt, max_tokens=8, temperature=0)])

        alone = [await streamed(prompt) for prompt in prompts]
        assert await asyncio.gather(*map(streamed, prompts)) == alone


def test_the_readmes_blocks_run_on_the_real_server(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run_blocks(url)
    printed = capsys.readouterr().out
    assert "looks most at" in printed
    claimed = [value for value in made.values() if isinstance(value, NotebookView)]
    assert {"AttentionResult", "TraceResult", "Completion", "Embeddings"} <= {type(v).__name__ for v in claimed}
    for value in claimed:
        if not isinstance(value, Completion | ChatCompletion):  # which draw log-probabilities
            one_point = {"name": "hook_resid_post"} if isinstance(value, TraceResult) else {}
            assert value.plot(**one_point).get_title()
        assert value.to_html().startswith("<!doctype html>")
        if isinstance(value, InspectionResult | AttentionResult):
            assert isinstance(value, Mapping)
            assert all(array.flags.writeable for array in dict(value).values())
    pyplot.close("all")
    pairs = re.search(r"^\[\('Once', .*$", printed, re.MULTILINE)
    assert pairs is not None
    assert pairs[0].count("('") == len(made["who"].tokens), "no repeated word is dropped"
    assert len(made["two_layers"].layers) == 2
    assert 'src="data:image/png' in (tmp_path / "heat_maps.html").read_text(encoding="utf-8")


def test_a_view_is_shown_alike_by_both_clients_and_saved(url: str, client: Client, tmp_path: Path) -> None:
    """Compare everything but the times; tests/page/test_shown.py tests that a browser shows it."""

    async def show() -> PageView:
        async with AsyncClient(url, api_key="sk-of-somebody") as other:
            return await other.show("attention", PROMPT, layer=-1, head=[5, 2])

    views = [client.show("attention", PROMPT, layer=-1, head=[5, 2]), asyncio.run(show())]
    texts = [re.sub('"at": "[^"]*"', "", view.html) for view in views]
    assert texts[0] == texts[1]
    assert "sk-of-somebody" not in texts[1]
    views[0].save(tmp_path / "view.html")
    assert (tmp_path / "view.html").read_text(encoding="utf-8") == views[0].html
    assert repr(views[0]).startswith("PageView('attention', ")
    with pytest.raises(NotFound, match="accepted: home, attention, why"):
        client.show("nowhere", PROMPT)
    with pytest.raises(TypeError, match=r"known are .*layer"):
        client.show("attention", PROMPT, heads=3)
