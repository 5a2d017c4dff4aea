"""The compared engines, each behind `/v1/completions` and with its own defaults.

This module starts each engine and stops it while another is timed. It is independent of the requests.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightwell.model.checkpoint.folder import GGUF_NAME
from tests.support.processes import LOOPBACK, ROOT, Server, descendants, free_port, running, serve

START_WITHIN = 300.0
"""Seconds until an engine must be ready. vLLM compiles when it starts."""
HERE = Path(__file__).parent
STORED = "stored"
"""The format of a model with the weights of its GGUF file, unchanged."""
OURS_BFLOAT16 = "lightwell bfloat16"
"""The name of our own engine without weights of 8 bits, to compare with."""


@dataclass(frozen=True)
class Setup:
    folder: Path
    """The folder of the checkpoint."""
    dtype: str
    """"float32", "bfloat16", "int8" (weights of 8 bits, the rest in 16), or STORED."""
    home: Path
    """Where peers are installed."""
    slots: int = 32
    """Most requests at once, for engines that need it as a setting; the others' defaults are larger."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables added to ours."""

    @property
    def context(self) -> int:
        length: int = json.loads((self.folder / "config.json").read_text())["max_position_embeddings"]
        return length


@dataclass(frozen=True)
class Engine:
    name: str
    server: Server
    model: str
    """The model's name in requests (field `model`)."""
    has_watchdog: bool = False
    """True if its watchdog would report a stopped worker as hung; such an engine must not be stopped."""

    def pause(self) -> None:
        """Stop its processes until `resume`: one that spins while it has nothing to do would slow the next one."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in () if self.has_watchdog else descendants(self.server.pid):
            os.kill(pid, number)


class Absent(RuntimeError):
    """A peer is not available here; the message gives the reason."""


@contextmanager
def lightwell(setup: Setup) -> Iterator[Engine]:
    formats = {"int8": ["bfloat16", "--quantize", "int8"], STORED: ["auto"]}
    dtype = formats.get(setup.dtype, [setup.dtype])
    arguments = [str(setup.folder), "--dtype", *dtype, "--served-model-name", "model"]
    with serve(arguments, START_WITHIN, environment=setup.environment) as server:
        yield Engine("lightwell", server, "model", has_watchdog=True)


@contextmanager
def lightwell_bfloat16(setup: Setup) -> Iterator[Engine]:
    """Run the bfloat16 server to which int8 is compared."""
    with lightwell(replace(setup, dtype="bfloat16")) as engine:
        yield replace(engine, name=OURS_BFLOAT16)


@contextmanager
def vllm(setup: Setup) -> Iterator[Engine]:
    if setup.dtype == STORED:
        raise Absent("it serves GGUF files by a plugin alone")
    if setup.dtype == "int8":
        raise Absent("of the weights that it loads it makes int8 only of the experts of a mixture")
    install(HERE / "install_vllm.sh", setup.home / "vllm")
    port = free_port()
    command = [str(setup.home / "vllm" / "bin" / "vllm"), "serve", str(setup.folder), "--dtype", setup.dtype]
    command += ["--served-model-name", "model", "--host", LOOPBACK, "--port", str(port), "--disable-uvicorn-access-log"]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "4"}
    with running(command, port, "/health", START_WITHIN, environment={**offline, **setup.environment}) as server:
        yield Engine("vllm", server, "model")


def converted_by_llama(setup: Setup) -> Path:
    """Return the checkpoint in llama.cpp's own format, which is written once. Raises Absent."""
    install(HERE / "install_llama.sh", setup.home / "llama")
    kind = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "q8_0", STORED: ""}[setup.dtype]
    converted = setup.home / "gguf" / f"{setup.folder.name}-{kind}.gguf"
    if setup.dtype == STORED:
        converted = setup.folder / GGUF_NAME
    if not converted.exists():
        converted.parent.mkdir(exist_ok=True)
        source = setup.home / "llama" / "source"
        command = [sys.executable, str(HERE / "convert_to_gguf.py"), str(source), str(setup.folder)]
        partial = converted.with_suffix(".partial")
        run([*command, "--outtype", kind, "--outfile", str(partial)], "the checkpoint was not converted")
        partial.rename(converted)
    return converted


@contextmanager
def llama(setup: Setup, name: str = "llama.cpp", folder: str = "llama", *options: str) -> Iterator[Engine]:
    """Run `llama-server` of llama.cpp with a full context a slot, on a copy of the checkpoint in its own format.

    name, folder and options: of another build of it.
    """
    converted, port = converted_by_llama(setup), free_port()
    command = [str(setup.home / folder / "bin" / "llama-server"), "--model", str(converted), "--alias", "model"]
    command += ["--host", LOOPBACK, "--port", str(port), *(options or ["--no-webui"])]
    command += ["-np", str(setup.slots), "--ctx-size", str(setup.slots * setup.context)]
    with running(command, port, "/health", START_WITHIN, environment=setup.environment) as server:
        yield Engine(name, server, "model")


@contextmanager
def ik_llama(setup: Setup) -> Iterator[Engine]:
    """Run the server of ik_llama.cpp, with flash attention, on the same file as llama.cpp."""
    install(HERE / "install_llama.sh", setup.home / "ik", "ik")
    with llama(setup, "ik_llama.cpp", "ik", "-fa", "on") as engine:
        yield engine


ENGINES: dict[str, Callable[[Setup], AbstractContextManager[Engine]]] = {
    "lightwell": lightwell,
    "vllm": vllm,
    "llama.cpp": llama,
    "ik_llama.cpp": ik_llama,
}


def install(script: Path, target: Path, *options: str) -> None:
    """Run an installation, which does nothing where `target` is complete. Raises Absent."""
    if not (target / "complete").exists():
        run([str(script), str(target), *options], f"{script.name} failed")


def run(command: list[str], failure: str) -> None:
    """Run a command. Raises Absent, with `failure` and the last line it printed, when it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["it printed nothing"]
        raise Absent(f"{failure}: {lines[-1]}")
