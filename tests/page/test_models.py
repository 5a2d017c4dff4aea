"""The page of a server with several models: the choice in its header, in its address and in its requests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests.page.chats import write
from tests.page.conftest import TEXT, ask, box_of, model_folder, requests_of, settle, show, wait_until, written
from tests.page.test_accessibility import nameless, serious
from tests.page.test_copied import copied
from tests.page.test_phone import SMALL, SMALLEST
from tests.page.test_taken_away import Opened, is_of_next_layer, opened, save
from tests.support.processes import Server, serve
from tests.support.shared import once

__all__ = ["opened"]


@pytest.fixture(scope="module")
def models() -> Iterator[Server]:
    """A server of a decoder, an encoder, and a model with cut weights; tests load and unload the encoder."""
    with serve(["--model", "fables=fables", "--models-dir", str(once("models of the page", make_folder))]) as server:
        yield server


def make_folder(folder: Path) -> None:
    for name in ("broken", "reader"):
        (folder / name).mkdir()
        for path in model_folder("bert").iterdir():
            content = path.read_bytes()
            is_cut = name == "broken" and path.suffix == ".safetensors"
            (folder / name / path.name).write_bytes(content[:1000] if is_cut else content)


def unload(server: Server) -> None:
    ask(server, "/models/unload", {"model": "reader"})


def combobox(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Model", exact=True)


def options_of(page: Page) -> Locator:
    return page.locator("#models").get_by_role("option", include_hidden=True)


def choose(page: Page, name: str) -> None:
    combobox(page).click()
    options_of(page).filter(has_text=re.compile(f"^{name}\\b")).click()


def weight(server: Server, model: str) -> str:
    """Return the weight of token 7 for token 6 in head 2 of layer 1, as the page writes it."""
    body = {"model": model, "input": TEXT, "layers": 1, "heads": 2, "query_positions": 7}
    found = ask(server, "/v1/attention", body)["data"][0]["attention"][0][0][0][6]
    dtype = ask(server, f"/v1/capabilities?model={model}")["compute_dtype"]
    return written(found, 3 if dtype == "bfloat16" else 4)


PLACE = {"layer": 1, "head": 2, "query": 7, "key": 6}


def is_shown(page: Page, server: Server, model: str) -> None:
    expect(page.locator(".readout", has_text=f": {weight(server, model)}").first).to_be_visible()


def test_a_model_is_chosen_by_keys_and_shown_when_it_is_loaded(page: Page, models: Server) -> None:
    unload(models)
    with page.expect_request(is_of_next_layer):  # the last one about fables
        show(page, models, "attention", **PLACE)
    expect(combobox(page)).to_have_text("fables")
    is_shown(page, models, "fables")
    combobox(page).press("ArrowDown")
    options = options_of(page)
    expect(options).to_have_text(["fables chat loaded", re.compile("^broken "), re.compile("^reader .*not loaded$")])
    combobox(page).press("End")
    expect(combobox(page)).to_have_attribute("aria-activedescendant", str(options.last.get_attribute("id")))
    combobox(page).press("b")
    expect(combobox(page)).to_have_attribute("aria-activedescendant", str(options.nth(1).get_attribute("id")))
    combobox(page).press("Escape")
    expect(options.first).to_be_hidden()
    expect(combobox(page)).to_have_text("fables")
    place = box_of(page.locator("h1"))
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        waiting.append(route)

    page.route("**/v1/capabilities?model=reader", hold)
    with requests_of(page) as requests:
        for key in ("Enter", "End", "Enter"):
            combobox(page).press(key)
        status = page.locator(".model-note").get_by_role("status")
        expect(status).to_have_text(re.compile(r"Loading the\s+model reader\. The page shows fables until then\."))
        expect(combobox(page)).to_have_text("reader")
        is_shown(page, models, "fables")
        assert box_of(page.locator("h1")) == place
        wait_until(page, lambda: len(waiting) > 0)
        waiting[0].continue_()
        expect(page.locator("header .model")).to_contain_text("Bert")
        settle(page)
    expect(status).to_have_text("")
    is_shown(page, models, "reader")
    expect(combobox(page)).to_be_focused()
    sent = [json.loads(each.post_data or "") for each in requests if each.method == "POST"]
    assert sent
    assert {body["model"] for body in sent} == {"reader"}
    combobox(page).press(" ")
    expect(options.last).to_have_text(re.compile("^reader embedding loaded$"))
    expect(options.last).to_have_attribute("aria-selected", "true")


def test_the_address_names_the_model_and_the_browsers_buttons_return_to_the_previous_one(
    page: Page, models: Server
) -> None:
    show(page, models, "attention", model="reader", **PLACE)
    is_shown(page, models, "reader")
    choose(page, "fables")
    page.wait_for_url("**model=fables**")
    is_shown(page, models, "fables")
    page.go_back()
    expect(combobox(page)).to_have_text("reader")
    is_shown(page, models, "reader")
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    expect(page.locator(".lack")).to_contain_text("writes no text")
    page.get_by_role("link", name="Lightwell").click()
    page.wait_for_url("**#view=home&model=reader**")
    expect(combobox(page)).to_have_text("reader")


def test_an_unknown_model_is_named_and_the_first_one_is_shown(page: Page, models: Server) -> None:
    show(page, models, "attention", model="<b>nobody</b>", **PLACE)
    alert = page.locator(".model-note").get_by_role("alert")
    expect(alert).to_contain_text("This server has no model “<b>nobody</b>”, which the address names.")
    page.wait_for_url("**model=fables**")
    is_shown(page, models, "fables")
    alert.get_by_role("button", name="Close the message").click()
    expect(alert).to_have_count(0)


def test_a_model_that_cannot_be_loaded_leaves_the_previous_one(page: Page, models: Server) -> None:
    show(page, models, "attention", **PLACE)
    place = box_of(page.locator("h1"))
    choose(page, "broken")
    alert = page.locator(".model-note").get_by_role("alert")
    expect(alert).to_contain_text("The model 'broken' cannot be loaded: ")
    expect(alert).to_contain_text("The page still shows fables.")
    expect(combobox(page)).to_have_text("fables")
    page.wait_for_url("**model=fables**")
    expect(page.locator(".banner")).to_have_count(0)
    assert box_of(page.locator("h1")) == place
    page.locator("#head").select_option("3")
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)
    choose(page, "broken")
    expect(options_of(page).nth(1)).to_have_text(re.compile("^broken embedding failed$"))


def test_a_link_to_a_model_that_cannot_be_loaded_offers_the_others(page: Page, models: Server) -> None:
    page.goto(f"{models.url}/#view=attention&model=broken&text={TEXT}")
    expect(page.locator("main .problem")).to_contain_text("The model 'broken' cannot be loaded: ")
    choose(page, "fables")
    expect(page.locator("#view-attention h1")).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)


def test_requests_of_the_previous_model_end(page: Page, models: Server) -> None:
    ask(models, "/v1/capabilities?model=reader")  # which loads it
    show(page, models, "why", **PLACE)

    def is_late(request: Request) -> bool:
        return '"fables"' in (request.post_data or "") and '"head":5' in (request.post_data or "")

    page.route("**/v1/explain", lambda route: None if is_late(route.request) else route.continue_())
    with page.expect_request(is_late):
        page.locator("#head").select_option("5")
    with page.expect_event("requestfailed", is_late):
        choose(page, "reader")
    expect(page.locator("header .model")).to_contain_text("Bert")
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)


def test_a_text_is_open_again_with_the_model_that_wrote_it(page: Page, models: Server) -> None:
    show(page, models, "chat", chat_mode="text", write_max_tokens=4)
    write(page)
    text = page.locator(".prose").inner_text()
    choose(page, "reader")
    expect(page.locator(".lack")).to_contain_text("writes no text")
    choose(page, "fables")
    expect(page.locator(".prose")).to_have_text(text)


def test_a_page_of_one_model_has_no_choice_and_asks_for_no_list(page: Page, server: Server) -> None:
    with requests_of(page) as requests:
        show(page, server, "attention")
    expect(page.locator("header .model b")).to_have_text("fables")
    expect(combobox(page)).to_have_count(0)
    assert not [each.url for each in requests if "models" in each.url or "model=" in each.url]
    assert not [each.url for each in requests if '"model"' in (each.post_data or "")]
    show(page, server, "attention", model="nobody")
    expect(page.locator(".model-note").get_by_role("alert")).to_contain_text("The page shows fables.")
    expect(combobox(page)).to_have_count(0)


def test_code_files_and_frames_name_their_model(page: Page, models: Server, opened: Opened, tmp_path: Path) -> None:
    show(page, models, "attention", model="reader", **PLACE)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    menu = page.get_by_role("button", name="Copy as…").first
    assert '"model":"reader"' in copied(page, menu, "curl")
    assert 'model="reader"' in copied(page, menu, "Python")
    choose(page, "fables")
    page.wait_for_url("**model=fables**")
    settle(page)
    choose(page, "reader")
    page.wait_for_url("**model=reader**")
    settle(page)
    file = save(page, tmp_path)
    assert "fables" not in file.read_text(encoding="utf-8").split('id="saved">')[1].split("</script>")[0]
    with opened(file) as alone:
        expect(alone.locator("header.top .model")).to_have_text("reader")
        expect(combobox(alone)).to_have_count(0)
        expect(alone.locator(".problem")).to_have_count(0)
        is_shown(alone, models, "reader")
    page.goto(f"{models.url}/?embed=1#view=attention&model=reader&text={TEXT}&layer=1&head=2&query=7&key=6")
    is_shown(page, models, "reader")
    expect(combobox(page)).to_have_count(0)


def test_the_server_view_shows_the_states_of_all_models(page: Page, models: Server) -> None:
    ask(models, "/v1/capabilities?model=reader")
    show(page, models, "server")
    rows = page.get_by_role("table", name="Models").get_by_role("row")
    expect(rows.nth(1)).to_have_text(re.compile("^fables *chat *loaded *512 tokens$"))
    expect(rows.nth(3)).to_have_text(re.compile("^reader *embedding *loaded *[0-9]+ tokens$"))
    unload(models)
    expect(rows.nth(3)).to_have_text(re.compile("^reader *embedding *not loaded *$"))


def test_the_list_has_no_barrier_and_fits_a_phone(open_page: Page, models: Server) -> None:
    page = open_page
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, models, "attention", model="nobody")
    combobox(page).click()
    expect(options_of(page).last).to_be_visible()
    panel = box_of(page.get_by_role("listbox", name="Model"))
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not page.evaluate(SMALL, SMALLEST)
    assert not serious(page)
    assert not nameless(page)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert not serious(page)
