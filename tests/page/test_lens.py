"""The view Lens: cells have the API's words, a click opens one, a word is followed; long texts come in pages."""

import pytest
from playwright.sync_api import expect

from tests.page.conftest import TEXT, Open, ask, percent, settle, wait_until, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")


def test_a_cell_is_opened_by_keyboard_and_its_words_are_the_apis(open_view: Open, server: Server) -> None:
    page = open_view("lens", query=7, lens_state=4)
    truth = ask(server, "/v1/lens", {"input": TEXT, "layers": 3, "positions": 8})["data"][0]
    page.get_by_role("application", name="The word that each layer would say").focus()
    for key in ("ArrowUp", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url("**lens_state=3**")
    cell = page.locator("section.card", has=page.get_by_role("heading", name="After girl"))
    expect(cell).to_contain_text("the residual stream after layer 2")
    words = [word.replace(" ", "·") for word in truth["top_tokens"][0][0]]
    expect(cell.locator("tbody code")).to_have_text(words)
    chances = [percent(chance) for chance in truth["arrays"]["probabilities"]["data"][0][0]]
    expect(cell.locator("td.number")).to_have_text(chances)
    expect(cell).to_contain_text(f"Entropy {written(truth['arrays']['entropy']['data'][0][0])} nats")


def test_a_click_on_the_last_row_opens_the_models_own_answer(open_view: Open, server: Server) -> None:
    page = open_view("lens", query=8, lens_state=0)
    next_token = ask(server, "/v1/next", {"input": TEXT, "position": 5, "num_tokens": 1})["data"][0]
    grid = page.get_by_role("application", name="The word that each layer would say")
    box = grid.bounding_box()
    assert box is not None
    names = 78  # pixels of the layers' names
    grid.click(position={"x": names + (box["width"] - names) * 5.5 / 9, "y": box["height"] - 12})
    page.wait_for_url("**query=5**")
    cell = page.locator("section.card", has=page.get_by_role("heading", name="After was"))
    expect(cell).to_contain_text("the model's own answer")
    best = next_token["temperatures"][0]["tokens"][0]
    expect(cell.locator("tbody tr").first).to_contain_text(best["token"].replace(" ", "·"))
    expect(cell.locator("td.number").first).to_have_text(percent(best["probability"]))


def test_a_word_is_followed_through_the_layers(open_view: Open, server: Server) -> None:
    page = open_view("lens", query=8, lens_target=" king")
    truth = ask(server, "/v1/lens", {"input": TEXT, "positions": 8, "target": " king", "top_k": 1})["data"][0]
    ranks = [row[0] for row in truth["arrays"]["target_ranks"]["data"]]
    card = page.locator("section.card", has=page.get_by_role("heading", name="One word through the layers"))
    expect(card).to_contain_text(f"rank {ranks[0]:,} of 4,096".replace(",", "\u202f"))
    card.get_by_role("application", name="Rank of the word").focus()
    page.keyboard.press("ArrowLeft")  # from the state that is open, the last
    chosen = f"{ranks[-2]:,}".replace(",", "\u202f")
    expect(card.locator(".readout").first).to_contain_text(f"(1 on top, powers of ten) {chosen}")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**lens_state={len(ranks) - 2}**")


def test_a_target_of_several_tokens_is_refused_in_place(open_view: Open) -> None:
    page = open_view("lens", query=8, lens_target="the king")
    expect(page.locator(".target-field .problem")).to_contain_text("'the king' is")
    expect(page.get_by_role("application", name="The word that each layer would say")).to_be_visible()
    page.get_by_role("button", name="reset").click()
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)


def test_a_long_text_is_shown_up_to_the_chosen_token(open_view: Open, server: Server) -> None:
    text = " ".join([TEXT] * 5)
    count = ask(server, "/tokenize", {"prompt": text})["count"]
    assert 40 < count < 64
    page = open_view("lens", text=text, query=40)
    expect(page.get_by_text(f"positions 9–40 of {count}")).to_be_visible()
    page.get_by_role("button", name="token 20, ").click()  # it is in view, so nothing moves
    expect(page.get_by_role("heading", name="After", level=2)).to_contain_text("20")
    expect(page.get_by_text(f"positions 9–40 of {count}")).to_be_visible()
    page.get_by_role("button", name="earlier").click()
    settle(page)
    expect(page.get_by_text(f"positions 0–31 of {count}")).to_be_visible()
    expect(page.get_by_role("heading", name="After", level=2)).to_contain_text("8")
    expect(page.get_by_role("button", name="earlier")).to_be_disabled()
    page.get_by_role("button", name="later").click()
    expect(page.get_by_text(f"positions {count - 32}–{count - 1} of {count}")).to_be_visible()
    expect(page.get_by_role("button", name="later")).to_be_disabled()


def test_of_a_text_one_token_too_long_the_last_ones_are_shown(open_view: Open, server: Server) -> None:
    ids = ask(server, "/tokenize", {"prompt": " ".join([TEXT] * 5)})["tokens"][:33]
    page = open_view("lens", text=ask(server, "/detokenize", {"tokens": ids})["prompt"])
    expect(page.get_by_text("positions 1–32 of 33")).to_be_visible()


def test_punctuation_is_skipped(open_view: Open, server: Server) -> None:
    page = open_view("lens", query=8, lens_state=6)
    top = ask(server, "/v1/lens", {"input": TEXT, "layers": 6, "positions": 8, "top_k": 20})["data"][0]
    page.get_by_label("skip punctuation").check()
    settle(page)
    kept = [
        (word.replace(" ", "·"), percent(chance))
        for word, chance in zip(top["top_tokens"][0][0], top["arrays"]["probabilities"]["data"][0][0], strict=True)
        if any(map(str.isalnum, word))
    ][:5]
    cell = page.locator("section.card", has=page.get_by_role("heading", name="After girl"))
    expect(cell.locator("tbody code")).to_have_text([word for word, _ in kept])
    expect(page.locator(".lens-said .readout")).to_contain_text(f"{kept[0][0]} {kept[0][1]}")
    page.wait_for_url("**lens_words=1**")


def test_tokens_scrolled_out_are_announced_and_brought_back(open_view: Open) -> None:
    page = open_view("lens", text=" ".join([TEXT] * 3), query=26)
    page.set_viewport_size({"width": 600, "height": 900})
    more = page.get_by_role("button", name="The first tokens are to the left")
    more.click()
    expect(more).to_be_hidden()
    wait_until(page, lambda: page.locator(".lens-scroll").evaluate("(box) => box.scrollLeft") == 0)
