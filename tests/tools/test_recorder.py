"""The recorder of `tests.tools.recorder`: its requests, its comparison, and the same answers in any company."""

import json
from pathlib import Path

import pytest

from tests.tools import recorder
from tests.tools.recorded_requests import all_requests


def test_there_are_2000_requests_and_they_are_always_the_same() -> None:
    requests = all_requests()
    assert len(requests) == 2000
    assert requests == all_requests()


def test_a_comparison_shows_the_requests_whose_answers_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"site": "chat", "method": "POST", "path": "/tokenize", "headers": {}, "body": "{}", "status": 200}
    files = [tmp_path / "a", tmp_path / "b"]
    for file, answer in zip(files, ('{"tokens":[1,2]}', '{"tokens":[1,3]}'), strict=True):
        file.write_text(json.dumps({**line, "answer": answer}) + "\n", encoding="utf-8")
    assert recorder.main(["--compare", str(files[0]), str(files[0])]) == 0
    assert recorder.main(["--compare", *map(str, files)]) == 1
    told = capsys.readouterr().out
    assert "request 0: chat POST /tokenize" in told
    assert "-2]" in told
    assert "+3]" in told


@pytest.mark.nightly
def test_an_answer_is_the_same_alone_and_next_to_fifteen_others() -> None:
    alone, together = recorder.without_company(recorder.run()), recorder.without_company(recorder.run(at_once=16))
    assert not list(recorder.differences(alone, together))
    refused = sum(line["status"] >= 400 for line in alone)
    assert 400 <= refused <= 700
    assert all(line["status"] < 500 for line in alone)
