"""`lightwell run`, `list`, `pull`, `bench` and `completion`, as a user sees them."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.server.cli import main
from tests.server.running import is_running, wait_for
from tests.server.terminal.fake_hub import COMMIT, REPOSITORY, REVISION, running_hub
from tests.support.processes import ROOT, Server, descendants
from tests.support.shared import shared_server


@pytest.fixture(scope="module")
def server() -> Server:
    return shared_server("--served-model-name", "fables")


def lightwell(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightwell", *arguments]
    environ = {**os.environ, **environment}
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)


def greedy(server: Server, prompt: str, **fields: Any) -> str:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "fables", "messages": messages, "temperature": 0, "max_tokens": 8, **fields}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    return str(answer["choices"][0]["message"]["content"])


def test_run_adds_standard_input_to_its_prompt(server: Server) -> None:
    arguments = ("run", "fables", "--url", f"{server.url}/v1", "--temperature", "0", "--max-tokens", "8")
    done = lightwell(*arguments, "Go on:", stdin="A wolf\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == greedy(server, "Go on:\n\nA wolf") + "\n"
    assert lightwell(*arguments, stdin="A wolf\n").stdout == greedy(server, "A wolf") + "\n"
    empty = lightwell(*arguments)
    assert (empty.returncode, empty.stdout) == (2, "")
    assert empty.stderr == (
        "lightwell: error: the prompt is missing; an argument or text on standard input is accepted\n"
    )


def test_run_starts_a_server_of_its_own_and_leaves_none(server: Server) -> None:
    flags = ("--dtype", "bfloat16", "--kv-cache-memory", "16MiB", "--temperature", "0", "--max-tokens", "8")
    done = lightwell("run", "fables", "Who was there?", *flags, LIGHTWELL_PORT="1", LIGHTWELL_API_KEY="another's")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == greedy(server, "Who was there?") + "\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_server_outlives_its_command(number: signal.Signals) -> None:
    command = [
        sys.executable,
        "-m",
        "lightwell",
        "run",
        "smollm2",
        "Tell a long story of a wolf.",
        "--max-tokens",
        "900",
        "--temperature",
        "0",
    ]
    if number == signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("programs in the background of a script ignore Ctrl-C")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.read(1), "it answers"
        started = [pid for pid in descendants(process.pid) if pid != process.pid]
        assert len(started) >= 2, "a server and its worker"
        process.send_signal(number)
        process.stdout.read()
    assert process.wait() == (130 if number == signal.SIGINT else -number)
    wait_for(lambda: not any(map(is_running, started)), "the server ends")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("run", "fablez", "x"), 1, "model 'fablez' is not a local folder, .* did you mean 'fables'?"),
        (("run", "fables", "x", "--dtype", "int8"), 2, "--dtype: 'int8' is not usable; accepted are auto, "),
        (("run", "fables", "x", "--url", "ftp://x"), 2, "URL 'ftp://x' is not valid; an address such as http://"),
        (
            ("run", "fables", "x", "--url", "http://x", "--api-key", "a\nb"),
            2,
            "the API key contains a character that is not",
        ),
        (("run", "fables", "x", "--max-tokens", "0"), 2, "argument --max-tokens: '0' is not usable; an integer of "),
        (("run", "x", "x", "--temprature", "0"), 2, "has no option --temprature; did you mean '--temperature'"),
        (("bench", "http://127.0.0.1:1"), 1, "http://127.0.0.1:1/v1/models: .*Connection refused"),
        (("chat", "fables"), 2, "`lightwell chat` needs a terminal; `lightwell run` reads standard input"),
        (("pull", "nobody/nothing"), 1, "model 'nobody/nothing' is not a local folder, and the download"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    try:
        found = main([*arguments])
    except SystemExit as end:  # as argparse ends a command
        found = end.code
    told = capsys.readouterr()
    assert (found, told.out) == (status, "")
    *_, line = told.err.splitlines()
    assert line.startswith("lightwell: error: ")
    for part in message.split(".*"):
        assert part in line


def test_a_reader_that_leaves_early_ends_run_quietly(server: Server) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "lightwell", "run", "fables", "A wolf", "--url", server.url]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_refusal_of_the_server_is_told_in_its_words(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["run", "nobody", "x", "--url", server.url]) == 1
    error = capsys.readouterr().err
    assert "404" in error
    assert "nobody" in error


def test_a_model_of_the_hub_is_pulled_with_a_token_and_listed(tmp_path: Path) -> None:
    with running_hub(PACKAGED, "hf_sesame") as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        pull = partial(lightwell, "pull", REPOSITORY, **environment)
        refused = pull("--revision", REVISION, HF_TOKEN="hf_other")
        assert refused.returncode == 1
        assert "only accounts with access may download it from the hub (HF_TOKEN)" in refused.stderr
        missing = pull("--revision", "v2", HF_TOKEN="hf_sesame")
        assert (missing.returncode, missing.stdout) == (1, "")
        assert missing.stderr.startswith(f"lightwell: error: model '{REPOSITORY}' is not a local folder")
        pulled = pull("--revision", REVISION, HF_TOKEN="hf_sesame")
    folder = tmp_path / "models--someone--tales" / "snapshots" / COMMIT
    assert (pulled.returncode, pulled.stdout) == (0, f"{folder}\n")
    assert (folder / "model.safetensors").read_bytes() == (PACKAGED / "model.safetensors").read_bytes()
    offline = partial(lightwell, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="1")
    assert offline("pull", REPOSITORY, "--revision", REVISION).stdout == f"{folder}\n"
    rows = {line.split()[0]: line.split()[1:] for line in offline("list").stdout.splitlines()}
    assert (rows["fables"][0], rows[REPOSITORY][0]) == ("-", REVISION)
    found = json.loads(offline("list", "--json").stdout)
    tales = next(each for each in found if each["name"] == REPOSITORY)
    assert tales["path"] == str(folder)
    assert tales["bytes"] > 11_000_000


def test_bench_measures_tokens_and_waits(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--requests", "4", "--concurrency", "2", "--prompt-words", "8", "--max-tokens", "5"]
    assert main(["bench", server.url, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["failed"], found["model"]) == (4, 0, "fables")
    assert 4 <= found["output_tokens"] <= 20
    assert found["tokens_per_second"] == pytest.approx(found["output_tokens"] / found["seconds"])
    assert 0 < found["time_to_first_token_ms"]["p50"] <= found["time_to_first_token_ms"]["p99"]
    assert main(["bench", server.url, *options]) == 0
    told = capsys.readouterr().out
    for part in ("tokens/s", "time to first token  mean ", "inter-token latency  mean "):
        assert part in told


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_flags_and_values(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("serve", "chat", "--kv-cache-memory", "--revision", "bfloat16"):
        assert word in script


def test_the_completion_of_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = "COMP_WORDS=(lightwell serve --dt); COMP_CWORD=2; _shtab_lightwell lightwell --dt serve; echo ${COMPREPLY[@]}"
    told = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert told.stdout == "--dtype\n"


def test_program_prints_each_step_with_its_executor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["program", "fables"]) == 0
    layers, last, head = (part.splitlines() for part in capsys.readouterr().out.strip().split("\n\n"))
    assert re.fullmatch(r"decoder, layers 0-\d+", layers[0])
    assert re.match(r"  NormRows +stream -> normed, norm \[\d+\] +\S+ KiB +cpu +hook_resid_pre ln1", layers[1])
    assert re.search(r"Multiply +normed -> wide, \[\d+, \d+\] .* attn.hook_q attn.hook_k attn.hook_v", layers[2])
    assert (last[0], head[0]) == ("decoder, after the layers", "head")
    assert main(["program", "fables", "--dtype", "float16"]) == 0
    executors = {line.split()[-1] for line in capsys.readouterr().out.splitlines() if "KiB" in line}
    assert executors == {"torch"}
