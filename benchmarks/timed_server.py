"""Runs `lightwell serve` around the timed engine, whose step times are in the environment.

    python -m benchmarks.timed_server [flags of lightwell serve]

All else is the real server: HTTP, admission, routing, workers, metrics. It loads no torch in the API process.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.routing_policies import POLICIES
from benchmarks.simulation.step_times import StepTimes
from server.app import ServeError, serve
from server.cli import build_parser, fail, forget_keys
from server.config.command_line import from_arguments
from server.dispatch.routing import Router
from tests.support.processes import LOOPBACK, ROOT, Server, free_port, running

STEP_TIMES = "TIMED_ENGINE_STEP_TIMES"
"""The environment variable that holds the step times as JSON."""
ROUTING = "TIMED_SERVER_ROUTING"
"""The environment variable that names one of `benchmarks.routing_policies`; without it the server's own is used."""
FIRST_TOKEN = 300
"""The token that worker 0 generates; worker i generates that plus i."""
CONTEXT = 8192
"""Tokens that the stand-in reads and writes at most."""
BLOCK_SIZE = 32


@dataclass(frozen=True)
class Fleet:
    """The workers of one server."""

    num_workers: int
    step_times: StepTimes
    num_blocks: int = 1024
    """Blocks of each worker's cache, the one that is never used included."""
    max_num_seqs: int = 64
    routing: str = "prefix"

    @property
    def flags(self) -> list[str]:
        """Return the flags of `lightwell serve`."""
        flags = [f"--max-num-seqs={self.max_num_seqs}", f"--block-size={BLOCK_SIZE}"]
        return [*flags, "--device=cpu", "--threads=1", f"--devices={self.num_workers}"]


@contextmanager
def timed_server(fleet: Fleet, flags: Sequence[str] = (), log_file: Path | None = None) -> Iterator[Server]:
    """Start that fleet on a free port of the loopback interface, and wait until it is ready. Raises ServerFailed."""
    with TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "timed")
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.timed_server", str(model), *fleet.flags, *flags]
        command += ["--host", LOOPBACK, "--port", str(port)]
        command += ["--kv-cache-memory", str((fleet.num_blocks - 1) * bytes_per_block(model))]
        environment = {STEP_TIMES: fleet.step_times.to_json(), ROUTING: fleet.routing}
        with running(command, port, "/health/ready", 120, environment=environment, log_file=log_file) as server:
            yield server


def make_model(folder: Path) -> Path:
    """Make the default model with a longer context, in `folder`: its weights are loaded and never used."""
    original = ROOT / "model" / "fables"
    folder.mkdir()
    for file in original.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((original / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}), encoding="utf-8")
    return folder


def bytes_per_block(model: Path) -> int:
    """Return the bytes of a block of the cache of that model, by which `--kv-cache-memory` is counted: float32."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return int(4 * per_token * BLOCK_SIZE)


def main() -> int:
    settings = from_arguments(build_parser().parse_args(["serve", *sys.argv[1:]]), os.environ)
    forget_keys()
    Router.route = POLICIES[os.environ.get(ROUTING, "prefix")]
    try:
        return serve(settings, engine_factory="benchmarks.timed_engine:TimedEngine.from_folder")
    except ServeError as error:
        return fail(str(error), 1)


if __name__ == "__main__":
    sys.exit(main())
