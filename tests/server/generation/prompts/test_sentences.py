"""Sentences of plain text, Markdown and code."""

import random

import pytest

from lightwell.server.generation.prompts.sentences import sentences


def texts(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("Dr. Smith met J. K. Rowling, e.g. in May.", ["Dr. Smith met J. K. Rowling, e.g. in May."]),
        ("It costs 3.14 dollars. 20 were sold.", ["It costs 3.14 dollars.", "20 were sold."]),
        ("He waited... and left.", ["He waited... and left."]),
        ("日本語です。次の文。", ["日本語です。", "次の文。"]),
        ("", []),
        (" \n\t ", []),
    ],
)
def test_plain_text_is_divided_after_its_punctuation(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


def test_a_sentence_goes_on_in_the_next_line_of_wrapped_text() -> None:
    wrapped = "This sentence is wrapped at some width, and so it\ngoes on in the next line. The next one\nis short."
    assert texts(wrapped) == [
        "This sentence is wrapped at some width, and so it\ngoes on in the next line.",
        "The next one",
        "is short.",
    ]


def test_items_headings_and_rows_of_markdown_are_sentences() -> None:
    text = (
        "# A title\n\nThe reasons, all of which are in this long list:\n- first\n- second, which is wrapped in the "
        "source of this text\n  and ends here\n1. Third. Still third.\n| a | b |\n| 1 | 2 |\n"
    )
    assert texts(text) == [
        "# A title",
        "The reasons, all of which are in this long list:",
        "- first",
        "- second, which is wrapped in the source of this text\n  and ends here",
        "1. Third.",
        "Still third.",
        "| a | b |",
        "| 1 | 2 |",
    ]


def test_each_line_of_code_is_a_sentence() -> None:
    code = '```python\nprint("One. Two.", "a long line of code that no other line continues")\nreturn x\n```'
    assert texts(code) == code.split("\n")


def test_a_fenced_block_without_a_language_is_text() -> None:
    assert texts("notes.txt:\n```\nOne. Two.\n```\nThree. Four.") == [
        "notes.txt:",
        "```",
        "One.",
        "Two.",
        "```",
        "Three.",
        "Four.",
    ]


def test_the_ranges_cover_all_but_white_space() -> None:
    for seed in range(50):
        draw = random.Random(seed)
        text = "".join(draw.choices(["a", "B", ". ", "! ", "\n", "\r\n", " ", "- ", "```", "    ", "。", "1. "], k=80))
        places = sentences(text)
        ends = [0, *[end for _, end in places]]
        assert all(start < end for start, end in places)
        assert all(not text[end:start].strip() for end, (start, _) in zip(ends, places, strict=False))
        assert not text[ends[-1] :].strip()
        assert all(part == part.strip() for part in texts(text))
