"""Small random checkpoints and their servers, which several files of a run share."""

from pathlib import Path

from lightwell.model.checkpoint.registry import read_config
from tests.support.shared import once
from tests.tiny import make_variant

BLOCK_SIZE = 8


def folder_of(name: str) -> Path:
    """Return the folder of a checkpoint, the same in all processes of a run."""
    return once(("e2e", name), lambda folder: make_variant(name, folder))


def server_arguments(folder: Path) -> list[str]:
    """Return arguments of `lightwell serve` with small steps, so that prompts are read in chunks."""
    arguments = [str(folder), "--dtype", "float32", "--threads", "1", "--log-level", "warning"]
    if read_config(folder).kind != "encoder":  # which reads its input whole
        arguments += ["--max-num-seqs", "8", "--max-num-batched-tokens", "16", "--block-size", str(BLOCK_SIZE)]
    return arguments
