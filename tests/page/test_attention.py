"""The attention view: the wall, one head as matrix and text, its numbers, and rows while the model writes."""

import json
import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Request, Response, Route, expect

from tests.page.conftest import TEXT, Open, ask, box_of, open_rows, settle, slow_answers, wait_until, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

LONG = "The old fox saw the young fox, and the young fox saw the old fox. " * 4
CELL = re.compile(r"query (\d+) “.*” → key (\d+) “.*”: (\S+)")


def numbers(server: Server, layer: int, head: int, kind: str = "pattern", text: str = TEXT) -> np.ndarray:
    """Return [query, key] as the API answers it; masked scores are NaN."""
    body = {"input": text, "layers": layer, "heads": head}
    if kind == "norm":
        arrays = ask(server, "/v1/contributions", {**body, "query_positions": "all"})["data"][0]["arrays"]
        return np.array(arrays["norms"]["data"][0][0])
    entry = ask(server, "/v1/attention", {**body, "kind": kind})["data"][0]
    return np.array(entry["attention"][0][0], dtype=float)


def matrix(page: Page) -> Locator:
    return page.get_by_role("application", name=re.compile("of every query and key"))


def readout(page: Page) -> Locator:
    return page.locator(".head-pictures .readout").first


@pytest.mark.parametrize("kind", ["norm", "scores", "dots"])
def test_each_kind_shows_the_apis_number(open_view: Open, server: Server, kind: str) -> None:
    page = open_view("attention", layer=2, head=5, query=6, key=4, attention_kind=kind)
    expect(readout(page)).to_contain_text(f": {written(numbers(server, 2, 5, kind)[6, 4])}")


def test_other_heads_of_the_layer_and_of_the_next_are_drawn_without_asking_the_server(
    open_view: Open, page: Page, server: Server
) -> None:
    def is_next_layer(response: Response) -> bool:
        asked = json.loads(response.request.post_data or "{}")
        return asked.get("layers") == 2 and "heads" not in asked

    with page.expect_response(is_next_layer):
        open_view("attention", layer=1, head=0, query=6, key=4)
    asked: list[dict[str, Any]] = []
    page.on("request", lambda request: asked.append(json.loads(request.post_data or "{}")))
    for key, layer, head in (("ArrowRight", 1, 1), ("ArrowRight", 1, 2), ("Shift+ArrowDown", 2, 2)):
        page.keyboard.press(key)
        expect(page.locator(".head-pictures h2").first).to_contain_text(f"Layer {layer}, head {head}")
        expect(readout(page)).to_contain_text(f": {written(numbers(server, layer, head)[6, 4])}")
    assert [body for body in asked if "heads" in body or body.get("layers") in {1, 2}] == []


def test_a_masked_score_is_named_and_no_number(open_view: Open) -> None:
    page = open_view("attention", query=2, key=5, attention_kind="scores")
    expect(readout(page)).to_contain_text("key 5 “was”: masked")
    expect(page.locator(".head-pictures .colour-scale")).to_contain_text("masked")


def test_pointing_tells_the_cell_and_a_click_keeps_it(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=1, head=3)
    box = box_of(matrix(page))
    matrix(page).hover(position={"x": 0.4 * box["width"], "y": 0.7 * box["height"]})
    query, key, value = cell_in(pointed_at(page))
    assert value == written(numbers(server, 1, 3)[query, key])
    expect(page.locator(".top-keys h2")).to_contain_text(f"({query})")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile(rf"query={query}&key={key}\b"))


def cell_in(said: str) -> tuple[int, int, str]:
    """Return query, key and number of a readout."""
    found = CELL.search(said)
    assert found, said
    return int(found[1]), int(found[2]), found[3]


def pointed_at(page: Page) -> str:
    """Return the readout's text once it follows the mouse: for the pair that is chosen at first it names key 0."""
    expect(readout(page)).not_to_contain_text("key 0 ")
    return readout(page).inner_text()


def test_keys_walk_the_cells_in_the_orientation_that_is_seen(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=1, head=3, query=5, key=2, attention_orientation="columns")
    meaning = page.locator(".attention-formula")
    expect(meaning).to_contain_text("9 keys × 9 queries. Each column is one query and sums to 1")
    matrix(page).focus()
    page.keyboard.press("ArrowDown")  # the next row: the next key
    expect(readout(page)).to_contain_text(f"query 5 “was” → key 3 “time”: {written(numbers(server, 1, 3)[5, 3])}")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("query=6&key=3"))


def test_top_keys_are_the_largest_and_without_the_first_token_the_colours_end_at_the_largest_of_the_others(
    open_view: Open, server: Server
) -> None:
    page = open_view("attention", layer=3, head=1, query=7)
    weights = numbers(server, 3, 1)
    row = weights[7]
    seen = sorted(row[:8], reverse=True)  # the last key is masked
    expect(page.locator(".top-keys tbody .number")).to_have_text([written(value) for value in seen])
    page.locator(".top-keys tbody button").nth(1).click()
    page.wait_for_url(re.compile(rf"key={np.argsort(-row)[1]}\b"))
    end = page.locator(".head-pictures .colour-scale .number").last
    expect(end).to_have_text("1")
    open_rows(page)
    page.get_by_label("hide the first token").check()
    expect(end).to_have_text(f"{weights[:, 1:].max():.3g}")
    page.wait_for_url(re.compile("attention_sink=0"))


def test_the_wall_opens_a_head_by_click_and_by_key(open_view: Open) -> None:
    page = open_view("attention", layer=0, head=0)
    wall = page.get_by_role("application", name=re.compile("6 layers of 8 heads"))
    box = box_of(wall)
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    title = page.locator(".head-pictures h2").first
    expect(title).not_to_have_text("Layer 0, head 0")
    layer, head = (int(number) for number in re.findall(r"\d+", title.inner_text()))
    expect(page.locator(".wall-name")).to_contain_text(f"layer {layer}, head {head}")
    assert layer > 0
    assert head > 0
    wall.press("ArrowRight")
    expect(title).to_have_text(f"Layer {layer}, head {head + 1}")


def test_words_point_at_what_they_look_at_and_at_who_looks_at_them(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=1, head=3, query=3, key=1, attention_picture="text")
    row = numbers(server, 1, 3)[4]
    words = page.get_by_role("application", name=re.compile("The text with lines"))
    words.focus()
    page.keyboard.press("ArrowDown")
    best = int(row.argmax())
    expect(readout(page)).to_contain_text(f"query 4 “there” → most: key {best} ")
    expect(readout(page)).to_contain_text(written(row[best]))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    expect(readout(page)).to_contain_text("key 0 “Once” and those that look at it")
    page.keyboard.press("Enter")
    expect(page.locator(".text-tokens .is-key")).to_have_text("Once")


def test_a_long_text_is_zoomed_and_its_cells_stay_the_apis(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=1, head=3, query=50, key=40, text=LONG)
    weights = numbers(server, 1, 3, text=LONG)
    expect(page.locator(".zoom")).to_contain_text(f"{len(weights)} × {len(weights)} cells")
    page.get_by_label("Nearer").click()
    page.get_by_label("Nearer").click()
    expect(page.locator(".zoom")).to_contain_text("drag to move")
    matrix(page).hover()
    query, key, value = cell_in(readout(page).inner_text())
    assert value == written(weights[query, key])
    expect(page.locator(".wall-name")).to_contain_text("is open")  # its thumbnails are means of cells, and all there


def test_a_long_text_scrolls_at_its_own_size(open_view: Open) -> None:
    page = open_view("attention", text="the old king " * 150)
    sizes = page.locator(".running-text canvas").evaluate_all(
        "all => all.map((one) => [one.getBoundingClientRect().height, parseFloat(one.style.height)])"
    )
    assert len(sizes) == 2
    assert all(shown == drawn > 700 for shown, drawn in sizes)  # squeezed, pointing would meet other words
    box = page.locator(".running-text .canvases")
    assert box.bounding_box()["height"] < 600
    wait_until(page, lambda: bool(box.evaluate("element => element.scrollTop > 0")))  # to the chosen word, the last


@pytest.mark.parametrize("side", ["query", "key"])
def test_no_word_of_a_long_text_is_struck_through(open_view: Open, side: str) -> None:
    page = open_view("attention", layer=3, head=7, query=50, key=3, text=LONG, attention_picture="text",
                     attention_side=side, attention_sink=0)  # fmt: skip
    lines, struck = page.locator(".running-text .canvases").evaluate(
        """box => {
            const [words, marks] = [...box.querySelectorAll("canvas")].map((one) =>
                one.getContext("2d").getImageData(0, 0, one.width, one.height).data);
            const strong = [...marks.keys()].filter((i) => i % 4 === 3 && marks[i] > 90);
            return [strong.length, strong.filter((i) => words[i] > 90).length];
        }"""
    )
    assert lines > 500
    assert struck < 0.005 * lines


def test_rows_arrive_while_the_model_writes_and_the_text_is_the_shared_one_then(
    open_view: Open, server: Server
) -> None:
    """Use the options of the mode Text: top-k 1, with which the likeliest token is drawn at any temperature."""
    options = {"write_temperature": 2, "write_top_k": 1, "write_max_tokens": 12}
    page = open_view("attention", layer=4, head=7, key=0, **options)
    open_rows(page)
    page.get_by_role("button", name="Continue and watch").click()
    page.wait_for_url(re.compile("text=Once.upon.a.time.there.was.a.little.girl[+%]"))
    settle(page)
    text = page.get_by_role("textbox", name="Text").input_value()
    done = ask(server, "/v1/completions", {"prompt": TEXT, "temperature": 0, "max_tokens": 12})
    assert text == TEXT + done["choices"][0]["text"]
    weights = numbers(server, 4, 7, text=text)
    expect(page.locator(".attention-formula")).to_contain_text(f"{len(weights)} queries × {len(weights)} keys")
    expect(readout(page)).to_contain_text(f": {written(weights[-1, 0])}")


ENDS_IN_VIEW = "(box) => scrollY > 0 && Math.abs(box.getBoundingClientRect().bottom - innerHeight) < 30"


@pytest.mark.parametrize("head", [3, 4])
def test_writing_is_ended_by_a_button_or_another_head_and_what_was_written_stays(
    open_view: Open, server: Server, head: int
) -> None:
    page = open_view("attention", layer=1, head=3, key=0, write_max_tokens=400, write_seed=3)
    with slow_answers(page):
        open_rows(page)
        page.get_by_role("button", name="Continue and watch").click()
        expect(page.get_by_text(re.compile(r"Writing: \d+ new tokens"))).to_be_visible()
        wait_until(page, lambda: page.locator(".head-pictures").evaluate(ENDS_IN_VIEW))
        if head == 3:
            page.get_by_role("button", name="Stop writing").click()
        else:
            page.locator("#head").select_option(str(head))
    page.wait_for_url(re.compile("text=Once.upon.a.time.there.was.a.little.girl[+%]"))
    settle(page)
    expect(page.get_by_role("button", name="Continue and watch")).to_be_enabled()
    weights = numbers(server, 1, head, text=page.get_by_role("textbox", name="Text").input_value())
    expect(readout(page)).to_contain_text(f": {written(weights[-1, 0])}")


def test_a_view_that_is_left_while_the_model_writes_changes_no_text(open_view: Open) -> None:
    page = open_view("attention", layer=1, head=3, key=0, write_max_tokens=400, write_seed=3)
    with slow_answers(page):
        open_rows(page)
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/v1/completions")):
            page.get_by_role("button", name="Continue and watch").click()
            expect(page.get_by_text(re.compile(r"Writing: \d+ new tokens"))).to_be_visible()
            page.get_by_role("navigation", name="Views").get_by_role("button", name="Server").click()
    expect(page.locator("#view-server h1")).to_be_visible()
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Lens").click()
    settle(page)
    expect(page.get_by_role("textbox", name="Text", exact=True)).to_have_value(TEXT)


def test_the_second_of_two_texts_is_continued_as_the_second(open_view: Open) -> None:
    """Show both sides, and continue the right one: the left text stays."""
    options = {"write_temperature": 0, "write_max_tokens": 3, "change_text": "The old fox", "change_show": "both"}
    page = open_view("attention", layer=1, head=3, key=0, **options)
    right = page.locator(".both > section").nth(1)
    right.get_by_role("button", name="More", exact=True).click()
    right.get_by_role("button", name="Continue and watch").click()
    page.wait_for_url(re.compile("change_text=The.old.fox[+%]"))
    settle(page)
    assert re.search(r"[#&]text=([^&]*)", page.url)[1].replace("+", " ") == TEXT


def test_layers_fetched_in_advance_are_given_up_with_the_text(open_view: Open, page: Page) -> None:
    def is_next_layer(request: Request) -> bool:
        asked = json.loads(request.post_data or "{}")
        return asked.get("layers") == 2 and "heads" not in asked

    held: list[Route] = []
    page.route(
        "**/v1/attention", lambda route: held.append(route) if is_next_layer(route.request) else route.continue_()
    )
    open_view("attention", layer=1, head=0, query=6, key=4)
    wait_until(page, lambda: bool(held))
    with page.expect_event("requestfailed", is_next_layer):
        page.get_by_role("textbox", name="Text", exact=True).fill("The old fox")
        page.get_by_role("textbox", name="Text", exact=True).press("Enter")
