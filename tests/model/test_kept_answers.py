"""What kernels were found to do is asked once a machine, and again where nothing readable was kept."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.layers import kept_answers
from model.layers.kept_answers import keep_in, kept


class Question:
    """A function that counts how often it is asked; what it answers is kept."""

    def __init__(self) -> None:
        self.asked: list[int] = []

        @kept
        def is_even(number: int) -> bool:
            self.asked.append(number)
            return number % 2 == 0

        self.is_even = is_even


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    keep_in(tmp_path / "answers")
    yield tmp_path / "answers"
    keep_in(None)


def test_each_question_is_asked_once(folder: Path) -> None:
    first, second = Question(), Question()
    assert [first.is_even(n) for n in (1, 2, 1)] == [False, True, False]
    assert [second.is_even(n) for n in (2, 1, 3)] == [True, False, False]  # as another process would
    assert (first.asked, second.asked) == ([1, 2], [3])
    assert [path.suffix for path in folder.iterdir()] == [".json"]  # no half-written file is left


def test_another_machine_asks_for_itself(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    first, second = Question(), Question()
    first.is_even(1)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    kept_answers._machine.cache_clear()
    keep_in(folder)
    second.is_even(1)
    kept_answers._machine.cache_clear()
    assert second.asked == [1]


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"is_even(1'])
def test_a_damaged_file_is_as_good_as_none(folder: Path, content: str) -> None:
    Question().is_even(1)
    next(folder.iterdir()).write_text(content)
    question = Question()
    assert not question.is_even(1)
    assert question.asked == [1]
    assert not question.is_even(1)
    assert question.asked == [1]


def test_where_nothing_can_be_written_it_is_asked_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    keep_in(tmp_path / "file" / "folder")
    question = Question()
    assert question.is_even(2)
    assert question.asked == [2]


def test_it_is_kept_with_what_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.fspath(tmp_path))
    assert kept_answers.default_folder() == tmp_path
