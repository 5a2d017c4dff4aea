"""The stacks view of a model with one stack: the missing second stack, the stack's parts, and its mask."""

import re

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open

pytestmark = pytest.mark.usefixtures("kept_page")


def test_a_decoder_says_that_it_has_no_second_stack(open_view: Open) -> None:
    page = open_view("stacks")
    expect(page.locator(".view > .lack")).to_contain_text("This model is a decoder alone (LlamaForCausalLM)")
    expect(page.locator(".view > .lack")).to_contain_text("no attention between two texts")
    button = page.get_by_role("navigation", name="Views").get_by_role("button", name="Encoder · decoder")
    expect(button).not_to_have_class("lacking")  # it has something to show all the same
    expect(page.locator(".two-lines")).to_have_count(0)
    expect(page.locator(".kind.this h3")).to_have_text("Decoder — this model")
    expect(page.locator(".facts")).to_contain_text("6 layers of 8 heads")
    expect(page.locator(".facts")).to_contain_text("rotary")


def test_the_mask_says_what_a_word_does_not_see(open_view: Open) -> None:
    page = open_view("stacks", query=2, key=1)
    mask = page.get_by_role("application", name=re.compile("The mask"))
    said = mask.locator("xpath=ancestor::figure").locator(".readout")
    expect(said).to_contain_text("2 “a” sees 1 “upon”, 1 away")
    mask.press("ArrowRight")
    mask.press("ArrowRight")
    expect(said).to_contain_text("2 “a” does not see 3 “time”")
