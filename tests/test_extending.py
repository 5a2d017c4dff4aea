"""docs/extending.md: each of its changes is applied to a copy of the project, and has the described effect there."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.source_tree import ROOT
from tests.support.chromium import find_chromium
from tests.support.processes import Server, running, serve_command
from tests.support.wire import samples

CHANGES: dict[str, str] = dict(
    re.findall(r"^## (.*?)\n.*?^```diff\n(.*?)^```$", (ROOT / "docs" / "extending.md").read_text(), re.M | re.S)
)
"""The diff of each section, by its heading."""
FAMILY, KERNEL, VIEW = "A family of models", "A kernel for the CPU", "A view of the page"
COPIED = ("model", "server", "clients", "src", "pyproject.toml")


def copy_of_the_project(folder: Path) -> Path:
    """Return a copy of the running code and its compiled kernels, without the family of the first section, which the
    project has.
    """
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    apply(FAMILY, folder, "--reverse")
    return folder


def apply(heading: str, folder: Path, *options: str) -> None:
    command = ["git", "apply", "--whitespace=nowarn", *options]
    subprocess.run(command, input=CHANGES[heading], text=True, cwd=folder, check=True)


def python(folder: Path, *arguments: str) -> str:
    """Run Python in a copy, with its code before any installed code, and return the output."""
    path = os.pathsep.join(map(str, (folder / "src", folder, folder / "clients" / "python")))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with every change but the kernel, which would have all kernels compiled again."""
    folder = copy_of_the_project(tmp_path_factory.mktemp("changed"))
    for heading in CHANGES.keys() - {KERNEL}:
        apply(heading, folder)
    python(folder, "clients/python/write_client.py")
    return folder


@pytest.fixture(scope="module")
def server(changed: Path) -> Iterator[Server]:
    """A server of the default model that runs the copy's code."""
    path = {"PYTHONPATH": str(changed / "src")}
    with running(serve_command(()), 0, "/health/ready", 600.0, environment=path, folder=changed) as started:
        yield started


def ask(server: Server, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_each_change_applies_alone(tmp_path: Path) -> None:
    assert len(CHANGES) == 6
    folder = copy_of_the_project(tmp_path)
    for heading in CHANGES:
        apply(heading, folder)
        if heading == FAMILY:  # the project's own
            for name in ("registry.py", "families/smollm3.py"):
                path = Path("model/checkpoint") / name
                assert (folder / path).read_text() == (ROOT / path).read_text()
        apply(heading, folder, "--reverse")
        assert not (folder / "model/checkpoint/families/smollm3.py").exists()


_COMPARES_SMOLLM3 = """
import sys, tempfile
from pathlib import Path
import torch
from transformers import SmolLM3Config, SmolLM3ForCausalLM
from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model

sizes = dict(vocab_size=60, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
config = SmolLM3Config(
    **sizes, num_key_value_heads=2, max_position_embeddings=64, no_rope_layer_interval=2, use_sliding_window=True,
    sliding_window=7, pad_token_id=1, bos_token_id=0, eos_token_id=0, attn_implementation="eager"
)
theirs = SmolLM3ForCausalLM(config).eval()
folder, cpu, ids = Path(tempfile.mkdtemp()), torch.device("cpu"), torch.randint(60, (20,)).tolist()
theirs.save_pretrained(folder)
ours = load_model(folder, read_config(folder), torch.float32, cpu)
cache = KVCache(ours.cache_config, 4, 16, torch.float32, cpu)
logits = ours.logits(ours.forward(Batch([Span(ids, 0, [1, 2], 2)], 16, cpu), cache, None))
print(float((logits - theirs(torch.tensor([ids])).logits[0]).abs().max()))
"""


_NAMES_ARCHITECTURES = """
from lightwell.model.checkpoint.registry import ARCHITECTURES
print(*ARCHITECTURES)
"""


@pytest.mark.nightly
def test_the_family_computes_what_transformers_computes(changed: Path, tmp_path: Path) -> None:
    assert "SmolLM3ForCausalLM" not in python(copy_of_the_project(tmp_path), "-c", _NAMES_ARCHITECTURES)
    assert "SmolLM3ForCausalLM" in python(changed, "-c", _NAMES_ARCHITECTURES)
    assert float(python(changed, "-c", _COMPARES_SMOLLM3)) < 1e-4


@pytest.mark.nightly
def test_the_sampling_parameter_leaves_the_tokens_that_it_should(server: Server) -> None:
    body = {"prompt": "Once upon a time there was a", "max_tokens": 1, "n": 40, "seed": 1}
    texts = [choice["text"] for choice in ask(server, "/v1/completions", {**body, "epsilon_cutoff": 0.06})["choices"]]
    told = ask(server, "/v1/next", {"input": body["prompt"], "num_tokens": 20})["data"][0]["temperatures"][0]
    allowed = {token["token"] for token in told["tokens"] if token["probability"] >= 0.06}
    assert set(texts) == allowed
    assert len({choice["text"] for choice in ask(server, "/v1/completions", body)["choices"]}) > len(allowed)


@pytest.mark.nightly
def test_the_metric_counts(server: Server) -> None:
    for logprobs in (None, 2):
        ask(server, "/v1/completions", {"prompt": "The fox", "max_tokens": 1, "logprobs": logprobs})
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        assert samples(answer.read().decode())["lightwell_logprobs_requests_total"] == 1


_ASKS_FOR_NORMS = """
import sys
import numpy as np
from lightwell_client import Client

client = Client(sys.argv[1])
norms = client.norms("The old king")["norms"]
stream = client.trace("The old king", "hook_resid_post")
print(np.abs(norms - [np.linalg.norm(stream[f"blocks.{i}.hook_resid_post"], axis=-1) for i in range(6)]).max())
"""


@pytest.mark.nightly
def test_the_route_answers_and_the_client_has_its_method(changed: Path, server: Server) -> None:
    assert float(python(changed, "-c", _ASKS_FOR_NORMS, server.url)) < 1e-3


@pytest.mark.tool
@pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="make test-nightly compiles the kernels of the copy")
def test_the_kernel_computes(tmp_path: Path) -> None:
    folder = copy_of_the_project(tmp_path)
    apply(KERNEL, folder)
    python(folder, "model/kernels/build.py")
    code = "import torch; from lightwell.model.kernels.lengths import lengths; x = torch.randn(7, 33); "
    assert float(python(folder, "-c", code + "print(float((lengths(x) - x.norm(dim=1)).abs().max()))")) < 1e-5


@pytest.mark.tool
@pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="make test-nightly opens the view in a browser")
def test_the_view_shows_the_tokens(server: Server) -> None:
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{server.url}/#view=tokens&text=The+old+king")
        expect(page.locator("#view-tokens li")).to_have_text(["The", "old", "king"])
        browser.close()
