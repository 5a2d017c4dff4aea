"""Two models, or a model and its LoRA adapter, next to each other: the numbers of each, and the largest differences."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.page.chats import Scripted, answers, ended, open_chat, send, settings, stream_of
from tests.page.conftest import (
    TEXT,
    ask,
    box_of,
    model_folder,
    percent,
    requests_of,
    settle,
    show,
    wait_until,
    written,
)
from tests.page.test_accessibility import are_headings_in_order, nameless, serious
from tests.page.test_copied import copied
from tests.support.processes import Server
from tests.support.shared import once, shared_server

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # in peft

PLACE = {"layer": 1, "head": 2, "query": 7, "key": 6}


@pytest.fixture(scope="module")
def tuned() -> Server:
    """A small llama with a LoRA adapter."""
    from tests.tiny.adapters import make_adapter  # imports peft, which other tests of the page do not need

    folder = model_folder("llama")
    adapter = once(("adapter of the page",), lambda path: make_adapter(folder, path, 7))
    return shared_server(str(folder), "--served-model-name", "base", "--lora", f"tuned={adapter}", "--dtype", "float32")


@pytest.fixture(scope="module")
def unlike() -> Server:
    """The default model of the tests under two names, and a small llama with other layers and another vocabulary."""
    models = ("fables=fables", "twin=fables", f"small={model_folder('llama')}")
    return shared_server(*(part for model in models for part in ("--model", model)))


def entry(server: Server, route: str, model: str, **body: Any) -> Any:
    return ask(server, route, {"model": model, "input": TEXT, **body})["data"][0]


def side(page: Page, name: str) -> Locator:
    return page.locator(".both").get_by_role("region", name=name, exact=True)


def weight(server: Server, model: str) -> float:
    found = entry(server, "/v1/attention", model, layers=1, heads=2)
    return float(found["attention"][0][0][7][6])


def choose(page: Page, name: str) -> None:
    page.get_by_label("Compare with").select_option(name)
    settle(page)


def test_a_model_and_its_adapter_are_shown_side_by_side_and_subtracted(page: Page, tuned: Server) -> None:
    show(page, tuned, "attention", **PLACE)
    choose(page, "tuned")
    weights = {name: weight(tuned, name) for name in ("base", "tuned")}
    for name, value in weights.items():
        expect(side(page, name).locator(".head-pictures .readout").first).to_contain_text(f": {written(value)}")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for name in weights:
        menu = side(page, name).get_by_role("button", name="Copy as…").nth(1)
        assert f'"model":"{name}"' in copied(page, menu, "curl")
    page.get_by_role("button", name="difference").click()
    settle(page)
    readout = page.locator(".head-pictures .readout").first
    expect(readout).to_contain_text(f": {written(weights['tuned'] - weights['base'])}")
    expect(page.get_by_role("heading", name="Layer 1, head 2: tuned − base")).to_be_visible()
    page.get_by_role("button", name="tuned", exact=True).click()
    settle(page)
    expect(readout).to_contain_text(f": {written(weights['tuned'])}")
    choose(page, "no model")
    expect(readout).to_contain_text(f": {written(weights['base'])}")


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / (np.linalg.norm(one) + np.linalg.norm(other)))


def test_the_components_that_differ_most_come_first_and_open(page: Page, tuned: Server) -> None:
    asked = {"points": ["attn.hook_z", "hook_mlp_out"], "layers": "all", "positions": 7}
    traces = [entry(tuned, "/v1/trace", name, **asked)["points"] for name in ("base", "tuned")]
    differences: dict[str, float] = {}
    for point in traces[0]:
        one, other = (np.array(trace[point]["data"], np.float32)[0] for trace in traces)
        layer = traces[0][point]["layer"]
        if point.endswith("mlp_out"):
            differences[f"layer {layer} MLP"] = apart(one, other)
        else:
            differences |= {f"layer {layer} head {head}": apart(one[head], other[head]) for head in range(len(one))}
    first = sorted(differences, key=lambda name: -differences[name])[:8]
    show(page, tuned, "next", change_model="tuned", change_show="both", query=7)
    listed = page.get_by_role("group", name="Largest differences").get_by_role("button")
    expect(listed).to_have_text([f"{name} {written(differences[name], 2)}" for name in first])
    place = next(i for i, name in enumerate(first) if "head" in name)
    listed.nth(place).click()
    layer, head = re.findall(r"\d+", first[place])
    expect(page).to_have_url(re.compile("view=next"))
    show(page, tuned, "attention", change_model="tuned", change_show="both", layer=int(layer), head=int(head))
    expect(side(page, "tuned").get_by_role("heading", name=f"Layer {layer}, head {head}")).to_be_visible()


def test_the_next_tokens_of_two_unlike_models_are_those_of_each(page: Page, unlike: Server) -> None:
    show(page, unlike, "next", model="fables", change_model="small", change_show="both")
    for name in ("fables", "small"):
        best = entry(unlike, "/v1/next", name)["temperatures"][0]["tokens"][0]
        expect(side(page, name).locator(".next-sentence")).to_contain_text(f"with {percent(best['probability'])}")
    said = "The models have different layers, heads or tokens"
    expect(page.locator(".lack")).to_contain_text(said)
    page.get_by_role("button", name="difference").click()
    expect(page.locator("main .lack")).to_contain_text(said)
    expect(page.locator(".next-difference")).to_have_count(0)
    page.get_by_role("button", name="Lens").click()
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)
    expect(page.get_by_label("Compare with")).to_have_count(0)


def test_another_second_model_is_not_shown_before_its_sizes_are_known(page: Page, unlike: Server) -> None:
    show(page, unlike, "next", model="fables", change_model="twin", change_show="both")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/v1/capabilities?model=small", hold)
    page.get_by_label("Compare with").select_option("small")
    wait_until(page, lambda: bool(held))
    expect(page.locator(".both, .next-sentence")).to_have_count(0)
    expect(page.locator("main .progress.active")).to_have_count(1)
    held[0].continue_()
    settle(page)
    best = entry(unlike, "/v1/next", "small")["temperatures"][0]["tokens"][0]
    expect(side(page, "small").locator(".next-sentence")).to_contain_text(f"with {percent(best['probability'])}")


def test_both_models_answer_in_a_chat_next_to_each_other(page: Page, unlike: Server) -> None:
    model = Scripted(page, *map(stream_of, ("One.", "Two.", "Three.", "Four.", "Five.", "Six.", "Seven.")))
    open_chat(page, unlike, model="fables", change_model="twin")
    send(page, "Count.")
    sides = answers(page).last.locator(".side")
    expect(sides).to_have_count(2)
    for i, (name, text) in enumerate((("fables", "One."), ("twin", "Two."))):
        expect(sides.nth(i).get_by_role("heading")).to_have_text(name)
        expect(sides.nth(i)).to_contain_text(text)
    left, right = (box_of(sides.nth(i)) for i in (0, 1))
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == right["y"]
    assert [sides.nth(i).get_attribute("data-turn") for i in (0, 1)] == ["2", "3"]  # words are found by it
    expect(page.locator("article[data-turn='3']")).to_have_count(0)
    send(page, "Go on.")
    expect(answers(page).last.locator(".side")).to_contain_text(["Three.", "Four."])
    assert [body["model"] for body in model.bodies] == ["fables", "twin", "fables", "twin"]
    for body in model.bodies[2:]:  # the conversation follows the last answer
        assert [each["content"] for each in body["messages"]] == ["Count.", "Two.", "Go on."]
    page.locator(".turn.of-user").nth(1).get_by_role("button", name="Edit").click()
    page.get_by_label("The turn's text").fill("Go back.")
    page.get_by_label("The turn's text").press("Enter")
    ended(page)
    expect(answers(page).last.locator(".side")).to_contain_text(["Five.", "Six."])
    assert [body["model"] for body in model.bodies[4:]] == ["fables", "twin"]
    choose(page, "no model")
    send(page, "And then?")
    assert [body["model"] for body in model.bodies[6:]] == ["fables"]
    expect(answers(page).last.locator(".side")).to_have_count(0)


def test_both_models_go_on_with_their_answers(page: Page, unlike: Server) -> None:
    open_chat(page, unlike, model="fables", change_model="twin")
    settings(page, Most_tokens="3", Temperature="0")
    send(page, "Count.")
    texts = answers(page).last.locator(".side .markdown")
    expect(texts).to_have_count(2)
    ended(page)  # between the two answers nothing is written
    before = texts.all_inner_texts()
    with requests_of(page) as sent:

        def asked() -> list[str]:
            each = [request for request in sent if request.url.endswith("/v1/completions")]
            return [(request.post_data_json or {})["model"] for request in each]

        answers(page).last.get_by_role("button", name="Continue").last.click()
        wait_until(page, lambda: len(asked()) == 2)
        ended(page)
    assert asked() == ["fables", "twin"]
    for old, new in zip(before, texts.all_inner_texts(), strict=True):
        assert new.startswith(old)
        assert len(new) > len(old)


def test_the_texts_of_a_comparison_are_shown_side_by_side(page: Page, server: Server) -> None:
    second = TEXT + " and a boy"
    show(page, server, "attention", **PLACE, change_text=second, change_show="difference")
    problem = page.locator(".problem:visible")
    expect(problem).to_contain_text(
        "The texts have 9 and 12 tokens and cannot be subtracted. Show A and B side by side."
    )
    page.get_by_role("button", name="side by side").click()
    settle(page)
    expect(problem).to_have_count(0)
    for name, text in (("text A", TEXT), ("text B", second)):
        body = {"input": text, "layers": 1, "heads": 2}
        value = ask(server, "/v1/attention", body)["data"][0]["attention"][0][0][7][6]
        expect(side(page, name).locator(".head-pictures .readout").first).to_contain_text(f": {written(value)}")
    show(page, server, "next", change_text=second, change_show="both")
    button = side(page, "text B").locator(".likeliest .token").first
    longer = second + button.inner_text().replace("·", " ")
    button.click()
    wait_until(page, lambda: parse_qs(urlsplit(page.url).fragment).get("change_text") == [longer])
    expect(page.get_by_label("Text", exact=True)).to_have_value(TEXT)


def test_two_sides_have_no_barrier_and_fit_a_phone(open_page: Page, tuned: Server) -> None:
    page = open_page
    for width, scheme in ((1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 844})
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        show(page, tuned, "attention", change_model="tuned", change_show="both", **PLACE)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not serious(page)
        assert not nameless(page)
        assert are_headings_in_order(page)
