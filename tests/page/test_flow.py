"""The flow view: every tensor of a block is there, its numbers are the API's, and each family has its own picture."""

import re

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.page.conftest import TEXT, Open, ask, family_server, saved, settle, texts_of, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")


def traced(server: Server, point: str, **more: object) -> np.ndarray:
    """Return a point of the text as the API answers it; masked scores are NaN."""
    points = ask(server, "/v1/trace", {"input": TEXT, "points": [point], **more})["data"][0]["points"]
    return np.array(points[point]["data"], np.float32).astype(float)


def diagram(page: Page) -> Locator:
    return page.get_by_role("application", name=re.compile("One block as a graph"))


def words_of(page: Page) -> list[str]:
    """Return the texts in the picture of the block."""
    return texts_of(saved(page, "picture (SVG)"))


def test_every_tensor_of_the_block_is_in_the_picture_with_its_shape_and_can_be_opened(
    open_view: Open, server: Server
) -> None:
    page = open_view("flow", layer=2)
    points = {point["name"].replace("blocks.{layer}.", "") for point in ask(server, "/v1/capabilities")["points"]}
    offered = page.locator("#tensor option").evaluate_all("options => options.map((option) => option.value)")
    assert set(offered) - {""} == {name for name in points if not name.endswith(("hook_scale", "hook_normalized"))}
    words = words_of(page)
    assert {"q", "k", "v", "q′", "k′", "scores", "pattern", "z", "gate", "up", "neurons", "RMSNorm(x)"} <= set(words)
    assert {"[9, 256]", "[9, 8, 32]", "[8, 9, 9]", "[9, 688]", "[9, 4096]"} <= set(words)
    assert "q·k × 0.1768" in words
    assert "mask: causal" in words


def test_a_tensors_numbers_are_the_apis_and_a_cell_chooses_query_and_key(open_view: Open, server: Server) -> None:
    page = open_view("flow", layer=1, head=3, query=7, key=6, flow_open="attn.hook_pattern")
    pattern = traced(server, "blocks.1.attn.hook_pattern", heads=3)[0]
    expect(page.locator(".flow-opened figure .readout").first).to_contain_text(f": {written(pattern[7, 6])}")
    cells = page.get_by_role("application", name="pattern: queries by keys")
    cells.press("ArrowDown")
    cells.press("Enter")
    page.wait_for_url(re.compile("query=8&key=6"))


def test_statistics_are_of_the_chosen_word_and_of_all(open_view: Open, server: Server) -> None:
    page = open_view("flow", layer=3, query=4, flow_open="hook_resid_post")
    stream = traced(server, "blocks.3.hook_resid_post")
    rows = {
        "length": (np.linalg.norm(stream[4]), np.linalg.norm(stream)),
        "mean": (stream[4].mean(), stream.mean()),
        "deviation": (stream[4].std(), stream.std()),
        "smallest": (stream[4].min(), stream.min()),
        "largest": (stream[4].max(), stream.max()),
    }
    for name, (of_word, of_all) in rows.items():
        row = page.locator(".statistics tr", has=page.get_by_role("rowheader", name=name))
        expect(row.locator("td")).to_have_text([written(float(of_word)), written(float(of_all))])
    sizes = np.sort(np.abs(stream), axis=1)
    limits = np.minimum(sizes[:, -1], 1.5 * sizes[:, int(0.98 * (stream.shape[1] - 1))])
    end = np.sort(limits)[(len(limits) - 1) // 2]  # of the middle row: one huge row does not make the others white
    scale = page.locator(".flow-tensor .colour-scale .number")
    assert [float(text.replace("−", "-")) for text in scale.all_inner_texts()] == pytest.approx([-end, end], rel=6e-3)
    said = page.locator(".flow-tensor .hint", has_text="The colours end at")
    assert (np.abs(stream) > end).any()
    expect(said).to_contain_text(re.compile(f"too. {(np.abs(stream) > end).sum()} numbers? beyond, up to "))


def test_a_score_is_derived_from_its_query_and_key(open_view: Open, server: Server) -> None:
    page = open_view("flow", layer=1, head=3, query=7, key=6, flow_open="attn.hook_attn_scores")
    body = {"input": TEXT, "layers": 1, "heads": 3, "query_positions": 7, "key_positions": 6}
    answers = [ask(server, "/v1/attention", {**body, "kind": kind})["data"][0] for kind in ("dots", "scores")]
    dot, score = (entry["attention"][0][0][0][0] for entry in answers)
    expect(page.locator(".derivation li code").first).to_have_text(re.compile(r"q·k = "))
    results = [text.rpartition("= ")[2] for text in page.locator(".derivation li code").all_inner_texts()]
    shown = [float(result.replace("−", "-")) for result in results]
    assert shown[0] == pytest.approx(dot, rel=2e-3)
    assert shown[1] == pytest.approx(score, rel=2e-3)
    assert shown[2] == pytest.approx(score, rel=2e-3)


def test_the_keyboard_walks_the_tensors_and_opens_one(open_view: Open, server: Server) -> None:
    page = open_view("flow", layer=1, head=3, query=7, flow_open="attn.hook_q")
    said = page.locator(".flow p.readout")
    diagram(page).press("ArrowRight")
    rotated = traced(server, "blocks.1.attn.hook_rot_q", heads=3, positions=7)
    expect(said).to_contain_text("q′ · blocks.1.attn.hook_rot_q [position, head, d_head] = [9, 8, 32]")
    expect(said).to_contain_text(f"length {written(float(np.linalg.norm(rotated)))}")
    diagram(page).press("ArrowRight")
    expect(said).to_contain_text("scores · blocks.1.attn.hook_attn_scores")
    diagram(page).press("Enter")
    page.wait_for_url(re.compile(r"flow_open=attn\.hook_attn_scores"))
    expect(page.locator(".flow-opened h2")).to_contain_text("blocks.1.attn.hook_attn_scores")


def test_pointing_at_a_strip_tells_one_number_and_a_click_opens_the_tensor(open_view: Open, server: Server) -> None:
    page = open_view("flow", layer=1, head=3, query=7)
    svg = saved(page, "picture (SVG)").read_text(encoding="utf-8")
    title = re.search(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>q</text>', svg)
    assert title, "no tensor q in the picture"
    x, y = float(title[1]), float(title[2])
    diagram(page).hover(position={"x": x + 20, "y": y + 50})
    said = page.locator(".flow p.readout")
    expect(said).to_contain_text("“little” number ")
    shown = re.search(r"number (\d+): (\S+)", said.inner_text())
    assert shown, said.inner_text()
    query = traced(server, "blocks.1.attn.hook_q", heads=3, positions=7).flatten()
    assert shown[2] == written(float(query[int(shown[1])]))
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile(r"flow_open=attn\.hook_q\b"))


def open_flow(page: Page, family: str) -> Page:
    """Open the flow view of a small checkpoint of that family."""
    page.goto(f"{family_server(family).url}/#view=flow&layer=0&query=7&key=6&text=The+old+king")
    page.locator("#view-flow h1").wait_for()
    settle(page)
    return page


def report(page: Page, **fields: object) -> None:
    """Change fields of the decoder in the capabilities that the page receives: a server more costs seconds."""

    def alter(route: Route) -> None:
        answer = route.fetch()
        told = answer.json()
        told["stacks"]["decoder"] |= fields
        route.fulfill(response=answer, json=told)

    page.route("**/v1/capabilities", alter)


@pytest.mark.parametrize("family", [pytest.param("gemma2", marks=pytest.mark.nightly), "gemma3"])
def test_gemmas_block_has_norms_around_its_sublayers_a_window_and_a_cap(page: Page, family: str) -> None:
    if family == "gemma3":
        report(page, attn_logit_softcap=4.0)
    open_flow(page, family)
    words = words_of(page)
    expect(page.locator(".problem")).to_have_count(0)
    assert words.count("then RMSNorm") == 2
    assert words.count("RMSNorm(x)") == 3  # before attention, before the mlp, and at the end
    assert {"window: 17", "mask: causal", "gelu(gate) × up"} <= set(words)
    assert "cap 4" in words


@pytest.mark.parametrize("family", [pytest.param("gpt_neox", marks=pytest.mark.nightly), "gpt2"])
def test_pythias_mlp_is_in_parallel_with_its_attention(page: Page, family: str) -> None:
    if family == "gpt2":
        report(page, parallel_blocks=True)
    open_flow(page, family)
    words = words_of(page)
    expect(page.locator(".problem")).to_have_count(0)
    assert "x + attention + mlp" in words
    assert "x mid" not in words
    assert "gate" not in words
