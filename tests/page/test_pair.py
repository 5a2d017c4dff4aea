"""The page of an encoder-decoder: two texts, three attentions, and each view on the part that is chosen."""

import re

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.chats import write
from tests.page.conftest import TEXT, Open, ask, family_server, settle, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

WRITTEN = "the girl in the wood"
STACKS = {"attention_show": "stacks"}


@pytest.fixture(scope="module")
def server() -> Server:
    return family_server("bart")


def panel(page: Page, title: str) -> Locator:
    return page.locator(".panels section", has=page.get_by_role("heading", name=re.compile(f"^{title}: layer")))


def test_each_parts_pattern_is_the_apis(open_view: Open, server: Server) -> None:
    page = open_view("attention", **STACKS, decoder=WRITTEN, layer=1, head=2, query=3, key=2)
    for part in ("encoder", "decoder", "cross"):
        body = {"input": TEXT, "decoder_input": WRITTEN, "part": part, "layers": 1, "heads": 2}
        pattern = np.array(ask(server, "/v1/attention", body)["data"][0]["attention"][0][0], np.float32)
        if part != "encoder":
            panel(page, part.capitalize()).get_by_role("button", name="Show above").click()
        expect(panel(page, part.capitalize()).locator(".readout")).to_contain_text(f": {written(float(pattern[3, 2]))}")
    page.wait_for_url(re.compile("part=cross"))


def test_the_decoder_reads_what_the_model_writes_where_nobody_wrote(open_view: Open, server: Server) -> None:
    page = open_view("attention", **STACKS, part="cross")
    body = {"prompt": TEXT, "max_tokens": 48, "temperature": 0}
    said = ask(server, "/v1/completions", body)["choices"][0]["text"].replace("\ufffd", "")
    field = page.get_by_label(re.compile("The decoder reads"))
    expect(field).to_have_value(said)
    other = "A fluffy blue creature"
    page.get_by_label("Text (the encoder reads it)").fill(other)
    said = ask(server, "/v1/completions", {**body, "prompt": other})["choices"][0]["text"].replace("\ufffd", "")
    expect(field).to_have_value(said)
    field.fill("my own words")
    field.press("Enter")
    page.get_by_label("Text (the encoder reads it)").fill("Another text")
    expect(page.get_by_role("group", name="Tokens of the encoder")).not_to_contain_text("creature")
    settle(page)
    expect(field).to_have_value("my own words")


def test_across_the_decoders_tokens_look_and_the_encoders_are_looked_at(open_view: Open) -> None:
    page = open_view("attention", **STACKS, decoder=WRITTEN, part="cross", query=1, key=2)
    page.get_by_role("group", name="Tokens of the decoder").get_by_role("button").nth(4).click()
    page.wait_for_url(re.compile(r"query=4\b"))
    page.get_by_role("group", name="Tokens of the encoder").get_by_role("button").nth(5).click()
    page.wait_for_url(re.compile(r"query=4&key=5\b"))


def test_the_parts_words_tell_whom_a_word_looks_at(open_view: Open, server: Server) -> None:
    page = open_view("attention", **STACKS, part="encoder", decoder=WRITTEN, layer=1, head=3, query=7)
    body = {"input": TEXT, "decoder_input": WRITTEN, "part": "encoder", "layers": 1, "heads": 3, "query_positions": 7}
    entry = ask(server, "/v1/attention", body)["data"][0]
    weights = entry["attention"][0][0][0]
    best = max(range(len(weights)), key=weights.__getitem__)
    words = [token.strip() for token in entry.get("key_tokens", entry["tokens"])]
    said = page.locator(".stack-words .readout")
    expect(said).to_contain_text(f"“{words[7]}” → most: key {best} “{words[best]}” {written(weights[best])}")
    largest = [written(weight) for weight in sorted(weights, reverse=True)]
    expect(page.locator(".stack-words tbody .number")).to_have_text(largest[:10])
    lines = page.get_by_role("application", name=re.compile("The text with lines"))
    lines.press("ArrowDown")
    expect(said).to_contain_text(f"query 8 “{words[8]}” →")
    lines.press("Enter")
    page.wait_for_url(re.compile(r"query=8\b"))


def test_a_word_that_is_pointed_at_may_go_with_a_shorter_text(open_view: Open) -> None:
    page = open_view("attention", **STACKS, part="encoder", decoder=WRITTEN)
    words = page.get_by_role("application", name=re.compile("The text with lines"))
    box = words.bounding_box()
    assert box is not None
    words.hover(position={"x": 20, "y": box["height"] - 20})  # the last query
    expect(page.locator(".stack-words .readout")).to_contain_text(re.compile(r"query 1\d “"))
    page.get_by_label("Text (the encoder reads it)").fill("The king")
    expect(page.get_by_role("group", name="Tokens of the encoder")).not_to_contain_text("girl")
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)
    expect(words).to_be_visible()


def test_the_flow_reads_keys_and_values_from_the_encoder(open_view: Open, server: Server) -> None:
    chosen = {"part": "cross", "layer": 0, "head": 1, "query": 2, "key": 3}
    page = open_view("flow", decoder=WRITTEN, flow_open="cross_attn.hook_k", **chosen)
    body = {"input": TEXT, "decoder_input": WRITTEN, "points": ["decoder.blocks.0.cross_attn.hook_k"], "heads": 1}
    keys = np.array(ask(server, "/v1/trace", body)["data"][0]["points"]["decoder.blocks.0.cross_attn.hook_k"]["data"])
    row = page.locator(".statistics tr", has=page.get_by_role("rowheader", name="length"))
    lengths = [float(np.linalg.norm(keys[3])), float(np.linalg.norm(keys))]
    expect(row.locator("td")).to_have_text([written(length) for length in lengths])
    expect(page.locator(".derivation")).to_contain_text("k = encoder · W_K")
    expect(page.locator(".problem")).to_have_count(0)


def test_heads_are_scored_of_the_stack_that_is_chosen(open_view: Open, server: Server) -> None:
    page = open_view("heads", part="encoder", layer=2, head=1, heads_on="text", heads_y="entropy")
    entry = ask(server, "/v1/heads", {"input": TEXT, "part": "encoder"})["data"][0]
    scores = np.array(entry["arrays"]["scores"]["data"], np.float32)
    entropy = float(scores[2, 1, entry["measures"].index("entropy")])
    expect(page.locator(".heads-found .readout")).to_contain_text(f"entropy {written(entropy)}")


def test_the_decoder_writes_and_its_next_token_is_the_apis(open_view: Open, server: Server) -> None:
    page = open_view("chat", chat_mode="text", write_seed=3, write_max_tokens=6)
    write(page)
    expect(page.locator(".prose button")).to_have_count(6)
    open_view("next", decoder=WRITTEN, query=2)
    body = {"input": TEXT, "decoder_input": WRITTEN, "position": 2}
    right = ask(server, "/v1/next", body)["data"][0]["temperatures"][0]
    expect(page.locator(".facts b").first).to_have_text(f"{written(right['entropy'])} nats")
    page.get_by_role("group", name="Tokens of the decoder").get_by_role("button").nth(4).click()
    right = ask(server, "/v1/next", {**body, "position": 4})["data"][0]["temperatures"][0]
    expect(page.locator(".facts b").first).to_have_text(f"{written(right['entropy'])} nats")
