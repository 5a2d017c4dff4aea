"""Tokens that are parts of a character or invisible: each has a readable name."""

import json

from playwright.sync_api import expect

from tests.page.conftest import Open, ask, saved, settle
from tests.support.processes import Server

TEXT = "Ah, café “😀”"


def bytes_of(character: str) -> list[str]:
    return [f"<{byte:02X}>" for byte in character.encode()]


def test_each_part_is_its_byte(open_view: Open) -> None:
    page = open_view("next", text=TEXT)
    chips = page.locator(".tokens").first.locator(".token").all_inner_texts()
    assert chips[-10:] == bytes_of("“") + bytes_of("😀") + bytes_of("”")
    assert [chip for chip in chips if chip in bytes_of("é")] == bytes_of("é")
    expect(page.locator("#app")).not_to_contain_text("\ufffd")


def test_the_names_stand_in_the_pictures_and_the_saved_data(open_view: Open) -> None:
    page = open_view("attention", layer=1, head=3, text=TEXT, query=-1, key=0)
    expect(page.locator(".head-pictures .readout").first).to_contain_text("<9D>")
    header = saved(page.locator(".head-pictures .card").first, "(CSV)").read_text().splitlines()[0]
    assert header.endswith(",".join(bytes_of("“") + bytes_of("😀") + bytes_of("”")))


def test_tokens_of_several_bytes_are_cut_as_the_tokenizer_cut_them(open_view: Open, server: Server) -> None:
    """Use tokens as in a vocabulary with longer pieces: two thirds of a quotation mark, a space and half an é."""
    page = open_view("lens")
    found = ask(server, "/tokenize", {"prompt": "a\u201cb é", "return_token_strs": True})
    asked = []

    def merge(route) -> None:
        asked.append(json.loads(route.request.post_data))
        answer = {
            **found,
            "count": 6,
            "tokens": [1, 2, 3, 4, 5, 6],
            "token_strs": ["a", "\ufffd", "\ufffd", "b", " \ufffd", "\ufffd"],
            "offsets": [[0, 1], [1, 2], [1, 2], [2, 3], [4, 5], [4, 5]],
        }
        route.fulfill(json=answer)

    page.route("**/tokenize", merge)
    page.get_by_label("Text", exact=True).fill("a\u201cb é")
    expect(page.locator(".tokens .token")).to_have_count(6)
    page.unroute_all(behavior="wait")
    settle(page)
    assert asked[0]["return_offsets"]
    shown = page.locator(".tokens .token").all_inner_texts()
    assert shown[1:3] == ["<E2 80>", "<9C>"]
    assert [text.strip() for text in shown[4:]] == bytes_of("é")


def test_tokens_that_cannot_be_seen_are_named_by_signs_or_code_points(open_view: Open) -> None:
    """Check names of control characters: as text they give a button no visible label and no accessible name."""
    unseen = [" ", "\n", "\x0b", "\u00a0", "\u200b", "\x7f\t", " a\n", ""]
    named = open_view("lens").evaluate(
        """async (tokens) => {
            const { use } = await import(document.querySelector("script[type=module]").src);
            const { shownToken } = use("core/model.js");
            return tokens.map(shownToken);
        }""",
        unseen,
    )
    assert named == ["␣", "↵", "U+000B", "U+00A0", "U+200B", "U+007F⇥", "a", "∅"]


def test_the_tokens_of_one_character_are_a_group_and_each_can_be_chosen(open_view: Open) -> None:
    page = open_view("attention", text=TEXT, query=2, key=1)
    shown = page.locator(".text-tokens").first
    group = shown.get_by_role("group", name="😀: one character, 4 tokens")
    assert group.locator(".token").all_inner_texts() == bytes_of("😀")
    expect(group.locator("> span")).to_have_text("😀")
    group.locator(".token").nth(2).click()
    expect(shown.locator(".is-query")).to_have_text("<98>")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # out of the group, to the next one's first
    page.keyboard.press("Enter")
    expect(shown.get_by_role("group", name="”: one character, 3 tokens").locator(".is-query")).to_have_text("<E2>")
