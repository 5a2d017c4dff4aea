"""Pictures made of cells: their numbers at the pointer and in the cells, their names, their colours, and the wall."""

import math
import re
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import DRAWN, VIEWS, Open, ask, box_of, family_server, open_rows, saved, settle, show, written
from tests.page.test_attention import LONG, matrix, numbers
from tests.support.contrast import contrast
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

SHORT = "The car is red"
HERE = {"layer": 1, "head": 3}


def tooltip(page: Page) -> Locator:
    return page.locator(".tooltip")


def wall(page: Page) -> Locator:
    return page.get_by_role("application", name=re.compile("layers of"))


def drawing(page: Page) -> list[Element]:
    """Return the parts of the matrix, from its SVG file."""
    card = page.locator(".head-pictures .card").first
    return list(fromstring(saved(card, "(SVG)").read_text()).iter())


def texts(elements: list[Element]) -> list[str]:
    return [element.text or "" for element in elements if element.tag.endswith("}text")]


def fixed(value: float, decimals: int) -> str:
    """Return a number as a cell has it."""
    shown = f"{value:.{decimals}f}".replace("-", "−")
    return "0" if value == 0 else shown


def test_the_number_of_a_cell_stands_at_the_pointer_and_at_the_keys(open_view: Open, server: Server) -> None:
    page = open_view("attention", attention_kind="dots", query=6, key=4, **HERE)
    page.set_viewport_size({"width": 1440, "height": 900})
    settle(page)
    matrix(page).scroll_into_view_if_needed()
    box = box_of(matrix(page))
    x, y = box["x"] + 0.3 * box["width"], box["y"] + 0.8 * box["height"]
    page.mouse.move(x, y)
    said = tooltip(page).inner_text()
    query, key = (int(number) for number in re.findall(r"(?:query|key) (\d+)", said))
    assert said.endswith(f": {written(numbers(server, 1, 3, 'dots')[query, key])}")
    place = box_of(tooltip(page))
    assert abs(place["x"] - x) < 30
    assert y - 60 < place["y"] < y + 30
    assert place["y"] + place["height"] <= 900
    page.keyboard.press("Escape")
    expect(tooltip(page)).to_have_count(0)
    page.mouse.move(2, 2)
    matrix(page).focus()
    page.keyboard.press("ArrowLeft")
    expect(tooltip(page)).to_contain_text(f"key 3 “time”: {written(numbers(server, 1, 3, 'dots')[6, 3])}")
    page.locator("#layer").focus()
    expect(tooltip(page)).to_have_count(0)


def test_other_pictures_say_it_beside_what_is_walked_to(open_view: Open) -> None:
    page = open_view("why", query=6, key=4, **HERE)
    for view, picture, readout in (
        ("why", ".why-picture", ".why-picture .readout"),
        ("lens", ".lens-canvas", ".lens-foot .readout"),
        ("flow", ".flow-canvas", ".flow-scroll + .readout"),
        ("embeddings", ".picture", ".picture .readout"),
    ):
        page.get_by_role("navigation", name="Views").get_by_role("button").nth(VIEWS.index(view)).click()
        expect(page.locator(f"#view-{view} h1")).to_be_visible()
        settle(page)
        page.locator(f"#view-{view} {picture} canvas[role=application]").first.press("ArrowRight")
        expect(tooltip(page)).to_be_visible()
        expect(tooltip(page)).to_have_text(page.locator(f"#view-{view} {readout}").first.inner_text())


def test_large_cells_hold_their_numbers_legibly(open_view: Open, server: Server) -> None:
    page = open_view("attention", text=SHORT, attention_kind="dots", **HERE)
    expected = numbers(server, 1, 3, "dots", text=SHORT)
    digits = 3 if ask(server, "/version")["compute_dtype"] == "bfloat16" else 4
    decimals = min(2, digits - 1 - math.floor(math.log10(np.nanmax(np.abs(expected[np.isfinite(expected)])))))
    for scheme in ("light", "dark"):
        use(page, scheme)
        cells = [one for one in drawing(page) if re.fullmatch(r"−?\d+\.\d+", one.text or "")]
        assert [cell.text for cell in cells] == [fixed(value, decimals) for value in expected[np.isfinite(expected)]]
        for cell in cells:
            ground = pixel(page, float(cell.get("x", 0)) - 19, float(cell.get("y", 0)) - 18)
            assert contrast({"#000": "#000000", "#fff": "#ffffff"}[cell.get("fill", "")], ground) >= 4.5


def use(page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    expect(page.locator("html")).to_have_attribute("data-theme", scheme)
    page.evaluate(DRAWN)


def pixel(page: Page, x: float, y: float) -> str:
    """Return the colour of the head's picture there, in CSS pixels, as #rrggbb."""
    read = """(canvas, [x, y]) => [...canvas.getContext("2d").getImageData(x, y, 1, 1).data]"""
    red, green, blue, _ = page.locator(".head-pictures .canvases canvas").first.evaluate(read, [int(x), int(y)])
    return f"#{red:02x}{green:02x}{blue:02x}"


def test_weak_numbers_of_both_signs_differ_from_the_dark_ground(open_view: Open, server: Server) -> None:
    page = open_view("attention", text=SHORT, attention_kind="scores", **HERE)
    use(page, "dark")
    expected = numbers(server, 1, 3, "scores", text=SHORT)
    weakest = float(np.nanmin(np.abs(expected)))
    (cell,) = [one for one in drawing(page) if (one.text or "").lstrip("−") == fixed(weakest, 2)]
    ground = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--raised').trim()")
    found = pixel(page, float(cell.get("x", 0)) - 19, float(cell.get("y", 0)) - 18)
    assert weakest < 0.2 * np.nanmax(np.abs(expected))
    assert contrast(found, ground) > 1.5


def test_what_the_mask_hides_is_shown_before_it_and_what_becomes_of_it(open_view: Open, server: Server) -> None:
    page = open_view("attention", text=SHORT, query=1, key=3, attention_kind="unmasked", **HERE)
    body = {"input": SHORT, "layer": 1, "head": 3, "query_position": 1}
    products = ask(server, "/v1/explain", body)["data"][0]["arrays"]["dots"]["data"]
    said = page.locator(".head-pictures .readout").first
    expect(said).to_contain_text(f": {written(products[3])}, masked, so its score is −∞ and its weight 0")
    trace = {"input": SHORT, "layers": 1, "heads": 3, "points": ["attn.hook_rot_q", "attn.hook_rot_k"]}
    q, k = (np.array(point["data"])[:, 0] for point in ask(server, "/v1/trace", trace)["data"][0]["points"].values())
    cells = [text for text in texts(drawing(page)) if re.fullmatch(r"−?\d+\.\d+", text)]
    assert [float(cell.replace("−", "-")) for cell in cells] == pytest.approx((q @ k.T).ravel(), abs=0.051)
    for kind, hidden in (("scores", "−∞"), ("weights", "0")):
        page.get_by_role("button", name=kind, exact=True).click()
        settle(page)
        assert texts(drawing(page)).count(hidden) == 6


def test_the_area_of_a_dot_is_the_weight_that_its_product_gets(open_view: Open, server: Server) -> None:
    """Check that the largest dot is the pair with most attention; the sign of the product is its colour."""
    page = open_view("attention", text=SHORT, attention_kind="dots", **HERE)
    open_rows(page)
    page.get_by_role("group", name="Cells as").get_by_role("button", name="dots").click()
    page.wait_for_url("**attention_cells=dots**")
    expected = numbers(server, 1, 3, "dots", text=SHORT)
    weights = numbers(server, 1, 3, "pattern", text=SHORT)
    drawn = [one.get("d", "") for one in drawing(page) if one.tag.endswith("}path")]
    signs = [path for path in drawn if re.search(r"a[\d.]+ [\d.]+ 0 1 0", path)]
    assert len(signs) == 2  # of one colour each
    areas = [
        np.array([float(radius) ** 2 for radius in re.findall(r"a([\d.]+) [\d.]+ 0 1 0 (?!-)", path)]) for path in signs
    ]
    full = max(map(np.max, areas))
    for found, sign in zip(areas, (1, -1), strict=True):
        assert found / full == pytest.approx(weights[sign * expected > 0] / weights.max(), abs=0.02)


def test_names_of_a_large_grid_are_thinned_and_the_chosen_ones_stay(open_view: Open) -> None:
    page = open_view("attention", layer=1, head=3, query=37, key=21, text=LONG * 2)
    page.set_viewport_size({"width": 390, "height": 844})
    settle(page)
    elements = drawing(page)
    names = [one for one in elements if one.tag.endswith("}text") and one.get("text-anchor") == "end"]
    heights = np.array([float(one.get("y", 0)) for one in names])
    assert 8 <= len(names) < 60
    assert np.ptp(np.diff(heights)) < 0.1  # evenly
    assert np.diff(heights).min() >= 12
    (cells,) = [one for one in elements if one.tag.endswith("}image")]
    top, height = float(cells.get("y", 0)), float(cells.get("height", 0))
    count = int(re.findall(r"(\d+) × \d+ cells", page.locator(".zoom").inner_text())[0])
    # the chosen row's name is on the canvas above, which changes while one points
    read = """canvas => {
        const {height} = canvas;
        const {data} = canvas.getContext("2d").getImageData(20, 0, 1, height);
        const seen = Array.from({length: height}, (_, y) => y).filter((y) => data[y * 4 + 3]);
        return [seen[0], seen.at(-1)];
    }"""
    first, last = page.locator(".head-pictures .canvases canvas").nth(1).evaluate(read)
    assert first <= top + height * 37.5 / count <= last
    assert last - first < 20


def test_the_wall_shows_what_is_chosen_and_says_its_scale(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=2, head=5)
    for kind, said in (
        ("scores", "each score within ±"),
        ("dots", "each q·k within ±"),
        ("norm", "largest length added "),
    ):
        page.get_by_role("button", name={"dots": "q·k", "norm": "value-weighted"}.get(kind, kind), exact=True).click()
        settle(page)
        wall(page).focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        most = f"{np.nanmax(np.abs(numbers(server, 2, 5, kind))):.3g}"
        expect(tooltip(page)).to_have_text(f"layer 2, head 5: {said}{most}")
        expect(page.locator(".wall-foot .number").last).to_have_text(most)


def test_the_wall_of_a_long_text_shows_some_of_its_tokens(open_view: Open, server: Server) -> None:
    page = open_view("attention", text=LONG, attention_kind="scores", layer=2, head=5)
    expect(page.locator(".wall .hint")).to_contain_text("some of its tokens left out")
    scores = numbers(server, 2, 5, "scores", text=LONG)
    picked = np.round(np.linspace(0, len(scores) - 1, 40)).astype(int)
    most = np.nanmax(np.abs(scores[np.ix_(picked, picked)]))
    expect(page.locator(".wall-foot .number").last).to_have_text(f"{most:.3g}")


def test_many_heads_take_the_full_width_and_stand_apart(page: Page) -> None:
    """Use a bidirectional model of 96 heads; its pictures have no empty corner."""
    page.set_viewport_size({"width": 1440, "height": 900})
    show(page, family_server("bert"), "attention", layer=3, head=7)
    card, stage, head = (box_of(page.locator(name).first) for name in (".wall", ".stage", ".head-pictures"))
    assert card["width"] > 0.95 * (stage["width"] - 40)
    assert head["y"] >= card["y"] + card["height"]
    expect(page.locator(".wall-name")).to_contain_text("layer 3, head 7 is open")
    # across the middle of a line of pictures: gaps between them, each at least 5 CSS pixels wide
    box = box_of(wall(page))
    read = """canvas => {
        const raised = canvas.parentElement.querySelector("canvas");
        const {data, width} = raised.getContext("2d").getImageData(30, 60, raised.width - 30, 1);
        return Array.from({length: width}, (_, x) => data[x * 4 + 3] > 0 ? "#" : " ").join("");
    }"""
    line = wall(page).evaluate(read)
    gaps = [len(gap) for gap in re.findall(r"(?<=#) +(?=#)", line)]
    assert box["width"] > 1000
    assert len(gaps) >= 12
    assert min(gaps) >= 5
