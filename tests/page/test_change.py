"""The drawer "Edit the model": views show the model before and after a change, their difference, and two texts."""

import json
import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import TEXT, Open, ask, percent, settle, softmax, wait_until, written
from tests.page.test_accessibility import are_headings_in_order, serious
from tests.page.test_copied import NUMBER, copied, number_in, output_of, run_python
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

LAYER, HEAD, QUERY, KEY = 2, 3, 7, 6
PLACE = {"layer": LAYER, "head": HEAD, "query": QUERY, "key": KEY}
CHANGED = {"change": "zero_head_l1_h5 scale_mlp_l0_p4_x0.5"}
INTERVENTIONS = [
    {"point": "blocks.1.attn.hook_z", "head": 5, "op": "scale", "value": 0},
    {"point": "mlp_out.0", "positions": 4, "op": "patch"},  # its value is filled in by `interventions`
]
"""The same changes, written otherwise."""
READOUT = ".head-pictures .readout"


@pytest.fixture(scope="module")
def interventions(server: Server) -> list[dict[str, Any]]:
    """Return the changes with the numbers of a trace instead of a factor."""
    body = {"input": TEXT, "points": ["hook_mlp_out"], "layers": 0, "positions": 4, "interventions": INTERVENTIONS[:1]}
    half = np.array(only(ask(server, "/v1/trace", body)["data"][0]["points"])["data"]) / 2
    return [INTERVENTIONS[0], {**INTERVENTIONS[1], "value": half.tolist()}]


def only(found: dict[str, Any]) -> Any:
    (value,) = found.values()
    return value


def entry(server: Server, name: str, *interventions: dict[str, Any], **body: Any) -> Any:
    asked = {"input": TEXT, **body, **({"interventions": list(interventions)} if interventions else {})}
    return ask(server, f"/v1/{name}", asked)["data"][0]


def weights(server: Server, *interventions: dict[str, Any], **body: Any) -> Any:
    """Return the chosen head's pattern, [query, key]."""
    return np.array(entry(server, "attention", *interventions, layers=LAYER, heads=HEAD, **body)["attention"])[0, 0]


def show(page: Page, side: str) -> None:
    page.get_by_role("region", name="Changes").get_by_role("button", name=side, exact=True).click()
    settle(page)


def field(page: Page, label: str) -> Locator:
    """Return the drawer's list to choose from that has this label."""
    return page.locator(".change-form label", has_text=re.compile(f"^{label} ")).locator("select")


def test_a_head_shows_before_after_and_difference_and_copies_them(
    open_view: Open, server: Server, interventions: list[dict[str, Any]]
) -> None:
    page = open_view("attention", **PLACE, **CHANGED)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    before, after = weights(server), weights(server, *interventions)
    expected = {"before": before, "after": after, "difference": after - before}
    assert abs(expected["difference"][QUERY, KEY]) > 1e-3
    for side, truth in expected.items():
        show(page, side)
        expect(page.locator(READOUT).first).to_contain_text(f": {written(truth[QUERY, KEY])}")
        menu = page.get_by_role("button", name="Copy as…").nth(1)
        answer = run_python(copied(page, menu, "Python"))
        found = answer if side == "difference" else answer.attention
        assert np.allclose(found[0, 0], truth, atol=1e-6)
        printed = output_of("bash", "-c", copied(page, menu, "curl")).split("\n")
        found = [np.array(json.loads(line)["data"][0]["attention"])[0, 0] for line in printed if line]
        assert np.allclose(found[-1] - found[0] if side == "difference" else found[0], truth, atol=1e-6)
    expect(page.get_by_role("heading", name=f"Layer {LAYER}, head {HEAD}: after − before")).to_be_visible()


def test_every_view_shows_the_difference_of_two_answers(
    open_view: Open, server: Server, interventions: list[dict[str, Any]]
) -> None:
    """Subtract the API's answers to both requests, and compare with the page and with the Python that it copies."""

    def both(name: str, read: Any, **body: Any) -> Any:
        return read(entry(server, name, *interventions, **body)) - read(entry(server, name, **body))

    def array(name: str) -> Any:
        return lambda found: np.array(found["arrays"][name]["data"], float)

    point = f"blocks.{LAYER}.hook_resid_pre"
    target = entry(server, "next", position=QUERY, num_tokens=1)["temperatures"][0]["tokens"][0]["token_id"]
    logits = [entry(server, "next", *some, position=QUERY, full=True)["arrays"]["logits"]["data"]
              for some in ((), interventions)]  # fmt: skip
    chances = softmax(np.array(logits[1])) - softmax(np.array(logits[0]))
    why = both("explain", array("weights"), layer=LAYER, head=HEAD, query_position=QUERY)
    parts = both("contributions", array("components"), query_positions=QUERY, target=target)
    lens = both("lens", array("target_probabilities"), positions=[*range(9)], target=target)
    stream = both("trace", lambda found: np.array(found["points"][point]["data"]), points=[point])
    heads = both("heads", array("scores"))
    expected = {
        "why": ("tr:has-text('weight') >> td >> nth=2", why[KEY], 0, "weights", why),
        "contributions": ("#logit-sum", parts.sum(), 0, "components", parts),
        "lens": (".lens-said .readout", lens[-1, QUERY], 0, "target_probabilities", lens),
        "next": (".next-difference tbody tr >> td >> nth=2", chances[np.abs(chances).argmax()], 0, "logits",
                 np.array(logits[1]) - np.array(logits[0])),
        "heads": (".heads-found .readout", heads[LAYER, HEAD, 0], 0, "scores", heads),
        "flow": (".statistics tbody tr", np.linalg.norm(stream[QUERY]), 1, point, stream),
    }  # fmt: skip
    end = {"lens": rf"; \S+ {NUMBER}$", "heads": rf"previous token {NUMBER}"}
    for view, (where, truth, menu, name, numbers) in expected.items():
        state = {"change_show": "difference", "heads_on": "text", "flow_open": "hook_resid_pre", "lens_state": -1}
        page = open_view(view, **PLACE, **CHANGED, **state)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        two_digits = view in {"why", "next"}  # percentages
        shown = number_in(page, where, end.get(view, NUMBER))
        assert shown == pytest.approx(truth, rel=6e-2 if two_digits else 6e-3), view
        found = run_python(copied(page, page.get_by_role("button", name="Copy as…").nth(menu), "Python"))
        found = np.squeeze(np.array(found[name], float))
        assert np.allclose(found, np.squeeze(numbers), atol=1e-6), view
        expect(page.locator(".problem")).to_have_count(0)


def test_a_text_is_steered_along_the_difference_of_two_others(open_view: Open, server: Server) -> None:
    ends = [
        np.array(only(entry(server, "trace", input=text, points=["resid_post.3"], positions=-1)["points"])["data"][0])
        for text in ("a king", "a queen")
    ]
    vector = (2.5 * (ends[0] - ends[1])).astype(np.float32)
    added = {"point": "resid_post.3", "op": "add", "value": vector.tolist()}
    best = entry(server, "next", added, num_tokens=1)["temperatures"][0]["tokens"][0]
    plain = entry(server, "next", num_tokens=1)["temperatures"][0]["tokens"][0]
    assert best["probability"] != plain["probability"]
    page = open_view("next", change="steer_stream_l3_x2.5", change_source="a king", change_away="a queen")
    expect(page.locator(".next-sentence")).to_contain_text(f"with {percent(best['probability'])}")
    expect(page.locator(".likeliest tbody tr").first).to_contain_text(best["token"].strip())


def test_numbers_are_patched_from_a_second_text(open_view: Open, server: Server) -> None:
    second = TEXT.replace("girl", "boy")
    values = only(entry(server, "trace", input=second, points=["resid_post.1"], positions=8)["points"])["data"]
    patched = {"point": "resid_post.1", "positions": 8, "op": "patch", "value": values}
    truth = weights(server, patched)
    page = open_view("attention", **{**PLACE, "query": 8}, change="patch_stream_l1_p8", change_source=second)
    expect(page.locator(READOUT).first).to_contain_text(f": {written(truth[8, KEY])}")


def test_attention_has_a_temperature_of_its_own(open_view: Open, server: Server) -> None:
    """Compute the softmax of the scores over the temperature; at 0 the largest gets all weight."""
    row = entry(server, "attention", kind="scores", layers=LAYER, heads=HEAD)["attention"][0][0][QUERY]
    scores = np.array(row[: QUERY + 1], float)
    for temperature, truth in ((3, softmax(scores / 3)), (0, (scores == scores.max()).astype(float))):
        best = int(truth.argmax())
        place = {**PLACE, "key": best}
        page = open_view("attention", **place, change=f"temperature_softmax_l{LAYER}_h{HEAD}_x{temperature}")
        expect(page.locator(READOUT).first).to_contain_text(f": {written(truth[best])} ·")


def test_two_texts_compare_like_two_models(open_view: Open, server: Server) -> None:
    second = TEXT.replace("girl", "boy")
    page = open_view("attention", **{**PLACE, "query": 8}, change_text=second, change_show="difference")
    truth = weights(server, input=second) - weights(server)
    expect(page.locator(READOUT).first).to_contain_text(f": {written(truth[8, KEY])}")
    expect(page.locator(READOUT).first).to_contain_text("girl|boy")
    show(page, "text B")
    expect(page.get_by_label("Text", exact=True)).to_have_value(second)
    expect(page.locator(READOUT).first).to_contain_text(f": {written(weights(server, input=second)[8, KEY])}")
    page.get_by_label("Text", exact=True).fill(second + " and a boy")
    show(page, "difference")
    expect(page.locator(".problem").first).to_contain_text("texts have 9 and 12 tokens and cannot be subtracted")
    expect(page.locator(".wall .problem")).to_contain_text("cannot be subtracted")
    expect(page.locator(".wall .colour-scale")).to_have_count(0)
    expect(page.locator(".wall-name")).to_have_text(f"layer {LAYER}, head {HEAD} is open")
    show(page, "text A")
    expect(page.get_by_label("Text", exact=True)).to_have_value(TEXT)


def test_from_the_tours_sentence_a_head_is_zeroed_in_two_clicks(open_view: Open, server: Server) -> None:
    page = open_view("attention")
    page.get_by_role("button", name="Tour").click()
    for _ in range(4):
        page.get_by_role("button", name="Next", exact=True).click()
    expect(page.locator(".lesson h2")).to_have_text("Every head looks for something else")
    expect(page.locator(".lesson")).to_contain_text("of its attention to")
    said = re.search(r"head (\d+) of layer (\d+)", page.locator(".lesson").inner_text())
    assert said
    head, layer = said[1], said[2]
    expect(page.locator("#layer")).to_have_value(layer)
    expect(page.locator("#head")).to_have_value(head)
    page.get_by_role("button", name="Change this head…").click()
    page.get_by_role("button", name="Zero this head").click()
    page.wait_for_url(f"**change=zero_head_l{layer}_h{head}**")
    expect(page.get_by_role("button", name="Restore this head")).to_be_visible()
    expect(page.get_by_role("region", name="Changes")).to_contain_text(f"head {head} of layer {layer}: zero")


def test_the_address_restores_the_changes_and_what_it_cannot_say_is_left_out(
    open_view: Open, server: Server, interventions: list[dict[str, Any]]
) -> None:
    page = open_view("attention", **PLACE, change_open=1)
    drawer = page.get_by_role("complementary", name="Edit the model")
    field(page, "in layer").select_option("1")
    field(page, "head").select_option("5")
    drawer.get_by_role("button", name="Zero this head").click()
    field(page, "Change").select_option("an MLP")
    field(page, "in layer").select_option("0")
    field(page, "at").select_option("4")
    field(page, "how").select_option("multiply by")
    drawer.get_by_role("button", name="Add this change").click()
    page.wait_for_url("**change=zero_head_l1_h5+scale_mlp_l0_p4_x0.5**")
    address = page.url.replace("layer=0", f"layer={LAYER}").replace("head=5", f"head={HEAD}")
    page.goto("about:blank")
    page.goto(address)
    settle(page)
    truth = weights(server, *interventions)
    expect(page.locator(READOUT).first).to_contain_text(f": {written(truth[QUERY, KEY])}")
    page = open_view("attention", **PLACE, change="zero_head_l1_h5 burn_head_l1 scale_mlp_l0 patch_mlp_l1_p2")
    said = page.get_by_role("region", name="Changes")
    for wrong in (
        "burn_head_l1” in the address is not a known change",
        "scale_mlp_l0” in the",
        "patch_mlp_l1_p2” in the address needs",
    ):
        expect(said).to_contain_text(wrong)
    truth = weights(server, INTERVENTIONS[0])
    expect(page.locator(READOUT).first).to_contain_text(f": {written(truth[QUERY, KEY])}")
    page = open_view(
        "lens", change=" ".join(f"scale_head_l{i % 6}_h{i % 8}_p{i % 9}_x1" for i in range(70)), change_open=1
    )
    expect(page.get_by_role("region", name="Changes")).to_contain_text("A request accepts 64 changes")
    expect(page.locator(".change-list li")).to_have_count(64)
    expect(page.locator(".problem")).to_have_count(0)


def test_what_the_server_refuses_stands_at_the_change(open_view: Open) -> None:
    page = open_view("attention", **PLACE, change="zero_head_l1_h5 zero_head_l99_h0", change_open=1)
    refused = page.locator(".change-list li").nth(1)
    expect(refused.get_by_role("alert")).to_contain_text("there is no layer 99; accepted are 0 to 5")
    refused.get_by_role("button", name="Remove: head 0 of layer 99: zero").click()
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)


def test_the_keyboard_alone_opens_changes_and_closes(open_view: Open) -> None:
    page = open_view("attention", **PLACE)
    page.locator("#change").focus()
    page.keyboard.press("Enter")
    drawer = page.get_by_role("complementary", name="Edit the model")
    expect(drawer).to_be_focused()
    page.keyboard.press("Tab")
    expect(drawer.get_by_role("button", name="Close the drawer")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**change=zero_head_l{LAYER}_h{HEAD}**")
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    expect(page.locator("#change")).to_be_focused()


def shows(card: Locator, end: str) -> bool:
    """Return whether the text in a card ends so."""
    return card.locator(".prose").inner_text().replace("\n", " ").endswith(end)


def test_the_text_goes_on_with_and_without_the_change_side_by_side(open_view: Open, server: Server) -> None:
    page = open_view("chat", chat_mode="text", change="zero_mlp_l1", write_temperature=0, write_max_tokens=6)
    page.locator("#write").click()
    expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    changed = [{"point": "blocks.1.hook_mlp_out", "op": "scale", "value": 0}]
    texts = []
    for name, more in (("Before", {}), ("After", {"interventions": changed})):
        body = {"prompt": TEXT, "max_tokens": 6, "temperature": 0, **more}
        texts.append(ask(server, "/v1/completions", body)["choices"][0]["text"])
        card = page.locator("section.side", has=page.get_by_role("heading", name=name))
        wait_until(page, partial(shows, card, texts[-1].strip()))
    assert texts[0] != texts[1]
    page.evaluate("location.hash = location.hash.replace('zero_mlp_l1', '')")
    with page.expect_request(lambda each: "interventions" in (each.post_data or "")) as request:
        page.get_by_role("button", name="Continue", exact=True).click()
    own = [{"point": "hook_mlp_out", "layer": 1, "op": "zero"}]
    assert request.value.post_data_json["interventions"] == own, "a text keeps the changes that wrote it"


def test_the_drawer_is_missing_where_nothing_would_change_and_says_so(open_view: Open) -> None:
    page = open_view("weights", **CHANGED, change_open=1)
    expect(page.get_by_role("note")).to_contain_text("shows the unchanged model")
    expect(page.locator("#change, .change")).to_have_count(0)


def test_the_drawer_is_accessible_and_fits_a_phone(open_page: Page, server: Server) -> None:
    page = open_page
    page.emulate_media(color_scheme="dark")
    state = "change=steer_stream_l3_x2+zero_head_l9_h1&change_source=a+king&change_text=The+king&change_open=1"
    page.goto(f"{server.url}/#view=attention&text=The+queen&{state}")
    expect(page.get_by_role("complementary", name="Edit the model")).to_be_visible()
    settle(page)
    assert not serious(page, runOnly=["color-contrast"])
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert not serious(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    sizes = page.locator(".change :is(button, select, input, textarea), .change-bar button").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect()).map(({width, height}) => Math.min(width, height))"
    )
    assert min(size for size in sizes if not math.isnan(size)) >= 24
    assert are_headings_in_order(page)
