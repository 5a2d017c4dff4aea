"""The frame of the page: one selection for all views, in the URL; keys; the server's loss and return; no other host."""

import re
from urllib.parse import parse_qsl, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.page.conftest import (
    KEY,
    PROXY_PATH,
    VIEWS,
    Open,
    Watched,
    ask,
    box_of,
    new_page,
    sent_to,
    settle,
    show,
    wait_until,
    written,
)
from tests.page.test_terms import check_terms
from tests.support.processes import Server


def sizes_of_files(page: Page) -> dict[str, int]:
    """Return a dictionary that the page's files are added to, compressed, in bytes; browsers may keep them."""
    sizes: dict[str, int] = {}

    def count(request: Request) -> None:
        path, response = urlsplit(request.url).path, request.response()
        if path == "/" or "/web/" in path:
            assert response is not None
            sizes[path] = request.sizes()["responseBodySize"]
            assert path == "/" or "immutable" in response.headers["cache-control"]
            assert path == "/" or response.headers["content-encoding"] == "gzip"

    page.on("requestfinished", count)
    return sizes


def test_every_view_opens_from_the_list_keeps_the_selection_and_explains_its_words(
    browser: Browser, server: Server
) -> None:
    """Check also the bytes of all files, and of the files of the first view, in a browser without stored data."""
    chosen = {"layer": "2", "head": "5", "query": "4", "key": "2"}
    with_heads = 0
    with new_page(browser) as page:
        watched, sizes = Watched(page), sizes_of_files(page)
        show(page, server, "home", chat_mode="text", **chosen)
        assert sum(sizes.values()) < 120_000, sizes
        assert len([path for path in sizes if path.endswith(".js")]) == 1, "all code of the first view comes at once"
        for number, view in enumerate(VIEWS):
            page.get_by_role("navigation", name="Views").get_by_role("button").nth(number).press("Enter")
            expect(page.locator(f"#view-{view} h1")).to_be_visible()
            settle(page)
            expect(page.locator(".problem"), view).to_have_count(0)
            expect(page.locator("nav [aria-current=page]"), view).to_have_count(1)
            held = dict(parse_qsl(urlsplit(page.url).fragment))
            assert held["view"] == view
            assert {name: held[name] for name in chosen} == chosen, view
            if page.locator("#head").count():
                with_heads += 1
                expect(page.locator("#layer")).to_have_value("2")
                expect(page.locator("#head")).to_have_value("5")
            if page.locator(".text-tokens").count():
                expect(page.locator(".text-tokens .is-query")).to_have_text("there")
            check_terms(page, view)
        assert not [*watched.errors, *watched.strangers]
    assert with_heads == 7  # Weights has a choice of its own
    assert len(sizes) > len(VIEWS)
    assert sum(sizes.values()) < 420_000, sizes


def test_one_selection_is_shared_and_the_url_restores_it(open_view: Open, browser: Browser) -> None:
    page = open_view("attention", layer=-4, head=-3)  # counted from the end, as is the query without a choice
    expect(page.locator(".text-tokens .is-query")).to_have_text("girl")
    page.get_by_role("button", name="token 3, ").first.click()
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Why").click()
    settle(page)
    expect(page.locator("#layer")).to_have_value("2")
    expect(page.locator("#head")).to_have_value("5")
    page.wait_for_url("**query=3**")
    page.go_back()
    expect(page.locator("#view-attention")).to_be_visible()
    page.go_forward()
    with new_page(browser) as other:
        other.goto(page.url)
        settle(other)
        expect(other.locator("#view-why")).to_be_visible()
        expect(other.locator("#head")).to_have_value("5")
        expect(other.get_by_role("button", name="token 3, ").first).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("name", ["__proto__", "__defineGetter__", "toString"])
def test_an_address_with_an_unknown_view_opens_the_first_one(page: Page, server: Server, name: str) -> None:
    page.goto(f"{server.url}/#view={name}")
    expect(page.locator("#view-home h1")).to_be_visible()


def test_a_key_with_alt_is_the_browsers(open_view: Open) -> None:
    page = open_view("attention")
    token = page.locator(".text-tokens .token").nth(3)
    for element in (token, page.locator(".head-pictures canvas[tabindex]").first):
        element.focus()
        taken = element.evaluate(
            """(element) => [{ altKey: true }, {}].map((more) => !element.dispatchEvent(
                new KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true, cancelable: true, ...more })))"""
        )
        assert taken == [False, True]


def test_keys_walk_layers_and_heads_but_not_while_writing(open_view: Open) -> None:
    page = open_view("attention", layer=0, head=0)
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#layer")).to_have_value("5")
    expect(page.locator("#head")).to_have_value("7")
    page.keyboard.press("Shift+ArrowDown")
    expect(page.locator("#layer")).to_have_value("0")
    page.keyboard.press("ArrowDown")  # scrolls
    wait_until(page, lambda: page.evaluate("scrollY") > 0)
    expect(page.locator("#layer")).to_have_value("0")
    page.get_by_label("Text", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#head")).to_have_value("7")


def test_the_keyboard_goes_past_the_list_of_views(open_view: Open) -> None:
    page = open_view("attention")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Go to the view")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="head", exact=True)).to_be_focused()


def test_arrow_keys_change_nothing_where_no_head_is_chosen(open_view: Open) -> None:
    page = open_view("server", layer=2, head=3)
    page.locator("body").press("Shift+ArrowDown")
    page.get_by_role("navigation", name="Views").get_by_role("button", name="who looks at whom").click()
    expect(page.locator("#layer")).to_have_value("2")


def test_what_was_typed_is_taken_when_the_field_is_left(open_view: Open) -> None:
    page = open_view("attention")
    page.get_by_label("Text", exact=True).fill("The old king")
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.locator("#message")).to_have_value("The old king")


def test_what_is_pointed_at_may_go_with_a_shorter_text(open_view: Open) -> None:
    page = open_view("lens")
    box = page.locator(".lens-canvas .canvases").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40)
    page.get_by_label("Text", exact=True).fill("The king")
    expect(page.locator(".tokens .token")).to_have_count(2)
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)
    expect(page.locator(".lens-canvas canvas").first).to_be_visible()


def test_the_word_that_is_looked_at_is_chosen_without_a_shift_key(open_view: Open) -> None:
    page = open_view("why", layer=1, head=3, query=7, key=6)
    page.get_by_role("button", name="who is looked at").click()
    page.get_by_role("button", name="token 4, ").first.click()
    page.wait_for_url("**key=4**")
    assert "query=7" in page.url
    page.get_by_role("button", name="token 5, ").first.click(modifiers=["Shift"])
    page.wait_for_url("**query=5**")
    assert "key=4" in page.url


def test_the_policy_allows_the_pages_own_files_alone(page: Page, server: Server) -> None:
    answer = page.goto(server.url)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    settle(page)
    assert not page.locator("script:not([src])").count()


def test_no_view_scrolls_sideways_when_a_phone_is_turned(open_view: Open) -> None:
    """Check that the canvases of pictures below the screen, which are not painted again at once, do not keep the page
    wide.
    """
    for view in ("attention", "why"):
        page = open_view(view)
        page.set_viewport_size({"width": 390, "height": 844})
        expect(page.locator("nav.rail")).to_have_css("border-right-width", "0px")
        page.locator(".picture").last.scroll_into_view_if_needed()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
        page.set_viewport_size({"width": 1280, "height": 900})
        expect(page.locator("nav.rail")).to_have_css("border-right-width", "1px")


def test_the_list_of_views_has_five_groups_with_names(open_view: Open) -> None:
    page = open_view("server")
    groups = page.get_by_role("navigation", name="Views").get_by_role("list")
    names = ["Start", "Attention", "Words as vectors", "The next word", "The model"]
    assert [group.get_attribute("aria-label") for group in groups.all()] == names
    expect(page.locator(".rail p")).to_have_text(names)
    expect(groups.get_by_role("button")).to_have_count(len(VIEWS))
    assert all(group.get_by_role("button").count() > 1 for group in groups.all())


def test_on_a_phone_the_list_of_views_is_a_line_that_shows_the_open_one(open_view: Open) -> None:
    page = open_view("attention")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("nav.rail")).to_have_css("border-right-width", "0px")
    buttons = page.get_by_role("navigation", name="Views").get_by_role("button").all()
    assert len({box_of(button)["y"] for button in buttons}) == 1
    page.goto(page.url.replace("view=attention", "view=server"))
    expect(page.get_by_role("navigation", name="Views").get_by_role("button", name="Server")).to_be_in_viewport()


def test_light_and_dark_follow_the_system_until_one_is_chosen(open_view: Open) -> None:
    page = open_view("attention")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).not_to_have_css("background-color", light)
    page.get_by_role("button", name="Use light colours").click()
    expect(page.locator("html")).to_have_css("background-color", light)


PAINTING = """async () => {
  const { use } = await import(document.querySelector("script[type=module]").src);
  const { palette } = use("core/theme.js");
  const paint = () => {
    palette();
    setTimeout(paint);
  };
  paint();
}"""
"""A script that reads the colours all the time, as pictures do when they are painted."""


def test_the_systems_colours_are_followed_while_pictures_are_painted(open_view: Open) -> None:
    page = open_view("attention")
    page.evaluate(PAINTING)
    for scheme in ("dark", "light") * 5:
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)


def test_a_page_outlives_its_server(page: Page, server: Server, another: Server) -> None:
    """Replace the server while the page is open: it does not answer, and then one with another model does."""
    show(page, server, "attention", layer=1, head=1, key=0)
    page.route("**/*", lambda route: route.abort("connectionrefused"))
    page.get_by_label("Text", exact=True).fill("The old king")  # the page has no answer about it
    expect(page.locator(".banner")).to_contain_text("does not answer")
    expect(page.locator(".view .problem").first).to_contain_text("The page retries as soon as")
    page.route("**/*", sent_to(another, server.url))  # before the other handler, so that no request gets past both
    expect(page.locator("header .model")).to_contain_text("another")
    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator(".problem")).to_have_count(0)
    settle(page)
    request = {"input": "The old king", "layers": 1, "heads": 1}
    weight = ask(another, "/v1/attention", request)["data"][0]["attention"][0][0]
    expect(page.locator(".readout", has_text=written(max(weight[-1]))).first).to_be_visible()


def test_a_key_is_asked_for_and_kept_in_memory_only(page: Page, guarded: Server) -> None:
    page.goto(guarded.url)
    field = page.get_by_label("API key")
    field.fill("wrong")
    page.get_by_role("button", name="Use it").click()
    expect(page.locator(".key-form")).to_contain_text("wrong")
    field.fill(KEY)
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#view-home h1")).to_be_visible()
    expect(page.locator(".key-form")).to_have_count(0)
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
    assert KEY not in kept
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()


@pytest.mark.parametrize("has_root_path", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_the_page_works_under_a_proxys_path(page: Page, server: Server, another: Server, has_root_path: bool) -> None:
    """Rewrite the address as a proxy does that strips its path: the browser sees /deep/down/, the server /."""
    outer = f"http://proxy.invalid{PROXY_PATH}"
    page.route("**/*", sent_to(another if has_root_path else server, outer))
    page.goto(f"{outer}/#view=attention&layer=1&head=3")
    expect(page.locator("#view-attention h1")).to_be_visible()
    settle(page)
    expect(page.locator(".readout", has_text=re.compile(r"0\.\d")).first).to_be_visible()
