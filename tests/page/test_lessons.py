"""Lessons: every step opens its view, frames the described part, and has only true sentences about the served model."""

import math
import operator
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from safetensors.torch import load_file

from tests.page import lessons
from tests.page.conftest import TEXT, Open, ask, box_of, percent, settle, softmax, wait_until, written
from tests.page.test_accessibility import violations
from tests.page.test_flow import traced
from tests.support.processes import ROOT, Server

CARD = ".lesson"
TOUR = len(lessons.read("tour")["steps"])
PICTURED = {
    "The matrices themselves": "The numbers of blocks.{back.layer}.attn.W_Q",
    "Before the mask": "{early.dots.data[{robot}]:number}",
    "The grid of products": "{column.dots.data[{blue}]:number}",
    "Masked": "{start.dots.data[{creature}]:number}",
    "Features that share information": "{features.arrays.strongest_correlations.data[0]:number}",
    "Without this head": "{without.probability:percent}",
}
"""Texts that the view of a step must show, because its sentences name them, by the step."""


RELATIONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le, "=": operator.eq, "!=": operator.ne,
    "near": lambda a, b: math.isclose(a, b, rel_tol=0.01),
}  # fmt: skip
COMPUTED = {
    "values": {
        "all": {"compute": "sum", "of": [[1, 2.5], 3]},
        "difference": {"compute": "difference", "of": [2, 5]},
        "product": {"compute": "product", "of": [2, 3, 4]},
        "ratio": {"compute": "ratio", "of": [1, 8]},
        "root": {"compute": "root", "of": [2]},
        "exp": {"compute": "exp", "of": [1]},
        "length": {"compute": "length", "of": [[3, 4]]},
        "dot": {"compute": "dot", "of": [[1, 2], [3, -4]]},
        "cosine": {"compute": "cosine", "of": [[1, 0], [1, 1]]},
        "first": {"word": "girl", "text": "a girl and a girl"},
        "second": {"word": "girl", "nth": 2, "text": "a girl and a girl"},
        "third": {"word": "girl", "nth": 3, "text": "a girl and a girl"},
        "model": {"route": "/v1/capabilities", "value": "model"},
        "last": {"route": "/v1/next", "body": {"input": TEXT, "num_tokens": 3},
                 "value": "data[0].temperatures[0].tokens[-1].token"},
        "most": {"route": "/v1/attention", "body": {"input": TEXT, "layers": [2, 4], "query_positions": [5, 7]},
                 "value": "attention", "largest": ["layer", "head", "query", "key"]},
        "least": {"route": "/v1/explain", "body": {"input": TEXT, "layer": 1, "head": 3, "query_position": 7},
                  "value": "arrays.dots.data", "smallest": ["key"]},
    },
    "text": TEXT,
    "select": {},
    "steps": [{
        "say": [
            "{all} {difference} {product} {ratio} {root} {exp} {length} {dot} {cosine}",
            "{ratio:percent} {ratio:number} {length:grouped} {last:token}",
            "{first} {second}",
            "{third}",
            "{model}: {most.value} {most.layer} {most.head} {most.query} {most.key} {least.value} {least.key}",
            *(
                {"if": f"{{length}} {relation} {side}", "say": f"{relation} {side}", "else": f"not {relation} {side}"}
                for relation in RELATIONS
                for side in (4, 4.96, 5, 5.04, 6)
            ),
            {"if": "{length} = 5 and {ratio} > 1", "say": "never"},
            {"if": "{third} = 1", "say": "never", "else": ""},
            {"if": "{model} = fables", "say": "a name"},
        ],
        "select": {"layer": "{most.layer}", "text": "{text}!", "key": "{third}"},
    }, {"say": [], "select": {"query": "{second}", "head": 2}}],
}  # fmt: skip
"""A lesson that uses every function, relation and format."""


def test_the_functions_relations_and_formats_of_lessons(open_view: Open, server: Server) -> None:
    told, chosen = lessons.say(open_view("server"), COMPUTED)["steps"]
    root, e, half = (written(value) for value in (2**0.5, math.e, 0.5**0.5))
    tokens = ask(server, "/tokenize", {"prompt": "a girl and a girl", "return_token_strs": True})["token_strs"]
    first, second = (place for place, token in enumerate(tokens) if token.strip() == "girl")
    body = {"input": TEXT, "num_tokens": 3}
    last = ask(server, "/v1/next", body)["data"][0]["temperatures"][0]["tokens"][-1]["token"].strip()
    body = {"input": TEXT, "layers": [2, 4], "query_positions": [5, 7]}
    weights = np.array(ask(server, "/v1/attention", body)["data"][0]["attention"])
    layer, head, query, key = np.unravel_index(weights.argmax(), weights.shape)
    body = {"input": TEXT, "layer": 1, "head": 3, "query_position": 7}
    dots = np.array(ask(server, "/v1/explain", body)["data"][0]["arrays"]["dots"]["data"], float)
    most = f"{written(weights.max())} {(2, 4)[layer]} {head} {(5, 7)[query]} {key}"
    assert told["said"] == [
        f"6.5 -3 24 0.125 {root} {e} 5 -5 {half}",
        f"{percent(0.125)} 0.125 5 {last}",
        f"{first} {second}",
        f"fables: {most} {written(np.nanmin(dots))} {np.nanargmin(dots)}",
        *(
            f"{relation} {side}" if holds(5, side) else f"not {relation} {side}"
            for relation, holds in RELATIONS.items()
            for side in (4, 4.96, 5, 5.04, 6)
        ),
        "a name",
    ]
    assert told["left"] == 2  # the third girl, and the sentence that is never true
    assert told["chosen"] is None  # there is no third girl
    assert chosen["chosen"] == {"query": second, "head": 2}


@pytest.mark.parametrize(
    "name", [name if name == "six-steps" else pytest.param(name, marks=pytest.mark.nightly) for name in lessons.NAMES]
)
def test_every_step_says_what_the_api_answers_and_frames_it(name: str, page: Page, server: Server) -> None:
    lesson = lessons.read(name)
    steps = lesson["steps"]
    pictured = [{"say": [PICTURED[step["title"]]] if step["title"] in PICTURED else []} for step in steps]
    page.goto(f"{server.url}/#{urlencode({'view': 'server', 'lesson': name})}")
    told = [step["said"] for step in lessons.say(page, {**lesson, "steps": [*steps, *pictured]})["steps"]]
    for place, step in enumerate(steps):
        said = told[place]
        # waited for in the page itself: `expect` checks again only after up to a second
        page.locator(f"{CARD} h2").get_by_text(step["title"], exact=True).wait_for()
        page.locator(f"{CARD} [aria-live] p").filter(has_text=said[-1]).wait_for()
        frame = step.get("frame", f"#view-{step['view']} .card")
        page.locator(frame if isinstance(frame, str) else frame[0]).first.wait_for()
        page.locator(".lesson-outline").wait_for()
        expect(page.locator(CARD)).to_contain_text(f"{place + 1} of {len(steps)}")
        expect(page.locator(f"{CARD} [aria-live] p:not(.hint)")).to_have_text(said)
        expect(page.locator(f"#view-{step['view']}")).to_be_visible()
        expect(page.locator(".lesson-outline")).to_be_in_viewport()
        expect(page.locator(".problem")).to_have_count(0)
        for seen in told[len(steps) + place]:
            expect(page.locator(f"#view-{step['view']}")).to_contain_text(seen)
        if step["view"] == "moves" and "amounts" not in step.get("select", {}).values():
            assert_the_arrows_can_be_played(page)
        page.keyboard.press("ArrowRight")
    address = parse_qs(urlsplit(page.url).fragment)
    assert (address["lesson"], address["lesson_step"]) == ([name], [str(len(steps))])
    page.keyboard.press("Escape")
    expect(page.locator(f"{CARD}, .lesson-outline")).to_have_count(0)


def assert_the_arrows_can_be_played(page: Page) -> None:
    """Assert that the whole picture is in sight, and that the card does not cover its controls."""
    expect(page.locator(".motion-figure")).to_be_in_viewport(ratio=0.99)
    settle(page)

    def are_apart() -> bool:
        card, controls = (page.locator(each).bounding_box() for each in (CARD, ".motion-controls"))
        assert card is not None
        assert controls is not None
        return controls["x"] + controls["width"] <= card["x"] or controls["y"] + controls["height"] <= card["y"]

    wait_until(page, are_apart)  # the card follows the picture frame by frame


@pytest.mark.parametrize("size", [(1440, 900), pytest.param((1000, 700), marks=pytest.mark.nightly), (390, 844)])
def test_the_card_never_moves_and_covers_nothing(page: Page, server: Server, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{server.url}/#{urlencode({'view': 'server', 'lesson': 'tour'})}")
    places = set()
    for place in range(TOUR):
        expect(page.locator(CARD)).to_contain_text(f"{place + 1} of {TOUR}")
        settle(page)
        card = box_of(page.locator(CARD))
        places.add((card["x"], card["y"], card["width"], card["height"]))
        page.mouse.move(300, 100)
        wait_until(page, lambda: is_scrolled_down(page) and not covered(page))  # the view may grow while it loads
        page.keyboard.press("ArrowRight")
    assert len(places) == 1


def covered(page: Page) -> list[str]:
    """Return the parts of the page with an end under the card, although the page is scrolled to its end."""
    card = box_of(page.locator(CARD))
    boxes = {part: box_of(page.locator(part)) for part in (".top", ".rail", ".stage")}
    return [
        part
        for part, box in boxes.items()
        if box["x"] + box["width"] > card["x"] + 1
        and box["y"] < card["y"] + card["height"] - 1
        and box["y"] + box["height"] > card["y"] + 1
    ]


def is_scrolled_down(page: Page) -> bool:
    """Turn the wheel, and return whether the end of the page is in the window."""
    page.mouse.wheel(0, 10_000)
    return bool(page.evaluate("scrollY + innerHeight >= document.documentElement.scrollHeight - 1"))


def test_a_step_chooses_the_words_and_the_head_that_it_speaks_of(open_view: Open, server: Server) -> None:
    page = open_view("attention")
    page.get_by_role("button", name="Tour").click()
    for _ in range(4):
        page.get_by_role("button", name="Next", exact=True).click()
    story = lessons.read("tour")["text"]
    look = {"input": story, "layers": "all", "heads": "all", "query_positions": -1, "key_positions": 2}
    weights = ask(server, "/v1/attention", look)["data"][0]["attention"]
    weight, layer, head = max(
        (row[0][0], layer, head) for layer, heads in enumerate(weights) for head, row in enumerate(heads)
    )
    expect(page.locator(CARD)).to_contain_text(f"head {head} of layer {layer}")
    expect(page.locator(CARD)).to_contain_text(f"{percent(weight)} of its attention to “fox”")
    page.wait_for_url(f"**layer={layer}&head={head}&query=14&key=2*")


def test_leaving_gives_the_visitors_text_and_selection_back(open_view: Open) -> None:
    page = open_view("attention", text="The king said to the queen", layer=4, head=2, query=3, key=1)
    before = page.url
    text = page.get_by_label("Text", exact=True)
    for leave in ("Escape", "Close", "Done"):
        page.get_by_role("button", name="Tour").click()
        expect(page.locator(CARD)).to_contain_text(f"1 of {TOUR}")
        for place in (2, 3):
            page.keyboard.press("ArrowRight")
            expect(page.locator(CARD)).to_contain_text(f"{place} of {TOUR}")
        expect(text).to_have_value(re.compile("old fox"))
        if leave == "Escape":
            page.keyboard.press("Escape")
        elif leave == "Close":
            page.get_by_role("button", name="Close the lesson").click()
        else:
            for place in range(4, TOUR + 1):
                page.keyboard.press("ArrowRight")
                expect(page.locator(CARD)).to_contain_text(f"{place} of {TOUR}")
            page.get_by_role("button", name="Done").click()
        expect(page.locator(CARD)).to_have_count(0)
        expect(text).to_have_value("The king said to the queen")
        page.wait_for_url(before)
        expect(page.get_by_role("button", name="Tour")).to_be_focused()


def test_what_a_step_shows_can_be_kept(open_view: Open) -> None:
    page = open_view("attention", text="The king said to the queen", lesson="tour", lesson_step=3)
    expect(page.get_by_label("Text", exact=True)).to_have_value(re.compile("old fox"))
    page.get_by_role("button", name="Stay here").click()
    expect(page.locator(CARD)).to_have_count(0)
    expect(page.get_by_label("Text", exact=True)).to_have_value(re.compile("old fox"))


def test_the_browsers_back_button_walks_the_steps_and_out_of_the_lesson(open_view: Open) -> None:
    page = open_view("attention", text="The old king")
    page.get_by_role("button", name="Tour").click()
    expect(page.locator(CARD)).to_contain_text(f"1 of {TOUR}")
    page.keyboard.press("ArrowRight")
    expect(page.locator(CARD)).to_contain_text(f"2 of {TOUR}")
    page.go_back()
    expect(page.locator(CARD)).to_contain_text(f"1 of {TOUR}")
    expect(page.locator("#view-journey")).to_be_visible()
    page.go_back()
    expect(page.locator(CARD)).to_have_count(0)
    expect(page.get_by_label("Text", exact=True)).to_have_value("The old king")


def test_the_losses_of_the_training_lesson_follow_from_the_weights(open_view: Open, server: Server) -> None:
    """The logits are the unembedding, read from the file, times the last state."""
    table = load_file(ROOT / "model" / "fables" / "model.safetensors")["model.embed_tokens.weight"].double().numpy()

    def losses(text: str) -> np.ndarray:
        ids = ask(server, "/tokenize", {"prompt": text})["tokens"]
        logits = traced(server, "ln_final.hook_out", input=text) @ table.T
        return np.array([-np.log(softmax(row)[token]) for row, token in zip(logits, ids[1:], strict=False)])

    said = lessons.say(open_view("server"), lessons.read("training"))["steps"]
    words = " ".join(sentence for step in said for sentence in step["said"])
    own, mixed = losses("The cat sat on the mat"), losses("mat the on sat cat The")
    quoted = (
        ("comes, “.*?”, has ", 100 * np.exp(-own[-1])), ("= ", own[-1]), ("on the mat” is ", own.mean()),
        ("choice between ", np.exp(own.mean())), ("cat The”, cost ", mixed.mean()),
        ("in proportion to ", 1 - np.exp(-own[-1])),
    )  # fmt: skip
    for before, value in quoted:
        found = re.search(rf"{before}(-?[\d.]+(?:e[-−]?\d+)?)", words)
        assert found, before
        assert float(found[1].replace("−", "-")) == pytest.approx(value, rel=0.03), before


def test_the_sizes_of_the_lesson_on_recurrent_networks_are_the_weights_own(open_view: Open) -> None:
    weights = load_file(ROOT / "model" / "fables" / "model.safetensors")
    layer = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"]
    width = weights[layer[0]].shape[1]
    num_layers = sum(name.endswith("self_attn.k_proj.weight") for name in weights)
    kept = 2 * num_layers * weights[layer[1]].shape[0]
    said = lessons.say(open_view("server"), lessons.read("recurrent"))["steps"]
    words = re.sub(r"(?<=\d)\u202f(?=\d)", "", " ".join(sentence for step in said for sentence in step["said"]))
    assert f"= {8 * width * width} weights" in words
    assert f"have {sum(weights[name].numel() for name in layer)}." in words
    assert f"{kept} numbers for each" in words


def test_the_tour_says_with_its_sign_what_the_head_does_to_the_word(open_view: Open, server: Server) -> None:
    lesson = lessons.read("tour")
    ids = ask(server, "/tokenize", {"prompt": lesson["text"], "add_special_tokens": True})["tokens"]
    looks = {"input": lesson["text"], "layers": "all", "heads": "all", "query_positions": -1, "key_positions": 2}
    weights = np.array(ask(server, "/v1/attention", looks)["data"][0]["attention"])[:, :, 0, 0]
    pushes = ask(server, "/v1/contributions", {**looks, "target": ids[2]})["data"][0]["arrays"]["attributions"]["data"]
    layer, head = np.unravel_index(weights.argmax(), weights.shape)
    push = pushes[layer][head][0][0]
    (said,) = (
        step["said"]
        for told, step in zip(lesson["steps"], lessons.say(open_view("server"), lesson)["steps"], strict=True)
        for step in [step]
        if told["title"] == "The effect of attention"
    )
    assert f"{'lowers' if push < 0 else 'raises'} the logit of “fox” by {written(abs(push))}" in said[1]


def test_a_sentence_that_is_untrue_of_the_model_is_left_out_and_the_card_says_so(page: Page, server: Server) -> None:
    """The built-in model has no induction head as strong as SmolLM2's."""
    last = len(lessons.read("tables")["steps"])
    page.goto(f"{server.url}/#{urlencode({'lesson': 'tables', 'lesson_step': last})}")
    expect(page.locator(CARD)).to_contain_text("One sentence is left out, because it is not true for this model.")
    expect(page.locator(CARD)).not_to_contain_text("an earlier occurrence of the same word")


def test_the_list_opens_and_closes_by_the_keyboard(open_view: Open) -> None:
    page = open_view("attention")
    page.get_by_role("button", name="Lessons").press("Enter")
    expect(page.locator(".lesson-list li")).to_have_count(len(lessons.NAMES))
    first, *others = page.locator(".lesson-list b").all_inner_texts()
    assert first == lessons.read("tour")["title"]
    for idea in ("logits of your own", "mole, Harry, king, car", "Tower + Eiffel + miniature", "training", "LSTM"):
        assert sum(idea in title for title in others) == 1
        expect(page.locator(".lesson-list b", has_text=idea)).to_be_in_viewport()  # at a glance, without scrolling
    expect(page.locator(CARD)).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(CARD)).to_contain_text(f"1 of {TOUR}")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Lessons")).to_be_focused()


def test_axe_finds_nothing_serious_in_the_list_and_in_a_step(open_page: Page, server: Server) -> None:
    page = open_page
    page.set_viewport_size({"width": 390, "height": 844})
    found = []
    for lesson in ("list", "six-steps"):
        page.goto(f"{server.url}/#{urlencode({'view': 'why', 'text': TEXT, 'lesson': lesson})}")
        page.locator(f"{CARD} button").nth(1).wait_for()
        settle(page)
        found += [each["help"] for each in violations(page, CARD)]
        boxes = [button.bounding_box() for button in page.locator(f"{CARD} button").all()]
        assert all(box and min(box["width"], box["height"]) >= 24 for box in boxes)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.goto("about:blank")
    assert not found


def test_on_a_phone_the_card_leaves_room_for_what_it_speaks_of(open_view: Open) -> None:
    page = open_view("attention")
    page.set_viewport_size({"width": 390, "height": 800})
    page.get_by_role("button", name="Tour").click()
    for place in range(4):
        expect(page.locator(CARD)).to_contain_text(f"{place + 1} of {TOUR}")
        settle(page)
        expect(page.locator(".lesson-outline")).to_be_visible()  # the framed element may still be loading
        wait_until(page, lambda: is_above_the_card(page))
        page.keyboard.press("ArrowRight")


def is_above_the_card(page: Page) -> bool:
    """Return whether the frame, or 60 pixels of it, is above the card; it moves with the picture frame by frame."""
    card = page.locator(CARD).bounding_box()
    frame = page.locator(".lesson-outline").bounding_box()
    assert card is not None
    assert frame is not None
    return frame["y"] + min(frame["height"], 60) <= card["y"]
