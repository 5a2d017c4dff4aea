"""Strange values of flags and environment variables: a start ends with one short line that names the flag."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.server.cli import build_parser, main
from lightwell.server.config.auth.keys import hash_of
from lightwell.server.config.command_line import from_arguments
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.lifecycle.app import ServeError, serve

BYTES = "\udcff"
"""The character that Python reads for a byte that is not UTF-8."""
MOST_CHARACTERS = 1000


def read(*arguments: str) -> Settings:
    return from_arguments(build_parser().parse_args(["serve", *arguments]), {})


def why_refused(*arguments: str) -> str:
    """Return the error of a start in this process, which it ends before it starts any other process."""
    with (
        patch("lightwell.server.lifecycle.app.configure_logging"),
        pytest.raises((ServeError, SettingsError)) as caught,
    ):
        serve(read(*arguments), engine_factory="none:none")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < MOST_CHARACTERS
    return message


@pytest.mark.parametrize("host", ["x..y", "x" * 5000, ".", "x" * 64 + ".org", "1.2.3.4.5", "a b"])
def test_a_host_that_is_no_name_is_named(host: str) -> None:
    message = why_refused("fables", "--port", "0", "--host", host)
    assert message.startswith(f"--host {host!r:.200} is not an address of this machine")


def test_a_health_check_of_no_host_and_of_bad_settings_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lightwell.server.lifecycle.health_check.serve_arguments", lambda: ["--host", "x..y"])
    assert main(["health"]) == 1
    assert capsys.readouterr().err.startswith("lightwell: error: x..y:8000 does not answer")
    monkeypatch.setenv("LIGHTWELL_PORT", "http")
    assert main(["health"]) == 2
    assert capsys.readouterr().err.startswith("lightwell: error: LIGHTWELL_PORT: 'http'")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300, "~nobody-has-this-name/model", "a/" * 3000])
def test_a_model_that_no_file_system_can_hold_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert why_refused(name).startswith(f"model {name!r:.200}")


@pytest.mark.parametrize("folder", ["x" * 5000, "~nobody-has-this-name/model", "/dev/null"])
def test_a_root_of_adapters_that_is_no_folder_is_named(folder: str) -> None:
    assert why_refused("fables", "--lora-root", folder).startswith(f"--lora-root {folder!r:.200} is not a folder")


def test_an_adapter_of_an_unknown_user_is_a_path_like_any_other() -> None:
    config = read("--lora", "a=~nobody-has-this-name/x").engine_config(PACKAGED)
    assert [str(adapter.folder) for adapter in config.adapters] == ["~nobody-has-this-name/x"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "9" * 5000),
        ("--max-num-queued-tokens", "9" * 400),
        ("--max-model-len", "1" + "0" * 30),
        ("--devices", "9" * 5000),
        ("--request-timeout", "9" * 400),
        ("--shutdown-grace", "9" * 10),
        ("--max-kv-demand", "9" * 400),
        ("--dtype", "x" * 100_000),
        ("--cors-origin", "https://" + "x" * 100_000 + "/"),
        ("--root-path", "/a//b"),
        ("--root-path", "/a b"),
        ("--root-path", "/\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("--served-model-name", f"a{BYTES}"),
        ("--model", f"a{BYTES}"),
        ("--host", f"a{BYTES}"),
        ("--chat-template", "{{ messages }}" + BYTES),
        ("--cors-origin", BYTES),
    ],
)
def test_a_value_that_is_too_large_or_no_text_is_refused_with_its_flag(flag: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(flag, value)
    assert str(caught.value).startswith(flag)
    assert len(str(caught.value)) < MOST_CHARACTERS


def test_a_key_that_is_no_text_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="--api-key: the value is not usable; text in UTF-8 is accepted"):
        read("--api-key", f"sesame{BYTES}")


def test_two_dashes_after_an_equals_sign_are_the_value() -> None:
    """Check that such a key locks the server: argparse of Python 3.11 drops the dashes."""
    found = read("--api-key=--", "--host=--", "--lora=a=--")
    assert (found.api_key, found.host, found.lora) == ((hash_of("--"),), "--", (("a", "--"),))
    assert read("--api-key=--", "--api-key=x").api_key == (hash_of("--"), hash_of("x"))
    with pytest.raises(SettingsError, match="--port: '--' is not usable"):
        read("--port=--")


@pytest.fixture
def unreadable(tmp_path: Path) -> list[str]:
    """Return paths that are no text of bounded size: devices, a long name, a pipe, a folder, bytes and a long file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text(" " * 5_000_000)
    return ["/dev/zero", "/dev/null", "x" * 5000, *(str(tmp_path / name) for name in ("pipe", "", "bytes", "long"))]


def test_a_chat_template_is_read_from_a_file_of_bounded_size(unreadable: list[str]) -> None:
    for path in unreadable:
        message = why_refused("fables", "--chat-template", path)
        assert message.startswith(f"--chat-template {path!r:.200} is not a jinja template and not a readable file"), (
            message
        )


def test_a_key_file_is_a_file_of_bounded_size(unreadable: list[str]) -> None:
    for path in unreadable:
        assert f"{path:.200}" in why_refused("fables", "--api-key-file", path)


def test_a_text_to_predict_is_a_file(unreadable: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for path in unreadable[:-1]:
        assert main(["perplexity", "fables", "--text", path]) == 1
        error = capsys.readouterr().err
        assert f"{path:.200}" in error
        assert ("UTF-8" in error) == path.endswith("bytes")
        assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_of_the_model_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    for path in PACKAGED.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/proc/sys/vm/compact_memory")  # unreadable, also for root
    assert why_refused(str(tmp_path)) == f"{tmp_path / name}: cannot be read (Permission denied)"
