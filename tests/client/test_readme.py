"""The client's README is true: its blocks run, in order, and every method of the client stands in it."""

import re
from pathlib import Path

import pytest

from lightwell_client import Client
from tests.client.wire_server import WireServer

README = Path(__file__).parents[2] / "clients/python/README.md"


def run_blocks(url: str) -> None:
    """All Python blocks one after another in one namespace, as a reader would paste them."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000", url), str(README), "exec"), namespace)


def test_the_readmes_blocks_run(
    server: WireServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(server.url)
    assert (tmp_path / "heat_map.png").read_bytes().startswith(b"\x89PNG")
    assert "looks most at 'T'" in capsys.readouterr().out


def test_the_main_methods_stand_in_the_readme() -> None:
    text = README.read_text()
    for method in ("generate", "stream", "chat", "attention", "embed", "tokenize", "detokenize", "models", "health"):
        assert hasattr(Client, method)
        assert f"client.{method}(" in text
