"""The journey: the numbers of each stop come from the weights and the API, and it can be walked, played and opened by
keyboard.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect
from safetensors.torch import load_file

from tests.page.conftest import (
    TEXT,
    Open,
    ask,
    box_of,
    family_server,
    percent,
    saved,
    settle,
    show,
    softmax,
    texts_of,
    wait_until,
    written,
)
from tests.page.test_accessibility import serious
from tests.page.test_flow import traced
from tests.support.processes import ROOT, Server

pytestmark = pytest.mark.usefixtures("kept_page")

LAYER, HEAD, QUERY, KEY = 1, 3, 8, 7
PAIR = {"layer": LAYER, "head": HEAD, "query": QUERY, "key": KEY}
BLOCK = f"blocks.{LAYER}"
STOPS = (
    "model", "tokens", "embedding", "norm", "qk", "dots", "scale", "mask", "softmax", "values", "heads", "add", "mlp",
    "blocks", "next",
)  # fmt: skip
Weight = Callable[[str], np.ndarray]


@pytest.fixture(scope="module")
def weight() -> Weight:
    """weight("model.norm.weight"): a matrix of the built-in model, from its file."""
    weights = load_file(ROOT / "model" / "fables" / "model.safetensors")
    return lambda name: weights[name].double().numpy()


def says(page: Page, stop: str) -> str:
    """Return the sentences of a stop, with minus signs that Python can read."""
    return page.locator(".journey-stops li p").nth(STOPS.index(stop)).inner_text().replace("−", "-")


def number(text: str, before: str, after: str = "") -> float:
    """Return the first number in a text between `before` and `after`."""
    found = re.search(rf"{re.escape(before)}(-?\d+(?:\.\d+)?(?:e-?\d+)?){re.escape(after)}", text)
    assert found, f"no number after {before!r} in {text!r}"
    return float(found[1])


def near(value: float | np.floating[Any]) -> object:
    """Return an object that equals `value` within bfloat16's rounding."""
    return pytest.approx(float(value), rel=6e-3)


def point(server: Server, name: str, **more: object) -> np.ndarray:
    return traced(server, f"{BLOCK}.{name}", **more)


def products(server: Server, text: str = TEXT) -> np.ndarray:
    """Return q . k of every pair of words, also of masked pairs, from the queries and keys of the trace."""
    q, k = (point(server, f"attn.hook_rot_{side}", heads=HEAD, input=text)[:, 0] for side in "qk")
    return np.asarray(q @ k.T)


def test_the_attentions_numbers_follow_from_queries_keys_and_values_at_any_temperature(
    open_view: Open, server: Server
) -> None:
    page = open_view("journey", **PAIR)
    dots = products(server)
    assert number(says(page, "dots"), "“girl” · “little” = ") == near(dots[QUERY, KEY])
    assert "All 81 pairs" in says(page, "dots")
    scaled = dots / np.sqrt(32)
    assert number(says(page, "scale"), "0.1768 (which is 1 / √32) = ") == near(scaled[QUERY, KEY])
    assert "36 scores of the rows drawn are -∞" in says(page, "mask")
    assert "“girl” may look at 9 of 9 tokens" in says(page, "mask")
    values = point(server, "attn.hook_v", heads=HEAD)[: QUERY + 1, 0]
    slider = page.get_by_role("slider", name="temperature of the attention")
    for key, temperature in (("", 1.0), ("ArrowLeft", 0.7), ("End", 100.0)):
        if key:
            slider.press(key)
            softmax_stop = page.locator(".journey-stops .on")
            expect(softmax_stop.locator("h2")).to_have_text(
                f"{STOPS.index('softmax') + 1}. Softmax: scores become shares"
            )
            expect(softmax_stop.locator("p")).to_contain_text(f"at temperature {written(temperature)}")
            assert "All later numbers are the model's own, at temperature 1" in says(page, "values")
        weights = softmax(scaled[QUERY, : QUERY + 1] / temperature)
        share = number(says(page, "softmax"), "“girl” gives “little” ", " %")
        assert share == pytest.approx(100 * weights[KEY], rel=6e-2)
        assert number(says(page, "values"), "numbers of length ") == near(np.linalg.norm(weights @ values))
    page.wait_for_url(re.compile("journey_temperature=100"))


def test_heads_and_neurons_write_z_and_neurons_times_the_weights_and_the_next_word_is_a_completions(
    open_view: Open, server: Server, weight: Weight
) -> None:
    page = open_view("journey", **PAIR)
    table = weight("model.embed_tokens.weight")
    ids = ask(server, "/tokenize", {"prompt": TEXT})["tokens"]
    assert number(says(page, "embedding"), "of length ") == near(np.linalg.norm(table[ids[QUERY]]))
    stream = point(server, "hook_resid_pre")[QUERY]
    assert number(says(page, "norm"), "by ") == near(np.sqrt(np.mean(stream**2)))
    z = point(server, "attn.hook_z")[QUERY]
    output = weight(f"model.layers.{LAYER}.self_attn.o_proj.weight")
    written_by = [np.linalg.norm(output[:, 32 * head : 32 * head + 32] @ z[head]) for head in range(8)]
    assert number(says(page, "heads"), f"head {HEAD} writes a vector of length ") == near(written_by[HEAD])
    assert number(says(page, "heads"), "together write one of length ") == near(np.linalg.norm(output @ z.reshape(-1)))
    middle = stream + output @ z.reshape(-1)
    said = says(page, "add")
    assert number(said, "is now ") == near(np.linalg.norm(middle))
    cosine = middle @ stream / np.linalg.norm(middle) / np.linalg.norm(stream)
    assert number(said, "cosine of both is ") == near(cosine)
    neurons = point(server, "mlp.hook_post")[QUERY]
    strongest = int(np.argmax(np.abs(neurons)))
    assert f"Of 688 neurons, number {strongest} answers most strongly, " in says(page, "mlp")
    down = weight(f"model.layers.{LAYER}.mlp.down_proj.weight") @ neurons
    assert number(says(page, "mlp"), "What it writes, of length ") == near(np.linalg.norm(down))
    end = traced(server, "blocks.5.hook_resid_post", positions=QUERY)[0]
    assert number(says(page, "blocks"), f"after block {LAYER} and ") == near(np.linalg.norm(end))
    body = {"prompt": TEXT, "max_tokens": 1, "temperature": 0, "logprobs": 2}
    likeliest = ask(server, "/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"][0]
    (first, chance), (second, after) = sorted(likeliest.items(), key=lambda item: -item[1])
    said = says(page, "next")
    assert f"“{first.strip()}” {percent(float(np.exp(chance)))}" in said
    assert f"“{second.strip()}” {percent(float(np.exp(after)))}" in said


def test_the_picture_has_the_numbers_before_the_mask_and_after_it(open_view: Open, server: Server) -> None:
    text = "Once upon a time"
    page = open_view("journey", **PAIR | {"query": 2, "key": 1}, text=text, journey_stop="dots")
    dots = products(server, text)
    assert written_cells(saved(page, "picture (SVG)")) == pytest.approx(dots.flatten().tolist(), rel=6e-3)  # 3 digits
    go_to(page, "mask")
    assert texts_of(saved(page, "picture (SVG)")).count("−∞") == 6
    go_to(page, "softmax")
    shares = softmax(dots[2, :3] / np.sqrt(32))
    assert {percent(float(share)) for share in shares} <= set(texts_of(saved(page, "picture (SVG)")))


def written_cells(svg: Path) -> list[float]:
    """Return the numbers of the grid's cells in their order."""
    pattern = r'<text[^>]*text-anchor="middle"[^>]*monospace[^>]*>([^<]*)</text>'
    texts = re.findall(pattern, svg.read_text(encoding="utf-8"))
    return [float(text.replace("−", "-")) for text in texts if re.fullmatch(r"−?\d[\d.]*", text)][:16]


def go_to(page: Page, stop: str) -> None:
    page.locator(".journey-stops h2 button").nth(STOPS.index(stop)).click()
    page.wait_for_url(re.compile(rf"journey_stop={stop}\b"))


def test_keys_walk_play_and_leave_and_the_address_keeps_the_place(open_view: Open) -> None:
    page = open_view("journey", **PAIR)
    film = page.get_by_role("application", name=re.compile("The journey of “girl” through the model, 15 stops"))
    film.press("ArrowRight")
    page.wait_for_url(re.compile(r"journey_stop=tokens\b"))
    expect(page.locator("#journey-said")).to_contain_text("2. The text becomes tokens. The text is cut into 9 tokens")
    film.press("9")
    page.wait_for_url(re.compile(r"journey_stop=softmax\b"))
    film.press("End")
    page.wait_for_url(re.compile(r"journey_stop=next\b"))
    film.press("ArrowLeft")
    page.wait_for_url(re.compile(r"journey_stop=blocks\b"))
    film.press("Escape")
    page.wait_for_url(lambda url: "journey_stop" not in url)
    film.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    film.press("Escape")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.get_by_role("slider", name="Place in the journey").press("End")
    page.wait_for_url(re.compile(r"journey_stop=next\b"))
    page.reload()
    settle(page)
    expect(page.locator(".journey-stops [aria-current=step] h2")).to_have_text("15. The next word")


def test_numbers_stand_in_the_cells_of_a_matrix_that_is_enlarged(open_view: Open, server: Server) -> None:
    page = open_view("journey", **PAIR, journey_stop="qk")
    film = page.get_by_role("application", name=re.compile("The journey of “girl”"))
    box = box_of(film)
    page.mouse.move(box["x"] + 100, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 320, box["y"] + 200, steps=4)  # the queries are at the left
    page.mouse.up()
    for _ in range(6):
        film.press("+")
    queries = point(server, "attn.hook_rot_q", heads=HEAD).flatten()
    words = set(texts_of(saved(page, "picture (SVG)")))
    two_digits = {f"{value:.2g}".replace("-", "−") for value in queries}
    assert len(words & two_digits) >= 10


SEEN = """async () => {
  const { use } = await import(document.querySelector("script[type=module]").src);
  const film = use("views/journey/stage.js").filmOn(document.querySelector(".journey canvas"));
  const { pen, frames, stops } = film;
  const stop = stops[Number(document.querySelector(".journey-scrubber").value)].id;
  const { x, y, width, height } = frames[stop];
  const texts = (kept) => kept.map(({ text, box }) => ({ text, ...box }));
  return {
    stop, drawn: texts(pen.drawn), omitted: texts(pen.omitted), ...pen.size,
    subject: { x: pen.x(x), y: pen.y(y), width: width * pen.scale, height: height * pen.scale },
  };
}"""
"""A script that returns the stop, the texts of the picture and the stop's subject, as boxes in CSS pixels."""
NAMED = {
    "model": ["Text to vectors", "Next word|The last vector|In its place"], "tokens": ["Text", "Tokens"],
    "embedding": ["Tokens", "Embedding"], "norm": ["Norm"], "qk": ["Queries", "Keys"], "dots": ["Query · key, .*"],
    "mask": ["Masked scores, .*"], "softmax": ["Attention pattern, .*", "Weights of .*"],
    "values": ["Values V", "Weight × value", "z, the sum"], "heads": ["All .* heads through W_O", "length"],
    "add": ["Added to the stream"], "cross": ["Cross-attention, .*"], "mlp": ["MLP"], "blocks": ["More blocks.*"],
    "next": ["Next word|The last vector|In its place"],
}  # fmt: skip
"""Titles that a stop shows, as patterns."""


WIDE, PHONE = (1440, 900), (390, 844)


def meets(one: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether two boxes share more than a pixel."""
    return all(
        one[start] + 1 < other[start] + other[size] and other[start] + 1 < one[start] + one[size]
        for start, size in (("x", "width"), ("y", "height"))
    )


@pytest.mark.parametrize(
    ("variant", "size"),
    [
        (None, WIDE),
        (None, PHONE),
        ("bert", WIDE),
        ("bart", PHONE),  # the longest journey
        pytest.param("bert", PHONE, marks=pytest.mark.nightly),
        pytest.param("bart", WIDE, marks=pytest.mark.nightly),
    ],
)
def test_at_every_stop_nothing_is_cut_and_the_subject_fills_half_of_the_picture(
    open_page: Page, server: Server, variant: str | None, size: tuple[int, int]
) -> None:
    page = open_page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(reduced_motion="reduce")
    served = server if variant is None else family_server(variant)
    state = {
        "layer": int(variant != "bart"),
        "head": HEAD,
        "query": 4,
        "key": 2,
        "decoder": "and the old queen said",
        "part": "decoder",
    }
    show(page, served, "journey", **state)
    film = page.locator(".journey canvas")
    names = page.locator(".journey-stops h2").count()
    for place in range(names):
        seen = page.evaluate(SEEN)
        about = f"stop {seen['stop']} of {variant} at {size}"
        whole, subject = {"x": 0, "y": 0, "width": seen["width"], "height": seen["height"]}, seen["subject"]
        near = {key: subject[key] + by for key, by in zip(subject, (0, -24, 0, 24), strict=True)}
        omitted = [each["text"] for each in seen["omitted"] if meets(each, near)]
        assert not omitted, f"{omitted} at {about}"
        own = [each for each in seen["drawn"] if meets(each, near)]
        for title in NAMED.get(seen["stop"], []):
            assert any(re.fullmatch(title, each["text"]) for each in own), f"{about} without {title}"
        for i, each in enumerate(seen["drawn"]):
            assert inside(each, whole), f"{each['text']} is cut at {about}"
            assert not any(meets(each, other) for other in seen["drawn"][:i]), f"{each['text']} overlaps at {about}"
        assert inside(subject, whole), about
        left, top = (min(each[side] for each in (subject, *own)) for side in "xy")
        right = max(each["x"] + each["width"] for each in (subject, *own))
        bottom = max(each["y"] + each["height"] for each in (subject, *own))
        assert (right - left) * (bottom - top) >= 0.5 * seen["width"] * seen["height"], about
        if place + 1 < names:
            film.press("ArrowRight")
            expect(page.locator(f".journey-stops li:nth-child({place + 2})[aria-current]")).to_be_attached()


def inside(box: dict[str, float], whole: dict[str, float]) -> bool:
    """Return whether a box is inside another one, within a pixel."""
    return all(
        whole[start] - 1 <= box[start] and box[start] + box[side] <= whole[start] + whole[side] + 1
        for start, side in (("x", "width"), ("y", "height"))
    )


def test_arrows_walk_from_anywhere_in_the_view_and_the_down_arrow_scrolls(open_view: Open) -> None:
    page = open_view("journey", **PAIR)
    page.locator(".journey-stops .on p").click()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"journey_stop=tokens\b"))
    assert "head=" not in page.url  # the same one
    page.set_viewport_size({"width": 390, "height": 500})
    page.locator(".journey canvas").press("ArrowDown")
    wait_until(page, lambda: page.evaluate("scrollY") > 0)
    assert "journey_stop=tokens" in page.url
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(lambda url: "journey_stop" not in url)


def test_the_values_are_a_table_of_numbers(open_view: Open, server: Server) -> None:
    text = "The car is red"
    page = open_view("journey", **PAIR | {"query": 3, "key": 1}, text=text, journey_stop="values")
    values = point(server, "attn.hook_v", heads=HEAD, input=text)[:, 0, :4]
    shown = texts_of(saved(page, "picture (SVG)"))
    assert "the first 4 numbers of each:" in shown
    assert {written(float(value), 2) for value in values.flatten()} <= set(shown)


def test_less_motion_jumps(open_view: Open) -> None:
    page = open_view("journey", **PAIR)
    page.emulate_media(reduced_motion="reduce")
    positions: list[str] = page.evaluate(
        """() => {
          document.querySelector('.journey-controls [aria-label="Next stop"]').click();
          return [document.querySelector('.journey-scrubber').value];
        }"""
    )
    assert positions == ["1"]  # at once, in the same turn of the script


def test_each_stop_opens_its_view_with_the_pair(open_view: Open) -> None:
    page = open_view("journey", **PAIR)
    for stop, view, more in (
        ("qk", "flow", "flow_open=attn.hook_q"),
        ("dots", "attention", "attention_kind=dots"),
        ("scale", "why", f"key={KEY}"),
        ("heads", "moves", "moves_as=amounts"),
        ("next", "next", f"query={QUERY}"),
    ):
        page.locator(".journey-stops li").nth(STOPS.index(stop)).get_by_role("button", name="→").click()
        expect(page.locator(f"#view-{view} h1")).to_be_visible()
        assert more in page.url
        assert f"query={QUERY}" in page.url
        page.go_back()
        expect(page.locator(".journey-stops li")).to_have_count(len(STOPS))


def test_a_click_on_the_picture_chooses_the_words(open_view: Open, page: Page) -> None:
    open_view("journey", **PAIR, journey_stop="tokens")
    film = page.get_by_role("application", name=re.compile("The journey of “girl”"))
    box = box_of(film)
    assert box["y"] + box["height"] <= 900, "the picture is taller than the window"
    page.mouse.click(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.3)
    page.wait_for_url(re.compile(r"query=[1-5]\b"))
    expect(page.locator(".journey[aria-busy=false]")).to_be_visible()
    assert "number 8 (blue)" not in says(page, "tokens")


# The share of each line's pixels that is not the ground, which the first pixel has.
INKED = """(canvas) => {
  const { width, height } = canvas;
  const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer);
  return Array.from({ length: height }, (_, row) =>
    pixels.subarray(row * width, (row + 1) * width).filter((pixel) => pixel !== pixels[0]).length / width);
}"""


def test_axe_finds_nothing_on_a_stop(open_page: Page, server: Server) -> None:
    page = open_page
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{server.url}/#view=journey&text={TEXT}&journey_stop=softmax")
    page.locator("#view-journey h1").wait_for()
    settle(page)
    assert not serious(page)
    small = page.locator(".journey button, .journey input").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect()).filter((box) => box.height < 24 || box.width < 24).length"
    )
    assert small == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".journey-stops h2 button").first.click()
    page.wait_for_url(lambda url: "journey_stop" not in url)
    rows = page.locator(".journey-canvas canvas").evaluate(INKED)
    inked = [i for i, share in enumerate(rows) if share > 0]
    assert (inked[-1] - inked[0]) / len(rows) > 0.6, "a thin strip in an empty box"


def test_while_the_next_word_is_awaited_the_model_is_not_said_to_have_none(page: Page, server: Server) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/next", hold)
    page.goto(f"{server.url}/#view=journey&text=They+saw+the+Eiffel+Tower+in&change=zero_head_l2_h4")
    last = page.locator(".journey-stops li").last
    expect(last).to_contain_text("The next word")
    expect(last).to_contain_text("After “in”: ….")
    expect(page.locator(".journey-stops")).not_to_contain_text("ends with vectors")
    wait_until(page, lambda: bool(held))
    for route in held:
        route.continue_()
    expect(last).to_contain_text(re.compile(r"After “in”: “.+” \S+ % \(logit"))
