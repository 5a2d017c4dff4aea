"""Patching: the grid equals patched passes of transformers, words are aligned and moved, and work ends in time."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests import tiny
from tests.page.conftest import (
    Open,
    ask,
    family_folder,
    family_server,
    percent,
    requests_of,
    saved,
    settle,
    show,
    wait_until,
)
from tests.page.test_copied import copied, run_python
from tests.support.processes import Server

A, B = "The old king sat on the throne", "The young and clever queen sat on the throne"
POINTS = {"stream": "hook_resid_post", "attention": "hook_attn_out", "mlp": "hook_mlp_out", "head": "attn.hook_z"}


@pytest.fixture(scope="module")
def gpt2() -> Server:
    return family_server("gpt2")


def ids_of(server: Server, text: str) -> list[int]:
    ids: list[int] = ask(server, "/tokenize", {"prompt": text})["tokens"]
    return ids


def aligned(a: list[int], b: list[int]) -> list[tuple[int | None, int | None]]:
    """Return the pairs of positions, None without a counterpart: the beginning, the middle from its end, the end."""
    first = next(i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other)
    width = max(len(a), len(b))
    ends = [[i - width + len(ids) for i in range(first, width)] for ids in (a, b)]
    late = [tuple(i if i >= first else None for i in pair) for pair in zip(*ends, strict=True)]
    return [*((i, i) for i in range(first)), *((one, other) for one, other in late)]


def word(page: Page, text: int, position: int) -> Locator:
    return page.locator(f'.patching-words [data-at="{text} {position}"]')


def grid_of(page: Page) -> np.ndarray:
    """Return the numbers of the whole grid, [layer, column], from the file that the page saves."""
    settle(page)
    numbers: np.ndarray = np.load(saved(page.locator(".patching .columns > section").nth(1), "results (npy)"))
    return numbers


class Network:
    """A GPT-2 of transformers; hooks of torch read and replace its vectors."""

    def __init__(self, folder: Path) -> None:
        self.network = tiny.theirs(folder, torch.float32)
        self.blocks = self.network.transformer.h

    def run(self, ids: list[int], replace: Any = None) -> tuple[torch.Tensor, dict[tuple[str, int], torch.Tensor]]:
        """Return the last logits, and vectors by name and layer, [position, width]; `replace(name, layer, vectors)` may
        change these in place.
        """
        seen: dict[tuple[str, int], torch.Tensor] = {}
        hooks = []

        def note(name: str, layer: int, vectors: torch.Tensor) -> None:
            if replace is not None:
                replace(name, layer, vectors[0])
            seen[name, layer] = vectors[0].clone()

        def after(name: str, layer: int) -> Any:
            return lambda _, __, out: note(name, layer, out[0] if isinstance(out, tuple) else out)

        def before(name: str, layer: int) -> Any:
            return lambda _, given: note(name, layer, given[0])

        for layer, block in enumerate(self.blocks):
            hooks += [block.register_forward_hook(after("stream", layer)),
                      block.attn.register_forward_hook(after("attention", layer)),
                      block.mlp.register_forward_hook(after("mlp", layer)),
                      block.attn.c_proj.register_forward_pre_hook(before("head", layer))]  # fmt: skip
        with torch.no_grad():
            logits = self.network(torch.tensor([ids])).logits[0, -1]
        for hook in hooks:
            hook.remove()
        return logits, seen


@pytest.mark.parametrize("what", POINTS)
def test_the_grid_equals_patched_passes_of_transformers(page: Page, gpt2: Server, what: str) -> None:
    """Replace one vector at a time by a hook, as TransformerLens's activation patching does, and scale the difference
    of the two words' logits: 0 is text B, 1 is text A.
    """
    network, ids = Network(family_folder("gpt2")), [ids_of(gpt2, text) for text in (A, B)]
    (of_a, taken), (of_b, _) = network.run(ids[0]), network.run(ids[1])
    rises = of_a.softmax(-1) - of_b.softmax(-1)
    rise, fall = int(rises.argmax()), int(rises.argmin())

    def share(logits: torch.Tensor) -> float:
        apart = [float(row[rise] - row[fall]) for row in (logits, of_b, of_a)]
        return (apart[0] - apart[1]) / (apart[2] - apart[1])

    columns = aligned(*ids)
    first = next(
        i for i, (one, other) in enumerate(columns) if one is None or other is None or ids[0][one] != ids[1][other]
    )
    pairs = [(one, other) for one, other in columns[first:] if one is not None and other is not None]
    numbers = network.network.config.n_head
    size = network.network.config.n_embd // numbers

    def patched(layer: int, moved: list[tuple[int, int]], part: slice) -> float:
        def replace(name: str, at: int, vectors: torch.Tensor) -> None:
            if (name, at) == (what, layer):
                for source, target in moved:
                    vectors[target, part] = taken[what, layer][source, part]

        return share(network.run(ids[1], replace)[0])

    every = slice(None)
    truth = [
        [patched(layer, pairs, slice(head * size, (head + 1) * size)) for head in range(numbers)] if what == "head"
        else [patched(layer, [pair], every) for pair in pairs]
        for layer in range(len(network.blocks))
    ]  # fmt: skip
    show(page, gpt2, "patching", patching_a=A, patching_b=B, patching_what=what)
    assert np.allclose(grid_of(page), truth, atol=2e-4)
    assert np.abs(np.array(truth)).max() > 0.01


def test_texts_of_any_lengths_are_aligned_by_their_difference(page: Page, gpt2: Server) -> None:
    ids = [ids_of(gpt2, text) for text in (A, B)]
    assert len(ids[0]) != len(ids[1])
    show(page, gpt2, "patching", patching_a=A, patching_b=B)
    columns = page.locator(".patching-words > span:not([aria-hidden])")
    drawn = columns.evaluate_all(
        "all => all.map((one) => [...one.querySelectorAll('[data-at]')].map((word) => word.dataset.at))"
    )
    expected = aligned(*ids)
    assert drawn == [[f"{text} {at}" for text, at in enumerate(pair) if at is not None] for pair in expected]
    is_same = columns.evaluate_all("all => all.map((one) => one.querySelector('i').classList.contains('same'))")
    assert is_same == [None not in pair and ids[0][pair[0] or 0] == ids[1][pair[1] or 0] for pair in expected]


def test_a_vector_is_moved_by_drag_by_two_clicks_and_by_keys(page: Page, gpt2: Server) -> None:
    show(page, gpt2, "patching", patching_a=A, patching_b=B, layer=0)
    status = page.locator(".patching-words + .hint")
    word(page, 0, 2).drag_to(word(page, 1, 4))
    page.wait_for_url(re.compile("patching_source=2&patching_target=4$"))
    expect(word(page, 0, 2)).to_have_class(re.compile("is-source"))
    expect(word(page, 1, 4)).to_have_class(re.compile("is-target"))
    word(page, 1, 3).click()
    expect(status).to_have_text("Now choose the word of text A that receives the vector.")
    word(page, 0, 1).click()
    page.wait_for_url(re.compile("patching_side=b&patching_source=3&patching_target=1$"))
    word(page, 0, 1).focus()
    for key in ("ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(status).to_contain_text("of text B")
    page.keyboard.press("Escape")
    expect(status).to_contain_text("Drag a word")
    page.keyboard.press("Enter")
    for key in ("ArrowDown", "ArrowLeft", " "):
        page.keyboard.press(key)
    target = next(b for a, b in aligned(*(ids_of(gpt2, text) for text in (A, B))) if a == 2)
    assert target is not None
    page.wait_for_url(re.compile(f"patching_source=2&patching_target={target - 1}$"))


def test_one_patch_shows_the_next_words_before_and_after_and_copies_its_request(page: Page, gpt2: Server) -> None:
    place = {"patching_source": 2, "patching_target": 3, "layer": 1}
    show(page, gpt2, "patching", patching_a=A, patching_b=B, patching_what="mlp", **place)
    change = {"point": "blocks.1.hook_mlp_out", "positions": 3, "op": "patch", "from": {"input": A, "positions": 2}}
    bodies = ({"input": B}, {"input": B, "interventions": [change]}, {"input": A})
    tables = page.locator(".patching-bars table")
    expect(tables).to_have_count(len(bodies))
    for i, body in enumerate(bodies):
        likeliest = ask(gpt2, "/v1/next", body)["data"][0]["temperatures"][0]["tokens"]
        for row in range(5):
            expect(tables.nth(i).locator("tbody tr").nth(row)).to_contain_text(percent(likeliest[row]["probability"]))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer = run_python(copied(page, page.get_by_role("button", name="Copy as…").first, "Python"))
    truth = ask(gpt2, "/v1/next", bodies[1])["data"][0]["temperatures"][0]["tokens"][0]["token_id"]
    assert answer.temperatures[0].tokens[0].token_id == truth


def layer_of(request: Request) -> int | None:
    """Return the patched layer of a request for a cell; None for another request."""
    body = json.loads(request.post_data or "{}")
    changes = body.get("interventions") if request.url.endswith("/v1/next") else None
    return changes[0]["layer"] if changes else None


def test_the_grid_comes_row_by_row_and_its_work_ends_with_the_text(page: Page, server: Server, open_view: Open) -> None:
    waiting: list[Route] = []
    held = [3]

    def hold(route: Route) -> None:
        if layer_of(route.request) in held:
            waiting.append(route)
        else:
            route.continue_()

    page.route("**/v1/next", hold)
    page.goto(f"{server.url}/#view=patching&layer=0")
    legend = page.locator(".patching .colour-scale")
    expect(legend).to_contain_text("4 of 6 layers are here")  # 0, 4, 2 and 1
    grid = page.get_by_role("application", name=re.compile("The result of every patch"))
    grid.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".tooltip")).to_contain_text(re.compile("layer 1, .*: −?[0-9].*; “.*” .* %"))
    cancelled: list[Request] = []

    def note(request: Request) -> None:
        cancelled.append(request)

    page.on("requestfailed", note)
    with requests_of(page) as requests:
        page.get_by_role("textbox", name="Text A").fill("A cat")
        page.get_by_role("textbox", name="Text A").press("Enter")
        wait_until(page, lambda: bool(cancelled) and all(layer_of(each) == 3 for each in cancelled))
        expect(word(page, 0, 0)).to_have_text("A")
        held.clear()
        expect(legend).not_to_contain_text("layers are here")
    later = [json.loads(each.post_data or "{}") for each in requests if layer_of(each) is not None]
    assert later
    assert all(body["interventions"][0]["from"]["input"] == "A cat" for body in later)


def test_a_row_has_at_most_eight_requests_at_a_time(page: Page, server: Server) -> None:
    held: list[Route] = []
    layers = [0]

    def hold(route: Route) -> None:
        if layer_of(route.request) in layers:
            held.append(route)
        else:
            route.continue_()

    page.route("**/v1/next", hold)
    a, b = (f"The {first} fox saw the young fox and {'the fox saw the cat and ' * 3}the" for first in ("old", "red"))
    page.goto(f"{server.url}/#{urlencode({'view': 'patching', 'layer': 1, 'patching_a': a, 'patching_b': b})}")
    wait_until(page, lambda: len(held) >= 8)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert len(held) == 8
    layers.clear()
    for route in held:
        route.continue_()
    expect(page.locator(".patching .colour-scale")).not_to_contain_text("layers are here")


def test_a_cell_of_the_grid_opens_its_patch(page: Page, gpt2: Server) -> None:
    show(page, gpt2, "patching", patching_a=A, patching_b=B, patching_what="head", layer=0, head=0)
    numbers = grid_of(page)
    grid = page.get_by_role("application", name=re.compile("The result of every patch"))
    grid.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile("head=1&"))
    expect(page.get_by_role("combobox", name="Layer")).to_have_value("1")
    settle(page)  # the previous patch's number stays until then
    expect(page.locator(".gauge output")).to_have_text(re.compile("^−?[0-9.]+(e−[0-9]+)?$"))
    shown = float(page.locator(".gauge output").inner_text().replace("−", "-"))
    assert shown == pytest.approx(numbers[1, 1], rel=0.06, abs=1e-6)


def test_texts_that_cannot_be_patched_get_a_message(page: Page, gpt2: Server) -> None:
    show(page, gpt2, "patching", patching_a=A, patching_b=A)
    expect(page.locator(".patching .lack")).to_contain_text("predicts the same after both texts")
    page.get_by_role("textbox", name="Text B").fill("")
    page.get_by_role("textbox", name="Text B").press("Enter")
    expect(page.locator(".patching .lack")).to_have_text("Write both texts.")
    expect(page.locator(".problem")).to_have_count(0)


def test_a_model_that_fills_in_words_is_patched_at_its_mask(page: Page) -> None:
    bert = family_server("bert")
    show(page, bert, "patching", patching_what="attention")
    texts = [page.get_by_role("textbox", name=f"Text {name}").input_value() for name in "AB"]
    assert all("[MASK]" in text for text in texts)
    numbers = grid_of(page)
    columns = aligned(*(ids_of(bert, text) for text in texts))
    pairs = [pair for pair in columns if None not in pair]
    assert numbers.shape[1] == len(pairs), "an encoder has also the tokens before the difference"
    page.get_by_role("textbox", name="Text B").fill("No mask here")
    page.get_by_role("textbox", name="Text B").press("Enter")
    expect(page.locator(".problem")).to_contain_text("[MASK]")


def test_words_are_moved_by_taps_on_a_phone(page: Page, gpt2: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, gpt2, "patching", patching_a=A, patching_b=B)
    word(page, 0, 1).click()
    word(page, 1, 2).click()
    page.wait_for_url(re.compile("patching_source=1&patching_target=2$"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
