"""The command line, as a user sees it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.model.kernels import library
from lightwell.model.kernels.cpus import CpuRow
from lightwell.server.cli import forget_keys, main
from lightwell.server.config.auth.keys import Keyring
from lightwell.server.config.kernel_report import measure
from lightwell.server.lifecycle.health_check import serve_arguments
from tests.model.kernels.levels import at_level


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


def test_a_bad_value_is_one_line_before_anything_heavy_is_imported() -> None:
    code = "import sys; from lightwell.server.cli import main; print(main(['serve', '--port', 'http']), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("lightwell: error: --port: 'http'")
    assert done.stderr.count("\n") == 1
    status, *modules = done.stdout.split()
    assert status == "2"
    assert not {"torch", "litserve", "fastapi"} & set(modules)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--prot", "9000"], "`lightwell serve` has no option --prot; did you mean '--port' or '--host'?"),
        (["serve", "--max-model-length=9"], "has no option --max-model-length; did you mean '--max-model-len'"),
        (["srve"], "; did you mean 'serve'?"),
        (["serve", "a", "b"], "'b' is one argument too many"),
    ],
)
def test_wrong_options_and_commands_suggest_the_nearest(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("lightwell: error: ")
    assert message in line


GPT3 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 50257, "n_embd": 12288, "n_layer": 96,
    "n_head": 96, "n_positions": 2048,
}  # fmt: skip
"""The shape of GPT-3 (Brown et al. 2020, arXiv:2005.14165, table 2.1) as GPT-2 ties it."""


@pytest.mark.parametrize("name", ["gpt3.json", "config.json", ""])
def test_census_counts_a_configuration_without_weights(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / (name or "config.json")).write_text(json.dumps(GPT3))
    assert main(["census", str(tmp_path / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("query"))
    assert row.split() == ["query", "qkv.weight", "128", "x", "12,288", "9,216", "14,495,514,624", "8.30%", "8.275%"]
    shares = {line.split()[0]: line.split()[-1] for line in lines if line.endswith("%")}
    published = {"query": "8.275%", "up": "33.098%", "down": "33.098%", "embedding": "0.353%", "unembedding": "0.353%"}
    assert published.items() <= shares.items(), "as the table of GPT-3's matrices is printed"
    assert "tied to embed.weight" in next(line for line in lines if line.startswith("unembedding"))
    assert lines[-2].startswith("174,604,259,328 parameters in all (tied storage counted once)")
    assert lines[-1].startswith("175,181,291,520 in 27,938 matrices")


def test_census_as_json_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GPT3))
    assert main(["census", "--json", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["total"], told["matrices_untied"], told["tied"]) == (174_604_259_328, 175_181_291_520, True)
    assert sum(row["parameters"] for row in told["rows"] if not row["tied_to"]) == told["total"]
    assert sum(row["share"] for row in told["rows"]) == pytest.approx(1.0)
    assert sum(row["share_of_matrices"] or 0 for row in told["rows"]) == pytest.approx(1.0)
    assert sum(part["share_of_matrices"] or 0 for part in told["components"]) == pytest.approx(1.0)
    assert sum(component["share"] for component in told["components"]) == pytest.approx(1.0)


def test_census_of_what_is_no_configuration_is_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("not JSON")
    for name in ("notes.txt", "missing/or not", "."):
        assert main(["census", str(tmp_path / name)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("lightwell: error: ")
        assert captured.err.count("\n") == 1


def test_census_for_a_reader_that_has_left_ends_quietly() -> None:
    """End without a traceback if the output is closed, as in `lightwell census ... | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "lightwell", "census", str(PACKAGED)]
    try:
        done = subprocess.run(command, check=False, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_census_that_cannot_be_written_is_one_line_and_status_1() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "lightwell", "census", str(PACKAGED)]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("lightwell: error: stdout: ")
    assert done.stderr.count("\n") == 1


def test_the_size_of_each_of_several_models_has_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["size", "--model", "a=fables", "--model", "b=fables"]) == 0
    tables = capsys.readouterr().out.split("\n\n")
    assert [table.splitlines()[0] for table in tables] == ["a:", "b:"]
    assert tables[0].splitlines()[1:] == tables[1].splitlines()[1:]
    monkeypatch.delenv("LIGHTWELL_MODEL", raising=False)
    assert main(["size", "--models-dir", "."]) == 2
    assert "the command needs a model; --models-dir is not enough" in capsys.readouterr().err


def test_a_made_key_goes_to_stderr_and_its_entry_to_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["key", "alice", "--admin"]) == 0
    entry, told = capsys.readouterr()
    key = told.splitlines()[-1]
    assert key not in entry
    file = tmp_path / "keys.toml"
    file.write_text(entry)
    known = Keyring(file=file).find(key.encode())
    assert known is not None
    assert (known.key.name, known.key.is_admin) == ("alice", True)


def test_a_key_needs_a_name_that_a_file_can_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "no name"]) == 2
    assert "'no name' is not a valid name" in capsys.readouterr().err


def test_workers_are_not_told_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTWELL_API_KEY", "sesame")
    monkeypatch.setattr(sys, "argv", ["lightwell", "serve", "--api-key", "open", "--api-key=up", "--port", "0"])
    forget_keys()
    assert "LIGHTWELL_API_KEY" not in os.environ
    assert sys.argv == ["lightwell", "serve", "--api-key", "...", "--api-key=...", "--port", "0"]


needs_kernels = pytest.mark.skipif(not library.levels(), reason="there are no compiled kernels here")


def kernels(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["kernels", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def restored_threads() -> Iterator[None]:
    """Leave the process's threads as they were, whatever `lightwell kernels` sets."""
    threads = torch.get_num_threads(), library.num_threads()
    yield
    torch.set_num_threads(threads[0])
    library.set_num_threads(threads[1])


@needs_kernels
@pytest.mark.usefixtures("restored_threads")
def test_kernels_tells_what_computes_here(capsys: pytest.CaptureFixture[str]) -> None:
    told = kernels(capsys, "--kernel-arithmetic", "float32", "--threads", "1")
    assert told["library"] == {"path": str(library.library_path()), "present": True}
    assert (told["kernels"], told["arithmetic"], told["threads"]) == ("native", "float32", 1)
    assert (told["levels"], told["level"]) == ([*library.levels()], library.kernels().level)
    assert "rates" not in told
    assert main(["kernels", "--kernel-arithmetic", "float32"]) == 0
    lines = dict(re.split(r"  +|(?<=arithmetic) ", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["compiled levels"] == ", ".join(told["levels"])
    assert (lines["level in use"], lines["bfloat16 arithmetic"]) == (told["level"], "float32")


@needs_kernels
@pytest.mark.usefixtures("restored_threads")
def test_kernels_tells_of_plain_torch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTWELL_KERNELS", "torch")
    told = kernels(capsys)
    assert (told["kernels"], told["level"], told["arithmetic"]) == ("torch", None, None)
    assert told["levels"] == [*library.levels()]
    assert main(["kernels", "--measure"]) == 2
    assert capsys.readouterr().err == (
        "lightwell: error: --measure needs compiled kernels, but this configuration uses torch operations\n"
    )


def test_kernels_names_the_levels_that_there_are_for_one_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with at_level("mmx"):
        assert main(["kernels"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("lightwell: error: ")
    assert told.err.count("\n") == 1
    assert all(level in told.err for level in library.levels())


@needs_kernels
@pytest.mark.usefixtures("restored_threads")
def test_measured_kernels_tell_rates_and_a_line_for_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "lightwell.server.config.kernel_report.measure", partial(measure, seconds=0.0, weight_bytes=1 << 20)
    )
    told = kernels(capsys, "--measure")
    assert {"float32", "bfloat16", "int8"} <= told["rates"].keys()
    assert all(rate > 0 for of_form in told["rates"].values() for rate in of_form.values())
    assert main(["kernels", "--measure"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    (row,) = eval(f"({line.strip()})", {"CpuRow": CpuRow})
    vendor, family, model = library.cpu()
    assert (row.vendor, row.family, row.models) == (vendor, family, (model,))
    assert set(row.dot_levels) <= {library.kernels().level}


def test_health_reads_the_flags_of_the_oldest_server(tmp_path: Path) -> None:
    arguments = ["--host", "0.0.0.0", "--port", "9000", "--api-key", "k"]
    commands = {
        "5": ["sh", "-c", "sleep 1", "\udcff"],  # another's, no UTF-8
        "12": ["python", "-c", "x"],
        "7": ["python", "/opt/bin/lightwell", "serve", *arguments],
        "31": ["python", "-m", "lightwell", "serve"],
    }
    for pid, words in commands.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(os.fsencode("\0".join([*words, ""])))
    assert serve_arguments(tmp_path) == arguments
    assert serve_arguments(tmp_path / "7") == []


@pytest.mark.parametrize(("status", "exit_status"), [(200, 0), (503, 1)])
def test_health_asks_the_server_where_its_flags_say_it_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, exit_status: int
) -> None:
    """Check against an old failure: the image's health check read only the environment variable, so that a container
    with `--port 9000` was never healthy.
    """
    paths: list[str] = []

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"worker 0 is loading")

        def log_message(self, format: str, *args: Any) -> None:
            """Drop the message, which would go to stderr."""

    monkeypatch.setenv("LIGHTWELL_PORT", "1")
    with ThreadingHTTPServer(("0.0.0.0", 0), Health) as server:
        port = str(server.server_port)
        arguments = ["--host", "0.0.0.0", "--port", port]
        monkeypatch.setattr("lightwell.server.lifecycle.health_check.serve_arguments", lambda: arguments)
        Thread(target=server.serve_forever, daemon=True).start()
        assert main(["health"]) == exit_status
        server.shutdown()
    assert paths == ["/health/ready"]
    told = capsys.readouterr().err
    assert told == ("" if exit_status == 0 else f"lightwell: error: 0.0.0.0:{port} is not ready: worker 0 is loading\n")
    assert main(["health"]) == 1
    assert capsys.readouterr().err.startswith(f"lightwell: error: 0.0.0.0:{port} does not answer")
