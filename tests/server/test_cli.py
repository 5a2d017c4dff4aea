"""The command line, as a person meets it."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from server.cli import main


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"lightwell {version('lightwell')}\n"


def test_without_a_command_it_says_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "usage: lightwell" in capsys.readouterr().err


def test_help_shows_flags_variables_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--max-num-seqs N" in text
    assert "LIGHTWELL_MAX_NUM_SEQS; default: 64" in text


def test_a_bad_value_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "http"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lightwell: error: --port: 'http'")
    assert captured.err.count("\n") == 1


def test_a_bad_value_is_found_before_anything_heavy_is_imported() -> None:
    code = "import sys; from server.cli import main; main(['serve', '--port', 'x']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "litserve", "fastapi"} & set(done.stdout.split())
