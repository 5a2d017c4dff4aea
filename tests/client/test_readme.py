"""Checks that the client's README is true: its blocks run (on the real server: test_against_server), and it names
every method.
"""

import re
from pathlib import Path
from typing import Any

from lightwell_client import Client

README = Path(__file__).parents[2] / "clients/python/README.md"


def run_blocks(url: str) -> dict[str, Any]:
    """Run all Python blocks one after another in one namespace, as a reader would paste them, and return it."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    namespace: dict[str, Any] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000", url), str(README), "exec"), namespace)
    return namespace


def test_the_main_methods_stand_in_the_readme() -> None:
    text = README.read_text()
    minor = {"chat_stream", "close", "capabilities", "version"}
    for method in (name for name, value in vars(Client).items() if callable(value) and not name.startswith("_")):
        assert method in minor or f"client.{method}(" in text, method
