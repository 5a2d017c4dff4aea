"""How the page writes bytes, and where its scales of colours end."""

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from tests.page.conftest import Open, softmax

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


def test_numbers_that_the_precision_cannot_tell_apart_share_a_rank(open_view: Open) -> None:
    """Check neighbours among bfloat16 (from 4 to 8 they are 1/32 apart) and among float32."""
    page = open_view("server")
    ranks = """async ([dtype, values]) => {
        const { use } = await import(document.querySelector("script[type=module]").src);
        const { setPrecision, rankAt, format, decimalsOf } = use("core/numbers.js");
        setPrecision(dtype);
        const found = values.map((_, place) => rankAt((at) => values[at], place, values.length));
        return [found.map(({ rank, isTied }) => `${isTied ? "=" : ""}${rank}`), format(7.37123), decimalsOf(12)];
    }"""
    values = [7.375, 7.375, 7.34375, 4.47, 4.47, 4.47, -1, -2]
    assert page.evaluate(ranks, ["bfloat16", values]) == [
        ["=1", "=1", "3", "=4", "=4", "=4", "7", "8"],
        "7.37",
        1,
    ]
    assert page.evaluate(ranks, ["float32", [2, 1.999999, 1]]) == [["1", "2", "3"], "7.371", 2]
    page.reload()  # with the precision of the server's own model


def test_bars_mark_numbers_that_the_precision_cannot_tell_apart(open_view: Open) -> None:
    """Draw a list of ranked bars; two of the numbers differ by less than bfloat16 and float32 resolve."""
    page = open_view("lens")
    page.evaluate("""async () => {
        const { use } = await import(document.querySelector("script[type=module]").src);
        const { html, render } = use("core/html.js");
        const { Bars } = use("parts/bars.js");
        const rows = [0.5, 0.25, 0.25 + 1e-9, 0.125].map((value) => ({ name: String(value), value }));
        const place = document.createElement("div");
        place.id = "drawn";
        document.querySelector("main").append(place);
        render(html`<${Bars} rows=${rows} columns=${["token", "p"]} isRanked />`, place);
    }""")
    marks = "all => all.map((one) => getComputedStyle(one, '::before').content)"
    assert page.locator("#drawn .number").evaluate_all(marks) == ["none", '"= "', '"= "', "none"]
    page.reload()


def test_weights_with_a_sink_are_right_at_any_temperature(open_view: Open) -> None:
    """Compare with numpy: the temperature divides the scores, not the sink; at 0 the largest score becomes 0."""
    page = open_view("journey")
    weights = """async ([scores, sink, temperature]) => {
        const { use } = await import(document.querySelector("script[type=module]").src);
        const { weightsAt } = use("views/journey/attention.js");
        return [...weightsAt({ scores: Float32Array.from(scores), numKeys: scores.length }, sink, temperature)];
    }"""
    scores, sink = np.array([30.0, 20.0, -10.0]), 12.0
    for temperature in (0.01, 0.5, 1, 100):
        exponents = np.append(scores / temperature, sink)
        expected = softmax(exponents)[:-1]
        assert page.evaluate(weights, [scores.tolist(), sink, temperature]) == pytest.approx(expected)
    expected = [1 / (1 + np.exp(sink)), 0, 0]
    assert page.evaluate(weights, [scores.tolist(), sink, 0]) == pytest.approx(expected)
    assert page.evaluate(weights, [scores.tolist(), None, 0]) == [1, 0, 0]
