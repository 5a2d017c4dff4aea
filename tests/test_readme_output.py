"""The output of examples: how a document shortens JSON, and when the real output agrees with it."""

import json

from tests.readme_output import covers, form, shortened

ANSWER = {
    "id": "cmpl-1",
    "object": "list",
    "data": [{"text": "one " * 20, "values": [0.5] * 40, "index": index} for index in range(3)],
}


def test_long_json_is_laid_out_and_shortened() -> None:
    shown = shortened(json.dumps(ANSWER))
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "[0.5, 0.5, 0.5, ...]" in shown
    assert '"id"' not in shown


def test_short_lines_and_other_text_stay() -> None:
    assert shortened('data: {"a": 1}\nplain text') == 'data: {"a": 1}\nplain text'


def test_shortened_output_covers_the_real_one() -> None:
    real = json.dumps(ANSWER)
    assert covers(form(shortened(real)), form(real))
    assert covers(form(shortened(f"data: {real}\n\ndata: [DONE]")), form(f"data: {real}\n\ndata: [DONE]"))


def test_a_field_that_is_missing_or_of_another_type_is_found() -> None:
    real = json.dumps(ANSWER)
    shown = form(shortened(real))
    assert not covers(shown, form(real.replace('"values"', '"numbers"')))
    assert not covers(shown, form(real.replace("0.5", '"0.5"')))
    assert not covers(form('{"a": 1}'), form('{"a": 1, "b": 2}'))
    assert not covers(form('{"a": 1, ...}'), form('{"b": 2, "c": 3}'))
