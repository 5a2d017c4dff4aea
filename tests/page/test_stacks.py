"""The view of a model's stacks, of a model that has one: what it is built of, its mask, and which stack attends to
which.
"""

import re

from playwright.sync_api import expect

from benchmarks.processes import Server
from tests.page.conftest import TEXT, Open, ask, percent


def test_a_decoder_is_told_from_the_other_kinds(open_view: Open) -> None:
    page = open_view("stacks")
    expect(page.locator(".kind.this h3")).to_have_text("Decoder — this model")
    expect(page.locator(".facts")).to_contain_text("6 layers of 8 heads")
    expect(page.locator(".facts")).to_contain_text("rotary")
    expect(page.locator(".stacks")).to_contain_text("no cross-attention")


def test_two_lines_of_text_tell_whom_a_word_looks_at(open_view: Open, server: Server) -> None:
    page = open_view("stacks", layer=1, head=3, query=7)
    row = ask(server, "/v1/attention", {"input": TEXT, "layers": 1, "heads": 3, "query_positions": 7})
    entry = row["data"][0]
    weights = entry["attention"][0][0][0]
    best = max(range(len(weights)), key=weights.__getitem__)
    said = page.locator(".stacks p.readout")
    expect(said).to_contain_text(f"“little” looks at “{entry['tokens'][best].strip()}” {percent(weights[best])}")
    lines = page.get_by_role("application", name=re.compile("two lines of text"))
    lines.press("ArrowRight")
    expect(said).to_contain_text("“girl” looks at")
    lines.press("Enter")
    page.wait_for_url(re.compile(r"query=8\b"))


def test_the_mask_says_what_a_word_does_not_see(open_view: Open) -> None:
    page = open_view("stacks", query=2, key=1)
    mask = page.get_by_role("application", name=re.compile("The mask"))
    said = mask.locator("xpath=ancestor::figure").locator(".readout")
    expect(said).to_contain_text("2 “a” sees 1 “upon”, 1 away")
    mask.press("ArrowRight")
    mask.press("ArrowRight")
    expect(said).to_contain_text("2 “a” does not see 3 “time”")
