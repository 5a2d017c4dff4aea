"""The page on every family: each view opens, missing parts of a model are reported in the server's words, and numbers
equal those by transformers.
"""

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect

from tests import tiny
from tests.page.conftest import DRAWN, VIEWS, ask, family_folder, family_server, settle, show, written
from tests.page.test_accessibility import serious
from tests.page.test_attention import cell_in
from tests.support.processes import Server, serve

UNLIKE = ("gemma3", "gpt2", "bert", "bart")
"""The fewest of tiny.VARIANTS that are unlike each other; `make test` opens these."""
OTHERS = (
    "opt-post", "modernbert", "qwen3", "qwen3_moe", "qwen2_moe", "qwen3_5", "mixtral", "olmoe", "gpt_oss", "smollm3",
    "granite", "granite4", "lfm2", "mistral", "qwen2", "gemma2", "gemma4", "gemma4-e2b", "gemma4-experts", "gemma3n",
    "phi3", "olmo2", "olmo3", "gpt_neox", "mpnet", "roberta", "distilbert", "embedding_gemma", "nomic_bert",
    "jina_bert", "jina_embeddings_v3", "t5", "marian",
)  # fmt: skip
"""The other variants; the default model, of all other tests, is a Llama."""
NO_DECODERS = [name for name in (*UNLIKE, *OTHERS) if name not in tiny.DECODERS]
"""The variants that no other test of the page has a kind of."""
WITH_OTHER_LAYERS = ("qwen3_5", "lfm2")
"""Variants with layers without attention."""
NEEDS = {
    "chat": "/v1/completions", "journey": "/v1/explain", "why": "/v1/explain", "contributions": "/v1/contributions",
    "motion": "/v1/contributions", "lens": "/v1/lens", "next": "/v1/next", "heads": "/v1/heads",
    "patching": "/v1/next", "embeddings": "/v1/embeddings",
}  # fmt: skip
"""The route that a view needs for its contents."""
TEXT, DECODED = "The old king", "and the queen"
LAYER, HEAD, QUERY, KEY = 1, 2, 3, 1


def open_flow(page: Page, server: Server) -> None:
    """Open the flow view at the selection above, with the residual stream that enters the block."""
    state = {
        "text": TEXT, "decoder": DECODED, "layer": LAYER, "head": HEAD, "query": QUERY, "key": KEY, "part": "decoder",
        "flow_open": "hook_resid_pre",
    }  # fmt: skip
    show(page, server, "flow", **state)


def open_view(page: Page, number: int) -> None:
    """Open a view from the list."""
    page.locator(".rail button").nth(number).click()
    page.locator(".view").wait_for()
    page.evaluate(DRAWN)  # the view has sent its first requests
    settle(page)
    page.evaluate(DRAWN)  # and pictures that follow from their answers
    settle(page)


@dataclass(frozen=True)
class Family:
    name: str
    folder: Path
    server: Server


def chosen(names: Iterable[str], always: Container[str] = UNLIKE) -> list[Any]:
    """Return the variants as parameters of the fixture `family`; `make test` runs those in `always`."""
    return [pytest.param(name, marks=() if name in always else pytest.mark.nightly) for name in names]


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    folder = family_folder(request.param)
    if request.param in UNLIKE:
        yield Family(request.param, folder, family_server(request.param))
    else:
        with serve([str(folder), "--dtype", "float32", "--threads", "1"]) as server:
            yield Family(request.param, folder, server)


def theirs(folder: Path, server: Server) -> tuple[float, float]:
    """Return the chosen weight and the length of the chosen vector at the block's input, computed by transformers."""
    told = ask(server, "/v1/capabilities")
    is_pair, place = told["kind"] == "encoder-decoder", told["attention_layers"].index(LAYER)
    body = {"input": TEXT, "decoder_input": DECODED} if is_pair else {"input": TEXT}
    inputs = {"input_ids": ids_of(server, {**body, "part": "encoder"} if is_pair else body)}
    if is_pair:
        inputs["decoder_input_ids"] = ids_of(server, {**body, "part": "decoder"})
    with torch.no_grad():
        seen = tiny.theirs(folder, torch.float32)(**inputs, output_attentions=True, output_hidden_states=True)
    attentions, hidden = (
        (seen.decoder_attentions, seen.decoder_hidden_states) if is_pair else (seen.attentions, seen.hidden_states)
    )
    states = hidden[LAYER][0] if hidden[LAYER].dim() == 4 else hidden[LAYER]  # the first of several residual streams
    return float(attentions[place][0, HEAD, QUERY, KEY]), float(states[0, QUERY].norm())


def ids_of(server: Server, body: dict[str, Any]) -> torch.Tensor:
    """Return the network's input ids for a body's text, [1, position]."""
    return torch.tensor([ask(server, "/v1/attention", {**body, "layers": LAYER, "heads": 0})["data"][0]["token_ids"]])


def shown(text: str) -> float:
    return float(text.replace("−", "-"))


def sentence(reason: str) -> str:
    """Return the reason of a missing route in the page's words: it lists views instead of the accepted
    routes.
    """
    said = re.sub(r"; /v1/.* are accepted$", "", reason)
    return f"{said[0].upper()}{said[1:]}."


@pytest.mark.parametrize("family", chosen([*UNLIKE, *OTHERS], ("bart",)), indirect=True)
def test_all_views_open_and_numbers_are_those_of_transformers(family: Family, page: Page) -> None:
    open_flow(page, family.server)
    weight, length = theirs(family.folder, family.server)
    row = page.locator(".statistics tr", has=page.get_by_role("rowheader", name="length"))
    assert shown(row.locator("td").first.inner_text()) == pytest.approx(length, rel=5e-3)
    routes = ask(family.server, "/v1/capabilities")["routes"]
    for number, view in enumerate(VIEWS):
        open_view(page, number)
        expect(page.locator(f"#view-{view} h1, main.view h1").first).to_be_visible()
        expect(page.locator(".problem"), view).to_have_count(0)
        lack = routes[NEEDS[view]]["reason"] if view in NEEDS else None
        expect(page.locator("main.view > .lack")).to_have_text([sentence(lack)] if lack else [])
        if view == "attention":
            said = page.locator(".head-pictures .readout").first.inner_text()
            assert shown(cell_in(said)[2]) == pytest.approx(weight, rel=5e-3)  # three digits
            page.get_by_role("button", name="encoder, decoder").click()
            is_pair = ask(family.server, "/v1/capabilities")["kind"] == "encoder-decoder"
            expect(page.locator(".stacks .lack", has_text="no second stack")).to_have_count(0 if is_pair else 1)
            settle(page)
            expect(page.locator(".problem")).to_have_count(0)
            page.get_by_role("button", name="one head").click()


JOURNEYS = {
    "gemma3": ("RMSNorm before the attention", "Both are normed. Both are rotated", "shared by 2 heads", "times 6.928",
               "together, after RMSNorm, write", "The mask", "The next word"),
    "gpt2": ("LayerNorm before the attention", "a learned vector, added to the embedding", "The mask", "gelu(up)",
             "The next word"),
    "bert": ("a learned vector, added to the embedding", "No mask", "x + attention, then LayerNorm"),
    "bart": ("a learned vector, added to the embedding", "The mask", "Cross-attention to the encoder",
             "x + attention, then LayerNorm", "The next word"),
    "mpnet": ("a learned vector, added to the embedding", "No mask", "the bias for the distance",
              "x + attention, then LayerNorm", "The word in its place"),
    "t5": ("RMSNorm before the attention", "is not scaled in this model; the bias for the distance", "The mask",
           "Cross-attention to the encoder", "The next word"),
}  # fmt: skip
"""Texts of the journey for some families."""
UNSAID = {
    "gemma3": (), "gpt2": ("rotated", "shared"), "bert": ("rotated", "Cross"), "bart": ("rotated",),
    "mpnet": ("before the attention", "Cross"), "t5": ("rotated",),
}  # fmt: skip
"""Texts that the journey must not have, since the model has no such part."""


@pytest.mark.parametrize("family", chosen(JOURNEYS), indirect=True)
def test_the_journey_names_the_parts_that_a_family_has(family: Family, page: Page) -> None:
    open_flow(page, family.server)
    weight, _ = theirs(family.folder, family.server)
    open_view(page, VIEWS.index("journey"))
    stops, share_of_key = page.locator(".journey-stops"), re.compile(r"” gives “[^”]*” ([\d.e−]+) %")
    expect(stops).to_contain_text(share_of_key)
    told = stops.inner_text()
    assert [words for words in JOURNEYS[family.name] if words not in told] == []
    assert [words for words in UNSAID[family.name] if words in told] == []
    share = share_of_key.search(told)
    assert share, told
    assert float(share[1].replace("−", "-")) == pytest.approx(100 * weight, rel=6e-3)


@pytest.mark.parametrize("family", chosen(WITH_OTHER_LAYERS), indirect=True)
def test_the_wall_has_the_layers_that_have_attention(family: Family, page: Page) -> None:
    told = ask(family.server, "/v1/capabilities")
    layers = told["attention_layers"]
    assert len(layers) < told["num_layers"]
    open_flow(page, family.server)
    open_view(page, VIEWS.index("attention"))
    wall = page.get_by_role("application", name=re.compile(f"{len(layers)} layers of"))
    for step in range(1, len(layers) + 1):
        wall.press("ArrowDown")
        layer = layers[(layers.index(LAYER) + step) % len(layers)]
        expect(page.locator(".wall-name")).to_contain_text(f"layer {layer}, head {HEAD} is open")
        expect(page.locator(".problem")).to_have_count(0)


@pytest.mark.nightly
@pytest.mark.parametrize("family", chosen(NO_DECODERS), indirect=True)
def test_axe_finds_nothing_serious_on_other_kinds_of_models(family: Family, open_page: Page) -> None:
    """Check light with all rules, and dark with only the contrast rule; decoders are checked in the other file. (axe
    is a script of the test's: the page's own policy would not allow it.)
    """
    page = open_page
    open_flow(page, family.server)
    for number, view in enumerate(VIEWS):
        page.emulate_media(color_scheme="light")
        open_view(page, number)
        assert not serious(page), view
        page.emulate_media(color_scheme="dark")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert not serious(page, runOnly=["color-contrast"]), view


@pytest.mark.parametrize("family", chosen(NO_DECODERS), indirect=True)
def test_a_zeroed_head_is_shown_on_other_kinds_of_models(family: Family, page: Page) -> None:
    """Check the difference in one head of the next layer, and that no view breaks over it."""
    kind = ask(family.server, "/v1/capabilities")["kind"]
    is_pair = kind == "encoder-decoder"
    part, point = ("cross", "decoder.cross_attn.hook_z") if is_pair else (kind, "attn.hook_z")
    body = {"input": TEXT, "layers": LAYER, "heads": HEAD, "part": part}
    if is_pair:
        body["decoder_input"] = DECODED
    silenced = {"point": point, "layer": 0, "head": 1, "op": "scale", "value": 0}
    before, after = (
        ask(family.server, "/v1/attention", {**body, **more})["data"][0]["attention"][0][0][QUERY][KEY]
        for more in ({}, {"interventions": [silenced]})
    )
    change = f"zero_head{'_cross' if is_pair else ''}_l0_h1"
    state = {"text": TEXT, "decoder": DECODED, "layer": LAYER, "head": HEAD, "query": QUERY, "key": KEY, "part": part,
             "change": change, "change_show": "difference", "change_open": 1}  # fmt: skip
    open_flow(page, family.server)
    show(page, family.server, "attention", **state)
    expect(page.get_by_role("button", name="Remove: ")).to_have_count(1)
    shown_here = page.locator(".head-pictures .readout").first
    expect(shown_here).to_contain_text(f": {written(after - before)}")
    for view in ("journey", "why", "moves", "lens", "next", "heads", "flow"):
        open_view(page, VIEWS.index(view))
        expect(page.locator(f"#view-{view} h1, main.view h1").first).to_be_visible()
        expect(page.locator(".problem"), view).to_have_count(0)


def test_an_encoder_opens_at_the_masked_place_or_at_its_last_word(page: Page) -> None:
    server = family_server("bert")
    text = "The old [MASK] was the king."
    masked = ask(server, "/v1/next", {"input": text})["data"][0]["position"]
    show(page, server, "next", text=text)
    page.wait_for_url(f"**query={masked}*")
    expect(page.locator(".next-sentence")).to_contain_text("In place of [MASK] the likeliest token is")
    expect(page.locator(".next > p").first).to_contain_text("click a token to put it in this place.")
    show(page, server, "next", text=TEXT)
    last = len(ask(server, "/tokenize", {"prompt": TEXT})["tokens"]) - 2  # [SEP] follows
    page.wait_for_url(f"**query={last}*")
