"""The tour: every step opens its view, frames something that is there, and shows numbers that the API gives."""

from playwright.sync_api import Page, expect

from benchmarks.processes import Server
from tests.page.conftest import Open, ask, percent, settle

STORY = "The old fox saw the young fox, and the young fox saw the old"
VIEWS = ["write", "attention", "attention", "attention", "why", "contributions", "lens", "next", "attention"]


def begin(page: Page) -> None:
    page.get_by_role("button", name="Tour").click()
    expect(page.locator(".tour")).to_contain_text("1 of 9")


def test_the_tour_walks_the_views_and_frames_what_it_speaks_of(open_view: Open) -> None:
    page = open_view("server")
    begin(page)
    for place, view in enumerate(VIEWS):
        expect(page.locator(".tour")).to_contain_text(f"{place + 1} of 9")
        expect(page.locator(f"#view-{view}")).to_be_visible()
        settle(page)
        expect(page.locator(".tour-outline")).to_be_in_viewport()
        expect(page.locator(".problem")).to_have_count(0)
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".tour h2")).to_have_text("The dice")
    page.keyboard.press("Escape")
    expect(page.locator(".tour, .tour-outline")).to_have_count(0)
    expect(page.get_by_role("button", name="Tour")).to_be_focused()


def test_its_numbers_are_this_models(open_view: Open, server: Server) -> None:
    page = open_view("attention")
    begin(page)
    for _ in range(2):
        page.get_by_role("button", name="Next", exact=True).click()
    before = ask(server, "/v1/heads", {})["data"][0]["strongest"]["previous_token"][0]
    expect(page.locator(".tour")).to_contain_text(f"head {before['head']} of layer {before['layer']}")
    expect(page.locator("#layer")).to_have_value(str(before["layer"]))
    page.get_by_role("button", name="Next", exact=True).click()
    look = {"input": STORY, "layers": "all", "heads": "all", "query_positions": -1, "key_positions": 2}
    weights = ask(server, "/v1/attention", look)["data"][0]["attention"]
    weight, layer, head = max(
        (row[0][0], layer, head) for layer, heads in enumerate(weights) for head, row in enumerate(heads)
    )
    expect(page.locator(".tour")).to_contain_text(f"head {head} of layer {layer}")
    expect(page.locator(".tour")).to_contain_text(f"{percent(weight)} of its attention to “fox”")
    page.wait_for_url(f"**layer={layer}&head={head}&query=14&key=2")


def test_on_a_phone_the_card_leaves_room_for_what_it_speaks_of(open_view: Open) -> None:
    page = open_view("attention")
    page.set_viewport_size({"width": 390, "height": 800})
    begin(page)
    for place in range(4):
        expect(page.locator(".tour")).to_contain_text(f"{place + 1} of 9")
        settle(page)
        expect(page.locator(".tour-outline")).to_be_visible()  # what it frames may still be on its way
        card = page.locator(".tour").bounding_box()
        frame = page.locator(".tour-outline").bounding_box()
        assert card is not None
        assert frame is not None
        assert frame["y"] + min(frame["height"], 60) <= card["y"]
        page.keyboard.press("ArrowRight")
