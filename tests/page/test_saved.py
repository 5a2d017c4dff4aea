"""What a view saves can be read elsewhere: pictures by their formats, and the same numbers in both forms of data."""

import csv
import re
import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from benchmarks.processes import Server
from tests.page.conftest import TEXT, Open, ask


def save_all(page: Page, menu: Locator, folder: Path) -> dict[str, Path]:
    """Each file that the menu offers, by what it is called there."""
    menu.click()
    items = menu.locator("xpath=..").locator("li button")
    names = items.all_inner_texts()
    menu.click()
    files = {}
    for name in names:
        menu.click()
        with page.expect_download() as download:
            items.get_by_text(name, exact=True).click()
        files[name] = folder / download.value.suggested_filename
        download.value.save_as(files[name])
    return files


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and the filtered rows of a PNG of 8 bits a channel (ISO/IEC 15948)."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    place, packed = 8, b""
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        packed += png[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += 12 + length
    return width, height, zlib.decompress(packed)


VIEWS = ("attention", "why", "contributions", "lens", "next", "heads", "flow", "stacks", "embeddings", "weights")
BESIDE = {"why": ".saved-strips", "contributions": ".line-head"}
"""Where the first menu with a picture stands, in views whose first one saves the whole answer as data."""


@pytest.mark.parametrize("view", VIEWS)
def test_a_views_files_can_be_read(open_view: Open, tmp_path: Path, view: str) -> None:
    page = open_view(view, layer=1, head=3, heads_on="text", query=7, key=6)
    menu = page.locator(BESIDE.get(view, ".view")).get_by_role("button", name="Save…").first
    files = save_all(page, menu, tmp_path)
    width, height, rows = pixels(files["picture (PNG)"].read_bytes())
    assert min(width, height) > 20
    assert len(rows) in {height * (1 + channels * width) for channels in (3, 4)}
    assert len(set(rows)) > 8  # not blank
    svg = ElementTree.parse(files["picture (SVG)"]).getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(svg.iter())) > 5
    for name, path in files.items():
        if name.endswith("(npy)"):
            array = np.load(path)
            with files[name.replace("(npy)", "(CSV)")].open(newline="", encoding="utf-8") as table:
                cells = [row[1:] for row in csv.reader(table)][-array.size // array.shape[-1] :]
            np.testing.assert_array_equal(np.array(cells, float).astype(array.dtype).ravel(), array.ravel())


def test_the_walls_numbers_are_the_apis(open_view: Open, server: Server, tmp_path: Path) -> None:
    page = open_view("attention")
    expect(page.locator(".wall-name")).to_contain_text("is open")
    expect(page.locator(".wall-name")).not_to_contain_text("layers are here")
    files = save_all(page, page.locator(".wall").get_by_role("button", name="Save…"), tmp_path)
    (saved,) = (np.load(path) for name, path in files.items() if re.search("npy", name))
    weights = np.array(ask(server, "/v1/attention", {"input": TEXT})["data"][0]["attention"], float)
    assert saved.shape == weights.shape
    np.testing.assert_allclose(saved / 255, weights, atol=0.501 / 255)  # rounded to a step of 1/255
