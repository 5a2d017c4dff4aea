"""vLLM's own offline examples, unmodified after their imports and arguments, with our `LLM`.

They are read from vLLM's source distribution, which the package index has; nothing of it is installed.
"""

import argparse
import io
import re
import subprocess
import sys
import tarfile
import types
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lightwell.server.library.llm import LLM, SamplingParams
from tests.readme import minilm

pytestmark = [pytest.mark.nightly, pytest.mark.tool]

VERSION = "0.33.0"
RERANKER = Path(__file__).parents[1] / "e2e" / "reranker"
MODELS = {"basic": "smollm2", "chat": "smollm2", "embed": minilm()[0], "score": str(RERANKER)}


@pytest.fixture(scope="module")
def examples() -> dict[str, str]:
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = re.search(r"^\S*\bindex-url='(.*)'$", listed.stdout.replace("extra-index-url", "extra"), re.MULTILINE)
    page = f"{(found[1] if found else 'https://pypi.org/simple').rstrip('/')}/vllm/"
    with urllib.request.urlopen(page, timeout=60) as answer:
        (link,) = re.findall(rf'href="([^"]*vllm-{re.escape(VERSION)}\.tar\.gz)[#"]', answer.read().decode())
    with urllib.request.urlopen(urllib.parse.urljoin(page, link), timeout=600) as answer:
        content = io.BytesIO(answer.read())
    with tarfile.open(fileobj=content) as archive:
        folder = f"vllm-{VERSION}/examples/basic/offline_inference"
        members = {name: archive.extractfile(f"{folder}/{name}.py") for name in MODELS}
        return {name: file.read().decode() for name, file in members.items() if file is not None}


class EngineArgs:
    """vLLM's arguments of the engine, as far as the examples set them."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        for name in ("--model", "--runner"):
            parser.add_argument(name, default=argparse.SUPPRESS)
        parser.add_argument("--enforce-eager", action="store_true", default=argparse.SUPPRESS)
        return parser


def modules() -> dict[str, types.ModuleType]:
    """Return the modules of vLLM that the examples import."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": LLM, "SamplingParams": SamplingParams, "EngineArgs": EngineArgs},
        "vllm.outputs": {"RequestOutput": object},
        "vllm.utils": {},
        "vllm.utils.argparse_utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
        "vllm.utils.print_utils": {"print_embeddings": lambda vector: print(f"{len(vector)} numbers")},
    }
    found = {}
    for name, names in contents.items():
        found[name] = types.ModuleType(name)
        vars(found[name]).update(names)
    return found


@pytest.mark.filterwarnings("ignore:.* has no effect here")
@pytest.mark.parametrize(
    ("name", "arguments", "printed", "count"),
    [
        ("basic", [], "Output:    ", 4),
        ("chat", ["--max-tokens", "8", "--temperature", "0"], "Generated text: ", 11),
        ("embed", [], "\n384 numbers\n", 4),
        ("score", [], "\nScore: ", 2),
    ],
)
def test_an_example_runs(
    examples: dict[str, str],
    name: str,
    arguments: list[str],
    printed: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module, content in modules().items():
        monkeypatch.setitem(sys.modules, module, content)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    source = re.sub(r'(model=)"[^"]+"', rf'\1"{MODELS[name]}"', examples[name])
    exec(compile(source, name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.count(printed) == count
