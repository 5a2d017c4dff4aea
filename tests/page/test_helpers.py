"""How the page writes bytes, and where its scales of colours end."""

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.page.conftest import Open

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
