"""The examples run as their first lines say."""

import subprocess
import sys
from pathlib import Path

from tests.client.test_attention import causal, one
from tests.client.wire_server import WireServer

EXAMPLES = Path(__file__).parents[2] / "clients/python/examples"


def run(name: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def test_the_heat_map_is_a_page_with_a_picture_for_each_head(server: WireServer, tmp_path: Path) -> None:
    one(server, causal(2, 3))
    done = run("attention_heat_map.py", "The fox", "--layer", "-1", "--base-url", server.url, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "attention.html").read_text(encoding="utf-8").count("<img") == 6
    assert server.seen[0].body == {"input": "The fox", "layers": -1}


def test_the_search_lists_the_nearest_lines_first(server: WireServer, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("aa\n\nbbbbbb\nc\n", encoding="utf-8")
    done = run("embedding_search.py", "lines.txt", "query", "--top", "2", "--base-url", server.url, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "query\n  30.000  bbbbbb\n  10.000  aa\n"


def test_an_example_ends_with_one_line_when_no_server_is_there(tmp_path: Path) -> None:
    done = run("attention_heat_map.py", "x", "--base-url", "http://127.0.0.1:9", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
