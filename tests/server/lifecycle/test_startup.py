"""Starts of `lightwell serve`, and starts that end with one line: the real command, partly with the real engine."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.checkpoint.generation_defaults import SamplingDefaults
from lightwell.model.checkpoint.resolve import name_of
from lightwell.server.cli import build_parser
from lightwell.server.config.command_line import from_arguments
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.config.size_checks import check_sizes
from lightwell.server.lifecycle.app import ServeError, serve
from lightwell.server.lifecycle.model_files import load_model_files
from tests.server.running import ROOT, running_server

MODULE = "tests.server.lightwell_command"
MOST_THREADS = 4 * (os.cpu_count() or 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged model, to be damaged."""
    return Path(shutil.copytree(PACKAGED, tmp_path / "model"))


def test_a_start_that_fails_prints_one_line_and_a_warning_before_it_where_there_is_one(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    command = [sys.executable, "-m", "lightwell", "serve", "--port", "0", missing, "--host", "0.0.0.0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (1, "")
    warning, error = done.stderr.splitlines()
    assert "every client of 0.0.0.0 may use this server: it has no API key" in warning
    assert error.startswith("lightwell: error: ")
    assert missing in error


def refused(*arguments: str) -> str:
    """Return the error of a start in this process, which fails before it starts any other process."""
    settings = from_arguments(build_parser().parse_args(["serve", "--port", "0", *arguments]), {})
    with patch("lightwell.server.lifecycle.app.configure_logging"), pytest.raises(ServeError) as caught:
        serve(settings, engine_factory="none:none")
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "::1"], False),
        (["--host", "localhost"], False),
        (["--host", "0.0.0.0", "--api-key", "k"], False),
    ],
)
def test_a_server_that_is_open_to_other_machines_says_so(
    tmp_path: Path, arguments: list[str], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    refused(str(tmp_path / "nothing"), *arguments)
    assert ["every client of 0.0.0.0" in line and " has no API key " in line for line in caplog.messages] == [
        True
    ] * warns


@pytest.mark.parametrize(
    ("changed", "flags", "said"),
    [
        ({"config.json": '{"architectures": ["SonnetForCausalLM"]}'}, (), "SonnetForCausalLM"),
        ({"tokenizer.json": "{"}, (), "tokenizer.json"),
        ({}, ("--chat-template", "{% if %}"), "template"),
        ({}, ("--max-model-len", "100000"), "--max-model-len 100000"),
        ({}, ("--threads", str(MOST_THREADS + 1)), f"at most {MOST_THREADS}, 4 for each core, are accepted"),
    ],
)
def test_what_cannot_be_served_is_named(
    changed: dict[str, str], flags: tuple[str, ...], said: str, folder: Path
) -> None:
    for name, text in changed.items():
        (folder / name).write_text(text)
    assert said in refused(str(folder), *flags)


@pytest.mark.parametrize("flag", ["--max-capture-bytes", "--max-response-bytes", "--max-body-bytes", "--worker-memory"])
def test_a_size_over_the_memory_of_the_machine_is_refused_with_both(flag: str) -> None:
    line = refused("fables", flag, "100TiB")
    assert line.startswith(f"{flag} 100TiB is more than the memory of this machine, or the limit of its container: ")


def test_sizes_that_nobody_set_are_not_held_against_a_small_container(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:        65536 kB\n")
    check_sizes(Settings(), tmp_path)
    with pytest.raises(SettingsError, match=r"--max-body-bytes 65MiB .* 67108864 bytes \(0\.1 GiB\); at most that is"):
        check_sizes(Settings(max_body_bytes=65 << 20), tmp_path)
    check_sizes(Settings(kv_cache_memory=1 << 40), tmp_path)  # may fit on a GPU: only the worker can check it


def test_a_taken_port_is_named_before_any_card_is_looked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("fables", "--port", str(port), "--device", "cpu", "--devices", "0,1")
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line


def test_truncated_weights_end_the_start_from_within_the_worker(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    with running_server(str(folder), module=MODULE) as server:
        assert server.wait_exit() == 1
        lines = server.output.splitlines()
        assert len(lines) == 2
        assert lines[1].startswith("lightwell: error: ")
        assert "model.safetensors" in lines[1]
        server.wait_all_gone()


def test_the_model_that_answers_names_the_capital_of_france_and_shows_all_its_heads() -> None:
    """SmolLM2-135M-Instruct, from the GGUF file in its package: `make install` installs it."""
    with running_server("smollm2", module=MODULE) as server:
        server.wait_ready()
        question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
        answer = server.post("/v1/chat/completions", question | {"max_tokens": 20}).json()
        assert answer["model"] == "smollm2"
        assert "Paris" in answer["choices"][0]["message"]["content"]
        asked = {"input": "The capital of France is", "layers": "all", "heads": "all", "dtype": "float16"}
        patterns = server.post("/v1/attention", asked | {"encoding_format": "base64"}).json()["data"][0]
        assert patterns["shape"][:2] == [30, 9]
        lens = {"input": "The capital of France is", "layers": [-1], "positions": [-1], "top_k": 1}
        assert server.post("/v1/lens", lens).json()["data"][0]["top_tokens"] == [[[" Paris"]]]


def read(**flags: str) -> Settings:
    return Settings.from_sources(flags, {})


def test_the_name_on_the_wire_is_the_given_one_the_hub_id_or_the_folders_last_part(folder: Path) -> None:
    files = load_model_files(read(model="fables"))
    assert (files.folder, files.id) == (PACKAGED, "fables")
    assert load_model_files(read(model=str(folder), served_model_name="mine")).id == "mine"
    assert name_of("org/name", folder) == "org/name"
    assert [name_of(path, folder) for path in (str(folder), f"{folder}/config.json/", "")] == ["llama"] * 3


@pytest.mark.parametrize("source", ["auto", "vllm"])
def test_generation_config_says_whether_requests_begin_from_the_models_own_settings(source: str, folder: Path) -> None:
    own = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1)
    (folder / "generation_config.json").write_text(json.dumps(asdict(own)))
    defaults = load_model_files(read(model=str(folder), generation_config=source)).sampling_defaults
    assert defaults == (own if source == "auto" else SamplingDefaults())


MAIN = """
import multiprocessing
import sys
import threading
from lightwell.command import main

def tell():
    for thread in threading.enumerate():
        if thread.name == "read-torch":
            thread.join()
    print("libtorch_cpu" in open("/proc/self/maps").read(), "torch" in sys.modules, flush=True)

if __name__ == "__main__":
    tell()
    worker = multiprocessing.get_context("spawn").Process(target=tell)
    worker.start()
    worker.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_loads_torchs_library_beside_its_modules_and_its_parent_never_does(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout.splitlines() == ["False False", "True False"], done.stderr


NOT_IN_A_CLONE = shutil.ignore_patterns("__pycache__", "kernels.so", "kernels.dylib", "kernels.pyd")
CONSOLE_SCRIPT = """
import sys
from lightwell.command import main
if __name__ == "__main__":
    sys.exit(main())
"""
"""The script that pip makes of the entry point."""


@pytest.mark.parametrize("installed", ["clone", pytest.param("wheel", marks=pytest.mark.nightly)])
def test_a_start_runs_no_foreign_code_leaves_no_file_and_does_without_kernels(
    installed: str, folder: Path, tmp_path: Path
) -> None:
    """No code of the working directory runs, and no foreign package is imported in place of ours.

    Check against the old failure: `cd folder && lightwell serve .` ran the folder's socket.py in the worker and in
    multiprocessing's helper.
    """
    marks = tmp_path / "marks"
    marks.mkdir()
    mark = f"open({str(marks)!r} + '/' + __name__, 'w').close()\n"
    for name in ("socket", "signal", "numpy", "torch", "sitecustomize"):
        (folder / f"{name}.py").write_text(mark)
    foreign, ours, home = tmp_path / "foreign", tmp_path / "installed", tmp_path / "home"
    home.mkdir()
    for package in (folder / "server", folder / "model", foreign / "server", foreign / "model"):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(mark)
    if installed == "wheel":
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
            wheel.extractall(ours)
    else:
        shutil.copytree(ROOT / "src", ours, ignore=NOT_IN_A_CLONE)
    script = tmp_path / "bin" / "lightwell"
    script.parent.mkdir()
    script.write_text(CONSOLE_SCRIPT)
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, (foreign, ours))),
        "HOME": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",  # without Python's own cache, as in the image
    }
    before = sorted(tmp_path.rglob("*"))
    with running_server("serve", ".", "--no-compile", script=script, cwd=folder, **environment) as server:
        server.wait_ready()
        assert server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}).status_code == 200
        told = server.get("/v1/capabilities").json()
        assert (told["kernels"], told["kernel_level"], told["same_bits_across"]) == ("torch", None, None)
        assert "warning: --no-compile" in server.output
        assert re.search(r"worker 0 is ready: bfloat16 on cpu, \d+ blocks of 32 tokens in its KV cache", server.output)
        assert "\x1b" not in server.output, "a log has no colours"
        assert "curl" not in server.output, "the greeting is for a terminal"
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        server.wait_all_gone()
        assert [path.name for path in server.tmp.rglob("*")] == ["output"]
    assert sorted(tmp_path.rglob("*")) == before
