"""The view Home: everything is above the fold, its numbers are the API's, it follows typing and the temperature, moves
unless the system is set to less motion, leads into the other views, and fits every kind of model.
"""

import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.page.conftest import (
    Open,
    ask,
    box_of,
    family_server,
    percent,
    requests_of,
    settle,
    show,
    softmax,
    take_precision,
    wait_until,
)
from tests.support.processes import Server
from tests.support.shared import shared_server

STORY = "The old fox saw the young fox, and the young fox saw the old"
FIRST = "The Eiffel Tower is in the city of"
SIZES = {"wide": (1440, 900), "phone": (390, 844)}


@pytest.fixture
def home(page: Page, server: Server) -> Page:
    """The page at its address, without a view and a text, when everything has come."""
    return opened(page, server)


def opened(page: Page, server: Server) -> Page:
    take_precision(server)
    page.goto(server.url)
    expect(page.locator("#view-home h1")).to_have_text("See why the model says its next word.")
    settle(page)
    return page


def words(page: Page) -> list[str]:
    """Return the words of the picture, without their shares."""
    return [word.split("\n")[0] for word in page.locator(".home-word").all_inner_texts()]


def bars(page: Page) -> list[tuple[str, str]]:
    rows = page.locator(".home-next tbody tr").all()
    return [(row.get_by_role("rowheader").inner_text(), row.locator(".number").inner_text()) for row in rows]


def likeliest(server: Server, text: str, **options: Any) -> list[tuple[str, float]]:
    """Return the five likeliest tokens with their probabilities."""
    (entry,) = ask(server, "/v1/next", {"input": text, "num_tokens": 5, **options})["data"]
    return [(token["token"].strip() or "∅", token["probability"]) for token in entry["temperatures"][0]["tokens"]]


def shown(share: float) -> str:
    return percent(share) if share >= 0.0005 else "< 0.1 %"


def written_bars(tokens: list[tuple[str, float]]) -> list[tuple[str, str]]:
    return [(token, shown(probability)) for token, probability in tokens]


def head_of(page: Page) -> tuple[int, int]:
    """Return the layer and the head of the picture."""
    said = page.locator(".home-said p").inner_text()
    found = re.search(r"head (\d+) of layer (\d+)", said)
    assert found, said
    return int(found[2]), int(found[1])


def word_at(offsets: list[list[int]], word: str, text: str = FIRST) -> list[int]:
    """Return the positions of the tokens of a word and of the space before it."""
    begin = text.index(word) - 1
    return [i for i, (start, end) in enumerate(offsets) if start <= begin + len(word) and end > begin]


def two_digits(share: float) -> str:
    return "" if share < 0.02 else f"{float(f'{100 * share:.2g}'):g} %"


def slide(page: Page, temperature: float) -> None:
    page.get_by_label("temperature").fill(str(temperature))


@pytest.mark.parametrize("size", SIZES)
def test_everything_is_above_the_fold(page: Page, server: Server, size: str) -> None:
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    opened(page, server)
    ways = page.get_by_role("navigation", name="Ways on").get_by_role("button")
    expect(ways).to_have_count(3)
    for part in (
        *page.locator(".home > :not(.home-ideas), #view-home h1, .home-word, .home-next tbody tr").all(),
        *ways.all(),
    ):
        box = box_of(part)
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= height, part.get_attribute("class")
    assert page.evaluate("[scrollY, document.documentElement.scrollWidth]") == [0, width]
    assert not overlapping(page.locator(".home-word, .home-next, .home-said, .home-ask, .home-ways"))


def overlapping(elements: Locator) -> list[tuple[str, str]]:
    """Return the pairs of elements with a common area."""
    boxes = [(element.inner_text(), box_of(element)) for element in elements.all()]
    return [
        (one, other)
        for (one, a), (other, b) in combinations(boxes, 2)
        if a["x"] < b["x"] + b["width"] - 1
        and b["x"] < a["x"] + a["width"] - 1
        and a["y"] < b["y"] + b["height"] - 1
        and b["y"] < a["y"] + a["height"] - 1
    ]


def test_the_head_and_its_shares_are_the_apis(home: Page, server: Server) -> None:
    """Find the head with numpy: the largest weight in the upper half of the layers, from the last word to an earlier
    one, without the first word and the neighbour. Each word of this text is one token.
    """
    show(home, server, "home", text=STORY)
    (entry,) = ask(server, "/v1/attention", {"input": STORY, "query_positions": -1})["data"]
    tokens, weights = entry["tokens"], np.array(entry["attention"])[:, :, 0]
    assert words(home) == [token.strip() for token in tokens]
    allowed = [token.strip().isalpha() and 0 < i < len(tokens) - 2 for i, token in enumerate(tokens)]
    upper = weights.copy()
    upper[: len(upper) // 2] = 0
    layer, head, key = (int(i) for i in np.unravel_index((upper * allowed).argmax(), upper.shape))
    said = home.locator(".home-said p")
    expect(said).to_contain_text(
        f"old looks at {tokens[key].strip()} with {percent(weights[layer, head, key])} of its attention"
    )
    expect(said).to_contain_text(f"head {head} of layer {layer}")
    for i, word in enumerate(home.locator(".home-word small").all_inner_texts()):
        assert word == two_digits(weights[layer, head, i]), tokens[i]
    expect(home.locator(".of-word")).to_have_count(int((weights[layer, head, :-1] >= 0.02).sum()))
    home.get_by_role("button", name=f"head {head} of layer {layer}").click()
    home.wait_for_url(f"**#view=attention**layer={layer}&head={head}&query={len(tokens) - 1}&key={key}*")


def test_a_word_of_several_tokens_has_their_sum(home: Page, server: Server) -> None:
    text = "I don't know 東京 naïvely, said Grandmotherly👍🏽 2024"
    show(home, server, "home", text=text)
    (entry,) = ask(server, "/v1/attention", {"input": text, "query_positions": -1})["data"]
    assert len(entry["tokens"]) > len(words(home))
    assert "".join(words(home)) == text.replace(" ", "")
    assert {"don't", "naïvely", "Grandmotherly", "2024"} <= set(words(home))
    layer, head = head_of(home)
    at = word_at(entry["offsets"], "don't", text)
    assert len(at) > 1
    share = home.locator(".home-word", has_text="don't").locator("small")
    expect(share).to_have_text(two_digits(np.array(entry["attention"])[layer, head, 0, at].sum()))


def test_the_bars_follow_the_temperature_without_a_request(home: Page, server: Server) -> None:
    assert bars(home) == written_bars(likeliest(server, FIRST))
    (entry,) = ask(server, "/v1/next", {"input": FIRST, "num_tokens": 5, "full": True})["data"]
    logits = np.array(entry["arrays"]["logits"]["data"], dtype=np.float64)
    names = [token["token"].strip() for token in entry["temperatures"][0]["tokens"]]
    best = [token["token_id"] for token in entry["temperatures"][0]["tokens"]]
    with requests_of(home) as requests:
        for temperature in (0.5, 1.25, 2):
            slide(home, temperature)
            expect(home.locator(".home-next .number").first).to_have_text(shown(softmax(logits / temperature)[best[0]]))
            assert bars(home) == [
                (name, shown(p)) for name, p in zip(names, softmax(logits / temperature)[best], strict=True)
            ]
        slide(home, 0)
        expect(home.locator(".home-next .number")).to_have_text(["100 %", *["< 0.1 %"] * 4])
    assert not [request for request in requests if request.method == "POST"]
    home.wait_for_url("**next_temperature=0*")


def test_bars_of_the_text_before_are_pale_and_write_nothing(home: Page) -> None:
    held: list[Route] = []
    is_free: list[bool] = []
    home.route("**/v1/next", lambda route: route.continue_() if is_free else held.append(route))
    home.get_by_label("Your text").fill("The old king")
    home.get_by_label("Your text").press("Enter")
    wait_until(home, lambda: bool(held))
    expect(home.locator(".home-stage")).to_have_class(re.compile(r"\bstale\b"))
    home.locator(".home-next tbody tr").first.click()
    is_free.append(True)
    for route in held:
        route.continue_()
    settle(home)
    expect(home.get_by_label("Your text")).to_have_value("The old king")
    expect(home.locator(".home-stage")).not_to_have_class(re.compile(r"\bstale\b"))


def test_a_failure_of_the_second_request_is_shown(page: Page, server: Server) -> None:
    def answer(route: Route) -> None:
        if len(route.request.post_data_json["temperatures"]) == 1:
            return route.continue_()
        return route.fulfill(status=400, json={"error": {"message": "No temperatures today.", "code": None}})

    page.route("**/v1/next", answer)
    page.goto(server.url)
    expect(page.locator(".home-stage .problem")).to_contain_text("No temperatures today.")


def test_a_part_of_a_character_is_not_written(page: Page, server: Server) -> None:
    def answer(route: Route) -> None:
        found = route.fetch().json()
        for temperature in found["data"][0]["temperatures"]:
            temperature["tokens"][1]["token"] = "\ufffd"
        route.fulfill(json=found)

    page.route("**/v1/next", answer)
    opened(page, server)
    rows = page.locator(".home-next tbody tr")
    expect(rows).to_have_count(5)
    assert [row.get_by_role("button").count() for row in rows.all()] == [1, 0, 1, 1, 1]


def test_typing_redraws_and_waits_only_for_the_request_before(home: Page, server: Server) -> None:
    """Hold the first answer: further keys send nothing; after it, the text as it is by then is sent."""
    held: list[Route] = []
    sent: list[str] = []

    def hold(route: Route) -> None:
        sent.append(route.request.post_data_json["input"])
        if len(sent) == 1:
            held.append(route)
        else:
            route.continue_()

    home.route("**/v1/attention", hold)
    field = home.get_by_label("Your text")
    field.fill("The")
    wait_until(home, lambda: len(held) == 1)
    field.press_sequentially(" old king said")
    assert sent == ["The"]
    held[0].continue_()
    expect(home.locator(".home-word.is-from")).to_contain_text("said")
    settle(home)
    assert sent == ["The", "The old king said"]
    assert words(home) == ["The", "old", "king", "said"]
    assert bars(home) == written_bars(likeliest(server, "The old king said"))
    home.wait_for_url("**text=The+old+king+said*")
    field.press_sequentially(" ")  # not a token: the next word begins with it
    settle(home)
    assert bars(home) == written_bars(likeliest(server, "The old king said"))
    field.fill("")
    expect(home.locator(".home-stage")).to_contain_text("Type the beginning of a sentence")


def test_a_click_on_a_bar_writes_the_word(home: Page, server: Server) -> None:
    (entry,) = ask(server, "/v1/next", {"input": FIRST, "num_tokens": 1})["data"]
    token = entry["temperatures"][0]["tokens"][0]["token"]
    home.locator(".home-next tbody button").first.press("Enter")
    expect(home.get_by_label("Your text")).to_have_value(FIRST + token)
    settle(home)
    assert bars(home) == written_bars(likeliest(server, FIRST + token))
    home.go_back()
    expect(home.get_by_label("Your text")).to_have_value(FIRST)


MOVING = "document.getAnimations().filter((each) => each.playState === 'running').length"


def test_the_picture_moves_until_it_is_paused_and_never_with_less_motion(page: Page, server: Server) -> None:
    opened(page, server)
    expect(page.locator(".home-beads").first).to_have_css("animation-play-state", "running")
    wait_until(page, lambda: page.evaluate(MOVING) >= page.locator(".home-beads").count())
    page.get_by_role("button", name="Pause").click()
    wait_until(page, lambda: page.evaluate(MOVING) == 0)
    page.get_by_role("button", name="Move", exact=True).click()
    wait_until(page, lambda: page.evaluate(MOVING) > 0)
    page.emulate_media(reduced_motion="reduce")
    wait_until(page, lambda: page.evaluate(MOVING) == 0)
    expect(page.locator(".home-beads").first).to_be_hidden()
    expect(page.locator(".home-line").first).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_be_hidden()


def test_chat_gets_the_text_as_a_message_that_is_not_sent(page: Page, server: Server) -> None:
    show(page, server, "home", text="Who was the old king?")
    page.get_by_role("navigation", name="Ways on").get_by_role("button", name="Chat").click()
    # the model of the tests has no chat template: it continues texts
    expect(page.locator("#prompt, #message")).to_have_value("Who was the old king?")
    expect(page.locator(".turn, .prose button")).to_have_count(0)


def test_the_journey_plays_from_the_text_and_the_head(home: Page) -> None:
    layer, head = head_of(home)
    home.get_by_role("button", name="Play the journey").click()
    expect(home.locator("#view-journey h1")).to_be_visible()
    expect(home.get_by_role("button", name="Pause")).to_be_visible()
    expect(home.locator(".journey-stops li").nth(1)).to_have_attribute("aria-current", "step")
    expect(home.locator("#layer")).to_have_value(str(layer))
    expect(home.locator("#head")).to_have_value(str(head))
    home.get_by_role("button", name="Pause").click()
    home.wait_for_url(lambda url: "journey_plays" not in url)


def test_the_model_is_changed_here_and_the_bars_tell(home: Page, server: Server) -> None:
    layer, head = head_of(home)
    home.get_by_role("button", name="Edit the model").click()
    drawer = home.get_by_role("complementary", name="Edit the model")
    expect(drawer).to_contain_text(f"Layer {layer}, head {head}")
    before = bars(home)
    drawer.get_by_role("button", name="Zero this head").click()
    zeroed = {"point": "attn.hook_z", "layer": layer, "head": head, "op": "zero"}
    after = written_bars(likeliest(server, FIRST, interventions=[zeroed]))
    wait_until(home, lambda: bars(home) == after)
    assert after != before
    home.get_by_role("button", name="before", exact=True).click()
    wait_until(home, lambda: bars(home) == before)
    drawer.press("Escape")
    expect(drawer).to_have_count(0)
    expect(home.get_by_role("button", name="Edit the model")).to_be_focused()


def test_everything_is_used_by_keyboard(home: Page) -> None:
    """Walk from the text to the ideas; the words of the bars, the head and the buttons come in this order."""
    home.get_by_label("Your text").focus()
    seen = []
    for _ in range(14):
        home.keyboard.press("Tab")
        seen.append(
            home.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")
        )
    assert "temperature" in home.evaluate("document.querySelector('.home-ask .slider').textContent")
    names = [name for name, _ in bars(home)]
    assert seen[1:6] == names
    order = [
        next(i for i, each in enumerate(seen) if part in each) for part in ("head ", "Pause", "Chat", "Play", "Edit")
    ]
    assert order == sorted(order)
    home.get_by_label("temperature").focus()
    home.keyboard.press("ArrowRight")
    home.wait_for_url("**next_temperature=1.05*")


@pytest.mark.parametrize(
    ("idea", "drawn"),
    [
        ("mole", "the mole"),
        ("Harry", "Hermione"),
        ("king", "Scotland"),
        ("car", "They washed the car"),
        ("add the words", "She bought a miniature Eiffel tower"),
    ],
)
def test_an_idea_opens_its_texts(home: Page, idea: str, drawn: str) -> None:
    home.get_by_role("link", name=idea, exact=True).click()
    expect(home.locator("#view-moves h1")).to_be_visible()
    expect(home.locator(".motion-contexts textarea")).to_have_value(re.compile(re.escape(drawn)))
    settle(home)
    expect(home.locator(".problem")).to_have_count(0)


def test_the_idea_of_own_logits_opens_them_first(home: Page) -> None:
    home.get_by_role("link", name="own logits").click()
    expect(home.locator(".own-logits")).to_be_in_viewport()
    settle(home)
    distribution = home.get_by_role("heading", name="The distribution")
    assert box_of(home.locator(".own-logits"))["y"] < box_of(distribution)["y"]
    assert home.evaluate("scrollY") == 0


def test_a_link_opens_its_view_and_the_name_of_the_page_leads_home(open_view: Open) -> None:
    page = open_view("lens", layer=2)
    expect(page.locator("#view-home")).to_have_count(0)
    page.get_by_role("link", name="Lightwell").click()
    expect(page.locator("#view-home h1")).to_be_visible()
    expect(page.get_by_label("Your text")).to_have_value("Once upon a time there was a little girl")
    page.goto(page.url.replace("view=home", "view=nothing"))
    expect(page.locator("#view-home h1")).to_be_visible()


def test_a_long_text_shows_its_last_words(page: Page, server: Server) -> None:
    text = "The wolf met the girl. " * 12 + "The wolf met the"
    show(page, server, "home", text=text)
    expect(page.locator(".home-words")).to_contain_text(re.compile(r"^\d+ words before …"))
    assert len(words(page)) == 32
    assert words(page)[-4:] == ["The", "wolf", "met", "the"]
    expect(page.locator(".home-word.is-from")).to_contain_text("the")
    assert not overlapping(page.locator(".home-word"))


def test_a_masked_language_model_fills_in_the_masked_word(page: Page) -> None:
    server = family_server("bert")
    opened(page, server)
    text = f"{FIRST} [MASK]."
    expect(page.get_by_label("Your text")).to_have_value(text)
    expect(page.locator(".home-word.is-from")).to_contain_text("[MASK]")
    settle(page)  # the bars come with another answer
    (entry,) = ask(server, "/v1/next", {"input": text, "num_tokens": 5})["data"]
    tokens = entry["temperatures"][0]["tokens"]
    assert [value for _, value in bars(page)] == [shown(token["probability"]) for token in tokens]
    expect(page.locator(".home-next thead")).to_contain_text("word in its place")
    expect(page.get_by_role("button", name="Compare texts")).to_be_enabled()
    written = next(i for i, token in enumerate(tokens) if token["token"].strip())
    page.locator(".home-next tbody button").nth(written).click()
    expect(page.get_by_label("Your text")).to_have_value(text.replace("[MASK]", tokens[written]["token"].strip()))


def test_an_encoder_decoder_shows_the_first_word_of_its_answer(page: Page) -> None:
    server = family_server("bart")
    opened(page, server)
    expect(page.locator(".home-word.is-from")).to_contain_text("its answer")
    (entry,) = ask(server, "/v1/next", {"input": FIRST, "num_tokens": 5})["data"]
    shares = [shown(token["probability"]) for token in entry["temperatures"][0]["tokens"]]
    assert [value for _, value in bars(page)] == shares
    (entry,) = ask(server, "/v1/attention", {"input": FIRST, "part": "cross", "query_positions": -1})["data"]
    layer, head = head_of(page)
    weights = np.array(entry["attention"])[:, :, 0]
    assert layer >= len(weights) // 2
    at = word_at(entry["key_offsets"], "Tower")
    share = page.locator(".home-word", has_text="Tower").locator("small")
    expect(share).to_have_text(two_digits(weights[layer, head, at].sum()))


@pytest.mark.nightly
def test_the_first_picture_of_the_default_model_is_meaningful(page: Page) -> None:
    opened(page, shared_server("smollm2", "--served-model-name", "smollm2"))
    expect(page.locator(".home-said p")).to_contain_text("of looks at Eiffel")
    (name, share), *_ = bars(page)
    assert name == "Paris"
    assert float(share.removesuffix(" %")) > 50


@pytest.mark.nightly
@pytest.mark.parametrize("variant", ["embedding_gemma", "lfm2"])
def test_other_kinds_of_models_have_a_home(page: Page, variant: str) -> None:
    """Check a model that only makes vectors, and one with mostly convolutions."""
    server = family_server(variant)
    opened(page, server)
    expect(page.locator(".home-line").first).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)
    works = ask(server, "/v1/capabilities")["routes"]["/v1/next"]["works"]
    expect(page.locator(".home-next")).to_contain_text("next word" if works else "it predicts no token")
    expect(page.get_by_label("temperature")).to_have_count(1 if works else 0)
