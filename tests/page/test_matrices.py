"""Matrices as pictures: sizes of any model, softmax of one's own numbers, and the texts about the weights."""

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import KEY, TEXT, Open, ask, settle, written
from tests.page.test_accessibility import serious
from tests.page.test_copied import copied
from tests.page.test_saved_matrices import of_fables
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

SHOWN = ("numbers", "product", "rank", "angles", "positions", "units", "sizes")


def row(page: Page, table: str, name: str) -> list[str]:
    """Return the cells of a row of a table, after its heading."""
    cells = page.get_by_role("table", name=table).get_by_role("row", name=name).locator("td")
    return [text.replace("\u202f", " ") for text in cells.all_inner_texts()]


def token_ids(page: Page, text: str) -> list[int]:
    """Return the tokens of a text, requested without the page's script."""
    request = {"prompt": text, "add_special_tokens": False}
    ids: list[int] = page.request.post(page.url.partition("#")[0] + "tokenize", data=request).json()["tokens"]
    return ids


def test_gpt_3_is_counted_to_the_last_digit(open_view: Open) -> None:
    page = open_view("weights", weights_show="sizes")
    table = "Parameters of each part"
    assert row(page, table, "embedding W_E") == ["W_E", "12 288 × 50 257", "617 558 016", "0.353 %"]
    for name, weight in (("key", "W_K"), ("query", "W_Q"), ("value", "W_V")):
        assert row(page, table, f"{name} {weight}")[1:] == ["128 × 12 288 × 96 × 96", "14 495 514 624", "8.27 %"]
    assert row(page, table, "output W_O")[1:] == ["12 288 × 128 × 96 × 96", "14 495 514 624", "8.27 %"]
    assert row(page, table, "up W_in")[1:] == ["49 152 × 12 288 × 96", "57 982 058 496", "33.1 %"]
    assert row(page, table, "down W_out")[1:] == ["12 288 × 49 152 × 96", "57 982 058 496", "33.1 %"]
    expect(page.locator(".total")).to_have_text("175\u202f181\u202f291\u202f520 parameters in all")


def test_the_served_model_and_any_other_are_counted_too(open_view: Open, server: Server) -> None:
    page = open_view("weights", weights_show="sizes")
    page.get_by_role("button", name="fables", exact=True).click()
    whole = ask(server, "/v1/models/fables/parameters")["matrices_untied"]
    expect(page.locator(".total b")).to_have_text(f"{whole:,}".replace(",", "\u202f"))
    field = page.get_by_label("n_layers")
    field.fill("12")
    field.press("Enter")
    twice = 2 * whole - 2 * 4096 * 256  # but one token table and one unembedding
    expect(page.locator(".total b")).to_have_text(f"{twice:,}".replace(",", "\u202f"))
    page.wait_for_url("**weights_sizes=4096%2C256%2C12%2C8%2C32%2C688**")
    field.fill("many")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("“many” is not a size")


def test_softmax_of_ones_own_logits_at_several_temperatures(open_view: Open) -> None:
    page = open_view("next")
    table = "Softmax of the numbers at several temperatures"
    for logit, shares in (
        ("2", ["0.867", "0.665", "0.506"]),
        ("1", ["0.117", "0.245", "0.307"]),
        ("0", ["0.016", "0.090", "0.186"]),
    ):
        cells = page.get_by_role("table", name=table).locator("tr", has=page.locator(f"th:text-is('{logit}')"))
        assert [text.strip() for text in cells.locator("td").all_inner_texts()] == shares
    field = page.get_by_label("Logits")
    field.fill("[3, 3, -1.5]")
    page.wait_for_url("**next_logits=%5B3**")  # typed: it counts a moment after the last key
    shares = np.exp(np.array([3, 3, -1.5]) / 2) / np.exp(np.array([3, 3, -1.5]) / 2).sum()
    assert row(page, table, "entropy")[2] == f"{-(shares * np.log(shares)).sum():.3g}"
    for typed, lack in (("3, x", "Write one to 20 numbers"), ("2,5", "write 2.5 for one number, and 2, 5 for two")):
        field.fill(typed)
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text(lack)
    field.fill("2,5; 1")
    field.press("Enter")
    half = page.get_by_role("table", name=table).get_by_role("row", name="2.5").locator("td").nth(1)
    expect(half).to_contain_text(f"{1 / (1 + np.exp(-1.5)):.3f}")


def test_a_matrix_times_a_word_is_its_query(open_view: Open) -> None:
    """Compare with a query computed only from weights: the first block reads the normalised embedding."""
    page = open_view("weights", weights_show="product", layer=0, head=6, query=3)
    card = page.locator("section.card").nth(0)
    expect(card).to_contain_text("The vector of “time”, where block 0 begins, has 256 numbers.")
    page.get_by_role("application", name="W_Q times the vector of “time”").focus()
    page.keyboard.press("ArrowRight")
    said = card.locator(".readout").first
    expect(said).to_contain_text("all 256 products: q[0] = ")
    page.keyboard.press("ArrowRight")
    embedding = of_fables("embed_tokens")[token_ids(page, TEXT)[3]].astype(float)
    x = embedding / np.sqrt((embedding**2).mean() + 1e-5) * of_fables("layers.0.input_layernorm")
    q = of_fables("layers.0.self_attn.q_proj")[6 * 32 : 7 * 32] @ x
    expect(said).to_contain_text("q[1] = ")
    found = re.search(r"q\[1\] = (\S+)", said.inner_text())
    assert found is not None
    assert float(found[1].replace("−", "-")) == pytest.approx(q[1], abs=0.02 * np.abs(q).max())
    page.get_by_role("button", name="W_K: key").click()
    settle(page)
    expect(card).to_contain_text("The vector of “Once”")
    gap = float(card.locator(".gap").inner_text().replace("−", "-"))
    assert gap < 0.05, "the network rounds to bfloat16"


def test_value_down_and_up_stand_for_a_large_matrix_of_low_rank(open_view: Open) -> None:
    page = open_view("weights", weights_show="rank", layer=2, head=5)
    card = page.locator("section.card").first
    text = card.inner_text().replace("\u202f", " ")
    assert "256 × 32 + 32 × 256 = 16 384 numbers" in text
    assert "256 × 256 = 65 536 numbers, 4 times as many" in text
    down = of_fables("layers.2.self_attn.v_proj")[5 * 32 : 6 * 32].T.astype(float)
    up = of_fables("layers.2.self_attn.o_proj").T[5 * 32 : 6 * 32].astype(float)
    values = np.linalg.svd(down @ up, compute_uv=False)
    assert values[32:].max() < 1e-6
    shares = values[:32] / values[:32].sum()
    rank = f"{np.exp(-(shares * np.log(shares)).sum()):.3g}"
    assert f"Effective rank {rank}: as spread out as {rank} equal values." in " ".join(text.split())
    ends = [f"{np.quantile(np.abs(matrix), 0.99, method='lower'):.3g}" for matrix in (down, up, down @ up)]
    assert card.locator(".low-rank-scales .number").all_inner_texts()[1::2] == ends
    assert "There are 32; the other 224 of a full matrix are 0." in text
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    python = copied(page, page.get_by_role("button", name="Copy as…"), "Python")
    assert 'client.weights("blocks.2.attn.W_V", head=5, model="fables")' in python


def test_angles_between_words_are_those_of_their_rows(open_view: Open) -> None:
    page = open_view("weights", weights_show="angles", weights_words="king queen king girl")
    rows = of_fables("embed_tokens")[token_ids(page, " king queen girl")].astype(float)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    off = np.abs(unit @ unit.T - np.eye(3))
    card = page.locator("section.card").first
    expect(card.locator("dd").nth(0)).to_contain_text(written(off.max()))
    expect(card.locator("dd").nth(1)).to_contain_text(written(off.sum() / 6))
    page.get_by_role("application", name="Cosines of 3 vectors").focus()
    page.keyboard.press("ArrowRight")
    expect(card.locator(".readout")).to_contain_text(f"king · queen: {written((unit @ unit.T)[0, 1])}")


def test_pairs_of_a_query_are_turned_by_their_angles(open_view: Open) -> None:
    page = open_view("weights", weights_show="positions", layer=1, head=3, query=8)
    page.get_by_text("All 16 pairs in a table").click()
    cells = page.get_by_role("table", name="Angles of the pairs").locator("tbody tr")
    expect(cells).to_have_count(16)
    for pair in (0, 3, 9):
        angle = 10000 ** (-2 * pair / 32)
        told = cells.nth(pair).locator("td").all_inner_texts()
        assert told[0] == written(angle)
        assert told[1].replace("\u202f", "") == str(round(2 * np.pi / angle))
        turned = [float(text.rstrip("°").replace("−", "-")) for text in told[2:]]
        assert turned[0] == pytest.approx(np.degrees(8 * angle) % 360, rel=0.01)
        assert abs((turned[1] - turned[0] + 180) % 360 - 180) < 2, "measured of a query in bfloat16"


def test_two_neurons_share_what_their_correlation_says(open_view: Open, server: Server) -> None:
    page = open_view("weights", weights_show="units", layer=2)
    answer = ask(server, "/v1/trace", {"input": TEXT, "points": ["blocks.2.mlp.hook_post"]})
    values = np.array(answer["data"][0]["points"]["blocks.2.mlp.hook_post"]["data"], float)
    strongest = np.abs(np.triu(np.corrcoef(values[:, :128].T), 1)).max()
    opened = page.locator("section.card dd b").first.inner_text()
    assert float(opened.lstrip("−")) == pytest.approx(strongest, rel=2e-3), "the pair that is there without a choice"
    for label, unit in (("Neuron", 5), ("and", 17)):
        page.get_by_label(label, exact=True).fill(str(unit))
        page.get_by_label(label, exact=True).press("Enter")
    page.wait_for_url("**weights_unit=5&weights_other=17**")
    settle(page)
    rho = np.corrcoef(values[:, 5], values[:, 17])[0, 1]
    rank = rank_correlation(values[:, [5, 17]])
    figures = [float(text.replace("−", "-")) for text in page.locator("section.card dd b").all_inner_texts()]
    assert figures[:2] == pytest.approx([rho, rank], rel=6e-3)
    assert figures[2] == pytest.approx(-0.5 * np.log(1 - rank**2), rel=6e-2)
    page.get_by_role("button", name="Find the most correlated pairs").click()
    settle(page)
    page.get_by_role("table", name="The most correlated pairs").get_by_role("button").first.click()
    expect(page.locator("section.card dd b").first).to_have_text(re.compile(r"−?(1|0\.99\d*)$"))


def rank_correlation(pair: Any) -> float:
    """Return the correlation of normal numbers with these ranks; pair: [word, 2], without equal numbers."""
    ranks = pair.argsort(0).argsort(0)
    return float(2 * np.sin(np.pi / 6 * np.corrcoef(ranks.T)[0, 1]))


def test_one_word_far_from_the_others_is_no_mutual_information(open_view: Open, server: Server) -> None:
    """Choose the two neurons with the correlation that falls most when one word is left out."""
    answer = ask(server, "/v1/trace", {"input": TEXT, "points": ["blocks.2.mlp.hook_post"]})
    values = np.array(answer["data"][0]["points"]["blocks.2.mlp.hook_post"]["data"], float)[:, :64]
    without = np.array([np.corrcoef(np.delete(values, word, 0).T) for word in range(len(values))])
    lost = np.abs(np.corrcoef(values.T)) - np.abs(without)
    word, unit, other = np.unravel_index(lost.argmax(), lost.shape)
    rho, rank = np.corrcoef(values.T)[unit, other], rank_correlation(values[:, [unit, other]])
    by_ranks, by_formula = (-0.5 * np.log(1 - number**2) for number in (rank, rho))
    assert by_ranks < 0.5 * by_formula
    page = open_view("weights", weights_show="units", layer=2, weights_unit=unit, weights_other=other)
    said = page.locator("section.card dd")
    expect(said.nth(0)).to_contain_text(f"({word}); of the ranks {written(rank)}")
    expect(said.nth(1)).to_contain_text(f"about {written(by_ranks, 2)} nats, by the ranks")


def test_every_picture_is_free_of_barriers_on_a_phone(open_page: Page, server: Server) -> None:
    page = open_page
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    found = []
    for shown in SHOWN:
        page.goto(f"{server.url}/#view=weights&weights_show={shown}&text={TEXT}")
        expect(page.locator("#view-weights section.card h2").first).to_be_visible()
        settle(page)
        found += [f"{shown}: {each}" for each in serious(page)]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{shown} is wider than the screen")
    assert not found


def test_a_reader_who_may_not_see_weights_is_told_why(page: Page, guarded: Server) -> None:
    page.goto(f"{guarded.url}/#view=weights&weights_show=numbers")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use it").click()
    lack = page.locator("#view-weights .lack")
    expect(lack).to_have_text("This server hands out no weights (--weights-access off).")
    page.get_by_role("button", name="x W = q, k, v").click()
    expect(lack).to_contain_text("hands out no weights")
    page.get_by_role("button", name="sizes of any model").click()
    expect(page.locator(".total")).to_contain_text("175")
