"""The arrows of How a word moves: their numbers and true lengths are the API's, and they sum to the word's vector."""

import re
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from safetensors.torch import load_file

from tests.page.conftest import (
    DRAWN,
    TEXT,
    Open,
    ask,
    new_page,
    open_rows,
    percent,
    saved,
    settle,
    show,
    wait_until,
    written,
)
from tests.support.processes import ROOT, Server

pytestmark = pytest.mark.usefixtures("kept_page")

LAYERS, HEADS, D_HEAD, WIDTH = 6, 8, 32, 256
QUERY = 7
HERE = {"layer": 1, "head": 3, "query": QUERY, "key": 6}


@pytest.fixture(scope="module")
def added(server: Server) -> Any:
    """Vectors that each word adds through each head of each layer to the query, [layer, head, key, d_model]: from the
    weights in the file and the network's attention patterns and values.
    """
    points = traced(server, ["attn.hook_pattern", "attn.hook_v"], {})
    weights = load_file(ROOT / "model" / "fables" / "model.safetensors")
    vectors = []
    for layer in range(LAYERS):
        w_o = weights[f"model.layers.{layer}.self_attn.o_proj.weight"].double().numpy()
        w_o = w_o.T.reshape(HEADS, D_HEAD, WIDTH)
        pattern = points[f"blocks.{layer}.attn.hook_pattern"][:, QUERY]
        values = points[f"blocks.{layer}.attn.hook_v"]
        values = np.repeat(values, HEADS // values.shape[1], axis=1)
        vectors.append(np.einsum("hk,khd,hdw->hkw", pattern, values, w_o))
    return np.stack(vectors)


def traced(server: Server, points: list[str], more: dict[str, Any]) -> dict[str, Any]:
    found = ask(server, "/v1/trace", {"input": TEXT, "points": points, **more})["data"][0]["points"]
    return {name: np.array(point["data"], float) for name, point in found.items()}


def steps(page: Page) -> list[tuple[str, str, str]]:
    """Return the table's rows, one for each step: the name of the added vector, its layer, its length."""
    page.locator(".motion-table").first.wait_for()
    rows = page.locator(".motion-table tbody tr").all()
    told = [(row.locator("th").inner_text(), row.locator("td.number").all_inner_texts()) for row in rows]
    return [(what, numbers[0], numbers[1]) for what, numbers in told]


def sentence(page: Page) -> Any:
    return page.locator(".motion-sentence")


def shown(text: str) -> float:
    return float(text.replace("−", "-"))


def test_arrows_are_weight_times_value_times_w_o_and_sum_to_the_models_own_vector(
    open_view: Open, server: Server, added: Any
) -> None:
    page = open_view("motion", **HERE)
    longest = max(steps(page)[1:], key=lambda step: shown(step[2]))
    summary = page.locator(".motion-figure .unseen").inner_text()
    assert f"the longest are {longest[0]} ({longest[2]})" in summary
    assert summary.count("The plane holds") == 1
    told = {what: shown(length) for what, _, length in steps(page) if what.startswith("‘")}
    tokens = page.locator(".token").all_inner_texts()[: QUERY + 1]
    lengths = np.linalg.norm(added.sum((0, 1)), axis=-1)
    assert list(told.values()) == pytest.approx(list(lengths[: QUERY + 1]), rel=6e-3)
    words = [f"‘{token.strip()}’ ({position})" for position, token in enumerate(tokens)]
    assert list(told) == [*words[:-1], f"{words[-1]}, the word itself"]
    (last,) = traced(server, ["hook_resid_post"], {"layers": -1, "positions": QUERY}).values()
    expect(page.locator("#motion-length")).to_have_text(written(float(np.linalg.norm(last))))
    open_rows(page)
    for choice in ("one after another", "head", "layer 1", "word, head 1.3 alone", "all together", "word"):
        page.get_by_role("button", name=choice, exact=True).click()
        settle(page)
        assert shown(page.locator("#motion-difference").inner_text()) < 1e-3
        assert shown(page.locator(".motion-table tbody tr").last.locator("td.number").last.inner_text()) < 1e-3


def test_the_share_of_the_plane_is_that_of_its_axes(open_view: Open, server: Server) -> None:
    """Compute the axes again: the two directions with most of the other words' arrows."""
    page = open_view("motion", **HERE)
    body = {"input": TEXT, "query_positions": QUERY, "vectors": True, "sum_over": ["layer", "head"]}
    entry = ask(server, "/v1/contributions", body)["data"][0]
    words = np.array(entry["arrays"]["vectors"]["data"][0], float)
    additions = np.array(entry["arrays"]["additions"]["data"], float)[:, 0]
    others = dict(zip(entry["addition_names"], additions, strict=True))
    axes = np.linalg.svd(words[1:QUERY])[2][:2]
    sums = [sum(value for name, value in others.items() if name.endswith(end)) for end in ("mlp_out", "rounding")]
    arrows = np.array([*words, *sums])
    held = ((arrows @ axes.T) ** 2).sum() / (arrows**2).sum()
    expect(page.locator("#motion-share")).to_have_text(percent(float(held)))
    told = page.locator("#motion-left-out")
    largest = np.linalg.norm(words, axis=1).argmax()
    if largest in (0, QUERY):
        expect(told).to_contain_text(f"({largest})")
    else:
        expect(told).to_have_count(0)


def test_arrows_of_heads_layer_by_layer_are_the_weights(open_view: Open, added: Any) -> None:
    page = open_view("motion", **HERE, motion_by="head", motion_layers="each")
    lengths = np.linalg.norm(added.sum(2), axis=-1)
    told = [(int(layer), int(what[5:]), shown(size)) for what, layer, size in steps(page) if what.startswith("head ")]
    for layer in range(LAYERS):
        largest = sorted(np.argsort(-lengths[layer])[:4])
        own = [(head, size) for place, head, size in told if place == layer]
        assert [head for head, _ in own] == largest
        assert [size for _, size in own] == pytest.approx(list(lengths[layer, largest]), rel=6e-3)


def test_one_layer_begins_at_the_state_before_it_and_one_head_stands_beside_the_others(
    open_view: Open, server: Server, added: Any
) -> None:
    page = open_view("motion", **HERE, motion_by="one", motion_layers="one")
    told = {what: shown(size) for what, _, size in steps(page)}
    before = traced(server, ["hook_resid_pre"], {"layers": 1, "positions": QUERY})["blocks.1.hook_resid_pre"]
    (start,) = [size for what, size in told.items() if what.endswith("before layer 1")]
    assert start == pytest.approx(np.linalg.norm(before), rel=6e-3)
    assert told["‘a’ (6)"] == pytest.approx(np.linalg.norm(added[1, 3, 6]), rel=6e-3)
    others = np.delete(added[1], 3, axis=0).sum((0, 1))
    assert told["the other heads"] == pytest.approx(np.linalg.norm(others), rel=1e-2)  # of the network, which rounds


def test_a_head_set_to_zero_has_no_arrow(open_view: Open) -> None:
    told = {}
    for change in ("", "zero_head_l1_h3"):
        page = open_view("motion", **HERE, motion_by="head", motion_layers="one", change=change)
        told[change] = {what: shown(size) for what, _, size in steps(page)}
    before, after = told.values()
    assert {what for what in before if what.startswith("head ")} - after.keys() == {"head 3"}
    assert after["head 2"] == before["head 2"]
    assert after["rounding of the sums"] == pytest.approx(before["rounding of the sums"], rel=1)


LINE = re.compile(r'd="M([-\d.]+) ([-\d.]+)L([-\d.]+) ([-\d.]+)"[^>]*stroke-width="([\d.]+)"')


def lines(svg: str, width: str) -> list[np.ndarray]:
    """Return the straight lines of a width in a saved picture, each as [start, end] in pixels."""
    return [np.array(found.groups()[:4], float).reshape(2, 2) for found in LINE.finditer(svg) if found[5] == width]


def test_arrows_have_their_true_lengths_in_the_picture(open_view: Open, server: Server) -> None:
    """Measure the thin lines of the saved picture with its own ruler: all begin where the word's own vector ends."""
    page = open_view("motion", **HERE)
    svg = saved(page, "picture (SVG)").read_text(encoding="utf-8")
    ((origin, _),) = lines(svg, "4")
    ruler = [line for line in lines(svg, "2") if line[0, 0] == 12][-1]
    unit = (ruler[1, 0] - 12) / float(re.findall(r">length ([\d.]+)<", svg)[0])
    lengths = np.array([np.linalg.norm(line[1] - origin) for line in lines(svg, "1.5")]) / unit
    body = {"input": TEXT, "query_positions": QUERY, "vectors": True}
    entry = ask(server, "/v1/contributions", body)["data"][0]
    additions = dict(zip(entry["addition_names"], np.array(entry["arrays"]["additions"]["data"])[:, 0], strict=True))
    mlps = float(np.linalg.norm(sum(value for name, value in additions.items() if name.endswith("mlp_out"))))
    drawn = {what: shown(length) for what, _, length in steps(page)}
    assert drawn["the MLPs"] == pytest.approx(mlps, rel=6e-3)
    assert max(drawn.values()) == drawn["the MLPs"]
    held = [shown(text) for text in page.locator(".motion-table td.number:nth-child(5)").all_inner_texts()]
    hidden = [length for length, inside in zip(drawn.values(), held, strict=True) if inside < 0.97 * length]
    assert len(hidden) > 3
    for length in hidden[1:]:
        assert length < 1 or np.abs(lengths / length - 1).min() < 0.01
    assert f"+ MLP, {round(mlps) if mlps >= 10 else f'{mlps:.2g}'}" in texts_of_svg(svg)
    expect(page.locator(".motion-facts")).to_contain_text(f"The longest arrow is the MLPs: {written(mlps)} long")


def texts_of_svg(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_without_mlps_the_others_sum_to_the_vector_without_them(open_view: Open, server: Server) -> None:
    page = open_view("motion", **HERE)
    open_rows(page)
    page.get_by_label("without MLPs").check()
    page.wait_for_url("**motion_mlps=0**")
    assert not [what for what, _, _ in steps(page) if "MLP" in what]
    body = {"input": TEXT, "query_positions": QUERY, "vectors": True, "sum_over": ["layer", "head"]}
    entry = ask(server, "/v1/contributions", body)["data"][0]
    end = np.array(entry["arrays"]["states"]["data"])[-1, 0]
    for name, value in zip(entry["addition_names"], entry["arrays"]["additions"]["data"], strict=True):
        if name.endswith("mlp_out"):
            end = end - np.array(value[0])
    expect(page.locator("#motion-length")).to_have_text(written(float(np.linalg.norm(end))))
    assert shown(page.locator("#motion-difference").inner_text()) < 1e-3
    expect(page.get_by_role("columnheader", name="the lens reads")).to_have_count(0)  # no state of the model


def tips(page: Page) -> Locator:
    """Return the cells with the lens's words, once its answer has come: it is not waited for to draw the arrows."""
    page.get_by_role("columnheader", name="the lens reads").first.wait_for()
    return page.locator(".motion-table tbody tr td:last-child")


@pytest.mark.parametrize("layers", ["sum", "each", "one"])
def test_the_tips_are_named_by_the_lens(open_view: Open, server: Server, layers: str) -> None:
    page = open_view("motion", **HERE, motion_layers=layers)
    tops = ask(server, "/v1/lens", {"input": TEXT, "positions": QUERY, "top_k": 8})["data"][0]["top_tokens"]
    words = [", ".join([token.strip() for token in state[0] if any(map(str.isalnum, token))][:3]) for state in tops]
    cells = tips(page)
    read = [told for told in cells.all_inner_texts() if told]
    if layers == "sum":
        assert read == [words[LAYERS]]
        expect(sentence(page)).to_contain_text("from which the next word is read")
        svg = saved(page, "picture (SVG)").read_text(encoding="utf-8")
        assert f"next: {words[LAYERS]}" in texts_of_svg(svg)
    elif layers == "one":
        assert read == [words[2]]
    else:
        assert [told for told, _ in groupby(read)] == [told for told, _ in groupby(words[1:])]


def test_the_former_addresses_open_the_same_pictures(open_view: Open) -> None:
    page = open_view("contributions", **HERE)
    expect(page.get_by_role("button", name="amounts", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="arrows", exact=True).click()
    page.wait_for_url("**view=moves**")
    page.locator(".motion-table").wait_for()
    page = open_view("motion", **HERE, motion_layers="each")
    expect(page.get_by_role("button", name="arrows", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="one after another")).to_have_attribute("aria-pressed", "true")


def test_the_arrows_are_scrubbed_stepped_and_played_by_keyboard(open_view: Open) -> None:
    page = open_view("motion", **HERE)
    count = len(steps(page))
    expect(sentence(page)).to_have_text(re.compile(f"All {count} arrows at once"))
    scrubber = page.get_by_role("slider", name="Where the arrows are")
    scrubber.focus()
    page.keyboard.press("ArrowLeft")
    expect(sentence(page)).to_contain_text(f"Step {count} of {count}: rounding of the sums")
    expect(scrubber).to_have_attribute("aria-valuetext", re.compile(f"^Step {count} of {count}"))
    page.get_by_role("application", name="Arrows that are added").focus()
    page.keyboard.press("Home")
    expect(sentence(page)).to_have_text("Nothing is added yet.")
    page.keyboard.press("ArrowRight")
    expect(sentence(page)).to_contain_text("Step 1 of")
    expect(page.locator(".motion-table .current th")).to_contain_text("the embedding of")
    page.wait_for_url("**motion_at=0.0**")
    page.get_by_label("Speed").select_option("0.5")
    page.get_by_role("application", name="Arrows that are added").focus()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_label("Speed").select_option("4")
    expect(sentence(page)).to_have_text(re.compile("arrows at once"))
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_where_motion_is_unwelcome_it_goes_from_step_to_step(open_view: Open, page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    open_view("motion", **HERE, motion_at=0, motion_speed=8)
    count = len(steps(page))
    page.evaluate(
        """() => {
          window.seen = new Set();
          const look = () => {
            window.seen.add(document.querySelector(".scrubber input").value);
            requestAnimationFrame(look);
          };
          look();
        }"""
    )
    page.get_by_role("button", name="Play").click()
    expect(sentence(page)).to_have_text(re.compile("arrows at once"))
    seen = [float(value) for value in page.evaluate("[...window.seen]")]
    for value in seen:
        assert value == 1 or abs(value / 0.8 * count - round(value / 0.8 * count)) < 1e-6


def picture(page: Page) -> bytes:
    return page.locator(".motion-figure .canvases").screenshot()


def test_the_picture_follows_from_the_progress_alone(browser: Browser, server: Server) -> None:
    with new_page(browser) as page:
        show(page, server, "motion", **HERE, motion_space="space", motion_layers="each", motion_at=0.5)
        tips(page)  # they are drawn, too
        page.evaluate(DRAWN)
        between_steps = picture(page)
        page.get_by_role("button", name="One step back").click()
        wait_until(page, lambda: picture(page) != between_steps)
        at_half = picture(page)
        page.get_by_role("button", name="One step on").click()
        wait_until(page, lambda: picture(page) != at_half)
        page.get_by_role("button", name="One step back").click()
        wait_until(page, lambda: picture(page) == at_half)
        page.get_by_role("application", name="Arrows that are added").focus()
        page.keyboard.press("Shift+ArrowRight")
        page.wait_for_url("**motion_yaw=40**")
        wait_until(page, lambda: picture(page) != at_half)


def test_one_word_in_several_contexts_starts_from_one_embedding(open_view: Open, server: Server) -> None:
    page = open_view("motion", motion_show="contexts", motion_word="king")
    texts = page.get_by_label("Texts with the word").input_value().split("\n")
    assert [word in text for word, text in zip(("Scotland", "chess", "Shakespeare"), texts, strict=True)] == [True] * 3
    page.locator(".motion-table").first.wait_for()
    ends = []
    for text, table in zip(texts, page.locator(".motion-table").all(), strict=True):
        entry = ask(server, "/v1/trace", {"input": text, "points": ["hook_resid_post"], "layers": -1})["data"][0]
        position = max(i for i, token in enumerate(entry["tokens"]) if token.strip() == "king")
        (last,) = entry["points"].values()
        ends.append(np.array(last["data"][position]))
        first = table.locator("tbody tr").first
        expect(first.locator("th")).to_have_text("the embedding of ‘king’")
        start = traced_at(server, text, position)
        assert first.locator("td.number").nth(1).inner_text() == written(float(np.linalg.norm(start)))
        assert shown(first.locator("td.number").last.inner_text()) == pytest.approx(
            np.linalg.norm(ends[-1] - start), rel=6e-3
        )
    assert shown(page.locator("#motion-difference").inner_text()) < 1e-3
    expect(page.locator("#motion-apart")).to_have_text("100 %")  # three ends lie in one plane
    page.get_by_label("Texts with the word").fill(f"{texts[0]}\nThe frog was a king")
    page.get_by_label("Texts with the word").blur()
    settle(page)
    expect(page.locator(".motion-legend li")).to_have_text([f"1: {texts[0]}", "2: The frog was a king"])
    page.get_by_label("Word", exact=True).fill("queen")
    page.keyboard.press("Enter")
    settle(page)
    expect(page.locator(".problem")).to_contain_text("‘queen’ is not in the text")
    page.get_by_label("Examples").select_option("mole")
    settle(page)
    expect(page.locator(".motion-legend li")).to_have_count(3)


def traced_at(server: Server, text: str, position: int) -> Any:
    body = {"input": text, "points": ["hook_embed"], "positions": position}
    (point,) = ask(server, "/v1/trace", body)["data"][0]["points"].values()
    return np.array(point["data"][0])
