"""Attention's encoder and decoder for a model with one stack: its missing second stack, its components and its mask."""

import re

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open

pytestmark = pytest.mark.usefixtures("kept_page")


def test_a_decoder_says_that_it_has_no_second_stack(open_view: Open) -> None:
    page = open_view("attention", attention_show="stacks")
    lack = page.locator(".stacks .lack")
    expect(lack).to_contain_text("This model is a decoder alone (LlamaForCausalLM)")
    expect(lack).to_contain_text("no attention between two texts")
    expect(page.locator(".kind.this h3")).to_have_text("Decoder — this model")
    expect(page.locator(".facts")).to_contain_text("6 layers of 8 heads")
    expect(page.locator(".facts")).to_contain_text("rotary")


def test_the_mask_says_what_a_word_does_not_see(open_view: Open) -> None:
    page = open_view("attention", attention_show="stacks", query=2, key=1)
    mask = page.get_by_role("application", name=re.compile("The mask"))
    said = mask.locator("xpath=ancestor::figure").locator(".readout")
    expect(said).to_contain_text("2 “a” sees 1 “upon”, 1 away")
    mask.press("ArrowRight")
    mask.press("ArrowRight")
    expect(said).to_contain_text("2 “a” does not see 3 “time”")


def test_the_former_address_opens_it_and_one_head_is_a_click_away(open_view: Open) -> None:
    page = open_view("attention")
    page.evaluate("location.hash = 'view=stacks&text=Once upon a time&query=2&key=1'")
    expect(page.get_by_role("application", name=re.compile("The mask"))).to_be_visible()
    expect(page.get_by_role("button", name="encoder, decoder")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="one head").click()
    page.wait_for_url(re.compile("view=attention&text=Once.upon.a.time"))
    expect(page.locator(".head-pictures h2").first).to_have_text("Layer 1, head 3")
