"""The embeddings view: its cosines are computed from the API's vectors; a click on one text shows its neighbours."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open, ask, percent, saved, settle, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

TEXTS = ["The king sat on his throne.", "The wolf ran through the forest.", "The ship sailed over the sea."]


def test_a_layer_is_chosen_and_kept_in_the_url(open_view: Open, server: Server) -> None:
    page = open_view("embeddings", embeddings_texts="\n".join(TEXTS))
    page.get_by_label("Layer").select_option("2")
    page.get_by_label("Pooling").select_option("mean")
    settle(page)
    data = ask(server, "/v1/embeddings", {"input": TEXTS, "layer": 2, "pooling": "mean"})["data"]
    a, b, c = (np.array(entry["embedding"]) for entry in data)
    best = max(
        float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), float(a @ c / np.linalg.norm(a) / np.linalg.norm(c))
    )
    expect(page.locator(".bars tbody tr").first).to_contain_text(written(best))
    page.wait_for_url("**embeddings_layer=2**")
    page.wait_for_url("**embeddings_pooling=mean**")
    page.reload()
    settle(page)
    expect(page.get_by_label("Layer")).to_have_value("2")
    expect(page.locator(".bars tbody tr").first).to_contain_text(written(best))


def test_the_examples_show_three_kinds_of_texts_and_others_are_typed(open_view: Open, server: Server) -> None:
    page = open_view("embeddings")
    texts = page.get_by_label("Texts, one a line").input_value().split("\n")
    kinds = [("king", "queen", "prince"), ("wolf", "fox", "bear"), ("ship", "boat")]
    ends = [text.split()[-1] for text in texts]
    assert ends == [end for kind in kinds for end in kind]
    data = ask(server, "/v1/embeddings", {"input": texts})["data"]
    vectors = np.array([entry["embedding"] for entry in data])
    cosines = vectors @ vectors.T / np.outer(*[np.linalg.norm(vectors, axis=1)] * 2) - 2 * np.eye(len(texts))
    for text, nearest in enumerate(cosines.argmax(1)):
        assert any(ends[text] in kind and ends[nearest] in kind for kind in kinds)
    expect(page.locator(".bars tbody tr").first).to_contain_text(texts[cosines[0].argmax()])

    page.get_by_label("Texts, one a line").fill("A cat.\nA dog.")
    expect(page.locator(".bars tbody tr")).to_have_count(1)
    expect(page.locator(".bars tbody tr")).to_contain_text("A dog.")
    page.get_by_label("Texts, one a line").fill("A cat.\nA cat.")
    expect(page.locator(".card .hint").first).to_have_text("The smallest cosine is 1; the colours go from 0.99 to 1.")


def test_the_plane_is_that_of_the_singular_vectors(open_view: Open, server: Server) -> None:
    texts = [*TEXTS, "A cat.", "The old king was very sad.", "Once upon a time"]
    page = open_view("embeddings", embeddings_texts="\n".join(texts))
    vectors = np.array([entry["embedding"] for entry in ask(server, "/v1/embeddings", {"input": texts})["data"]])
    left, singular, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    expected = left[:, :2] * singular[:2]
    card = page.locator(".card", has=page.get_by_role("heading", name="In a plane"))
    for share in (singular**2 / (singular**2).sum())[:2]:
        expect(card).to_contain_text(percent(float(share)))
    svg = saved(card, "picture (SVG)").read_text()
    dots = np.array(re.findall(r'<path d="M([-\d.]+) ([-\d.]+)a', svg), float)
    dots -= dots.mean(0)
    scale = np.linalg.norm(dots) / np.linalg.norm(expected)  # of the picture: one for both axes
    signs = np.sign((dots * expected).sum(0))  # of singular vectors: any
    np.testing.assert_allclose(dots, scale * signs * expected, atol=0.5)  # half a pixel


def test_names_in_the_plane_cover_neither_each_other_nor_a_point(open_view: Open) -> None:
    texts = [
        f"The {who} {what}."
        for who in ["king", "queen", "wolf", "fox", "bear", "ship", "girl", "boy", "prince", "witch"]
        for what in ("ran through the dark forest", "sat on the golden throne", "sailed over the sea")
    ]
    page = open_view("embeddings", embeddings_texts="\n".join(texts))
    card = page.locator(".card", has=page.get_by_role("heading", name="In a plane"))
    svg = saved(card, "picture (SVG)").read_text()
    names = re.findall(r'<text x="([-\d.]+)" y="([-\d.]+)"[^>]*>([^<]*)</text>', svg)
    dots = [(float(x) + 4.5, float(y)) for x, y in re.findall(r'<path d="M([-\d.]+) ([-\d.]+)a', svg)]
    assert len(dots) == len(texts)
    assert len(names) >= len(texts) / 2
    measure = """texts => {
        const context = document.createElement("canvas").getContext("2d");
        context.font = "12px system-ui, sans-serif";
        return texts.map((text) => context.measureText(text).width);
    }"""
    widths = page.evaluate(measure, [text for _, _, text in names])
    boxes = [
        (float(x), float(y) - 5, float(x) + wide, float(y) + 5) for (x, y, _), wide in zip(names, widths, strict=True)
    ]
    boxes += [(x - 4, y - 4, x + 4, y + 4) for x, y in dots]
    for i, (left, top, right, bottom) in enumerate(boxes[: len(names)]):
        for j, other in enumerate(boxes):
            apart = other[0] >= right or other[2] <= left or other[1] >= bottom or other[3] <= top
            assert i == j or apart, (names[i], j)
