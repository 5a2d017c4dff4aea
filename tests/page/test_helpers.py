"""How the page writes bytes, where its scales of colours end, and on which pair it opens."""

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from tests.page.conftest import TEXT, Open, ask
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")


def called(page: Page, file: str, function: str, *calls: list[Any]) -> list[Any]:
    """Return the results of an exported function of a file of the page, one for each list of arguments."""
    answers: list[Any] = page.evaluate(
        """async ([file, name, calls]) => {
            const { use } = await import(document.querySelector("script[type=module]").src);
            return calls.map((call) => use(file)[name](...call));
        }""",
        [file, function, calls],
    )
    return answers


def test_bytes_have_the_largest_unit_that_they_fill(open_view: Open) -> None:
    counts = [0, 999, 1000, 1024, 1536, 2**20, 2**40, 5 * 2**40]
    written = called(open_view("server"), "core/numbers.js", "bytes", *([count] for count in counts))
    assert written == ["0 B", "999 B", "1000 B", "1 KiB", "1.5 KiB", "1 MiB", "1 TiB", "5 TiB"]


def test_a_scale_of_both_signs_reaches_as_far_to_either_side(open_view: Open) -> None:
    calls = [[[-3, 1], "diverging"], [[-1, 3], "diverging"], [[-3, -2], "diverging"], [[1, 2], "sequential"]]
    scales = called(open_view("attention"), "parts/matrix.js", "scaleOf", *calls)
    assert [(scale["low"], scale["high"]) for scale in scales] == [(-3, 3), (-3, 3), (-3, 3), (0, 2)]


def test_without_a_key_in_the_address_a_view_opens_on_the_strongest_except_the_first_token(
    open_view: Open, server: Server
) -> None:
    """The key position is the last token's, which does not count as a key either."""
    weights = np.array(ask(server, "/v1/attention", {"input": TEXT})["data"][0]["attention"])[..., -1, :]
    others = weights[..., 1:-1]
    layer, head = np.argwhere(weights[..., 0] > others.max(-1))[0]
    page = open_view("attention", layer=layer, head=head)
    page.wait_for_url(re.compile(rf"&key={others[layer, head].argmax() + 1}\b"))
