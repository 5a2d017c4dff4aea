"""The engines that are timed beside each other, each behind `/v1/completions` and with its own defaults.

Knows how each is started and how it is kept from the cores while another is timed; nothing of what is asked of them.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import LOOPBACK, ROOT, Server, descendants, free_port, running, serve

START_WITHIN = 300.0
"""Seconds. vLLM compiles when it starts."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Engine:
    """One that is ready."""

    name: str
    server: Server
    model: str
    """What it calls the model: the field of that name in a request."""
    has_watchdog: bool = False
    """Whether it would take a stopped worker for a hung one, and so is not to be stopped."""

    def pause(self) -> None:
        """Stop its processes until `resume`: one that spins while it has nothing to do would slow the next one."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in () if self.has_watchdog else descendants(self.server.pid):
            os.kill(pid, number)


class Absent(RuntimeError):
    """A peer that cannot be had here; says why."""


@contextmanager
def lightwell(folder: Path, dtype: str, home: Path) -> Iterator[Engine]:
    """Of this checkout, with the defaults."""
    with serve([str(folder), "--dtype", dtype, "--served-model-name", "model"]) as server:
        yield Engine("lightwell", server, "model", has_watchdog=True)


@contextmanager
def vllm(folder: Path, dtype: str, home: Path) -> Iterator[Engine]:
    """`vllm serve` of the CPU build."""
    install(HERE / "install_vllm.sh", home / "vllm")
    port = free_port()
    command = [str(home / "vllm" / "bin" / "vllm"), "serve", str(folder), "--dtype", dtype]
    command += ["--served-model-name", "model", "--host", LOOPBACK, "--port", str(port), "--disable-uvicorn-access-log"]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "4"}
    with running(command, port, "/health", START_WITHIN, environment=offline) as server:
        yield Engine("vllm", server, "model")


@contextmanager
def llama(folder: Path, dtype: str, home: Path) -> Iterator[Engine]:
    """`llama-server` of llama.cpp with 32 slots, on a copy of the checkpoint in its own format."""
    install(HERE / "install_llama.sh", home / "llama")
    kind = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0"}[dtype]
    converted = home / "gguf" / f"{folder.name}-{kind}.gguf"
    if not converted.exists():
        converted.parent.mkdir(exist_ok=True)
        source = home / "llama" / "source"
        command = [sys.executable, str(HERE / "convert_to_gguf.py"), str(source), str(folder)]
        run([*command, "--outtype", kind, "--outfile", str(converted)], "the checkpoint was not converted")
    port = free_port()
    command = [str(home / "llama" / "bin" / "llama-server"), "--model", str(converted), "--alias", "model"]
    command += ["--host", LOOPBACK, "--port", str(port), "-np", "32", "--ctx-size", str(32 * 256), "--no-webui"]
    with running(command, port, "/health", START_WITHIN) as server:
        yield Engine("llama.cpp", server, "model")


ENGINES: dict[str, Callable[[Path, str, Path], AbstractContextManager[Engine]]] = {
    "lightwell": lightwell,
    "vllm": vllm,
    "llama.cpp": llama,
}
"""Each: of a checkpoint folder, a dtype ("float32", "bfloat16") and the folder where peers are installed."""


def install(script: Path, target: Path) -> None:
    """Run an installation, which does nothing where `target` is complete. Raises Absent."""
    if not (target / "complete").exists():
        run([str(script), str(target)], f"{script.name} failed")


def run(command: list[str], failure: str) -> None:
    """Raises Absent, with `failure` and the last line it printed, when the command fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["it printed nothing"]
        raise Absent(f"{failure}: {lines[-1]}")
