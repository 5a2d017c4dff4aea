"""The example of docs/ray.md on a real Ray with two nodes: a data set through engines in Ray Data's actors.

Ray runs in processes of its own, as it does for users; and its warnings are not this project's.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightwell.server.library.llm import LLM
from tests.source_tree import ROOT

pytest.importorskip("ray", reason="Ray is not installed (the extra nightly)")
pytestmark = pytest.mark.nightly

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}
"""Environment of the tests; the third keeps Ray on the loopback interface."""
NUM_ROWS = 60


def test_the_example_gives_each_row_the_answer_of_one_engine(only_cluster: None, tmp_path: Path) -> None:
    (example,) = re.findall(
        r"```python\n(import ray\n.*?)```", (ROOT / "docs" / "ray.md").read_text("utf-8"), re.DOTALL
    )
    prompts = [f"Story {number} is about" for number in range(NUM_ROWS)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [
        json.loads(line) for path in (tmp_path / "answers").glob("*.json") for line in path.read_text().splitlines()
    ]
    found = {row["prompt"]: row["answer"] for row in rows}
    with LLM("fables", dtype="float32") as llm:
        expected = [each.text for each in llm.generate(prompts, max_tokens=32, temperature=0, use_tqdm=False)]
    assert len(rows) == NUM_ROWS
    assert [found[prompt] for prompt in prompts] == expected
