"""Runs `lightwell serve` around an engine that some tokens break: `python -m tests.support.breakable_server [flags]`.

All else is the real server: only the network is wrapped, so that a prompt can make its own step fail. The environment
variable SLOWDOWN multiplies the CPU time of each call of a kernel, which then takes LEAST_SECONDS at least.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from lightwell.server.cli import build_parser, fail, forget_keys
from lightwell.server.config.command_line import from_arguments
from lightwell.server.engine.config import EngineConfig
from lightwell.server.lifecycle.app import ServeError, serve

RAISES = 4001
"""A token on which the forward pass raises, after it has computed everything."""
ALLOCATES = 4002
"""A token that makes the forward pass allocate more memory than any machine has."""
POISONS = 4003
"""A token after which every forward pass fails, as after an error of a GPU."""
STUCK = 4004
"""A token on which the forward pass never returns."""

LEAST_SECONDS = 0.05
"""Seconds that each call of a kernel lasts at least on a slowed server."""


def slow_down(factor: float) -> None:
    """Slow down every kernel call of this process."""
    from lightwell.model.kernels.library import Kernels

    call = Kernels.call

    def slow(self: Kernels, *arguments: Any) -> None:
        began = time.thread_time()
        call(self, *arguments)
        time.sleep(max(LEAST_SECONDS, (factor - 1) * (time.thread_time() - began)))

    Kernels.call = slow  # type: ignore[method-assign]


def engine(config: EngineConfig, progress: Callable[[int, int], None]) -> Any:
    """Return the real engine. Runs in the worker, the only process that has torch."""
    import torch

    from lightwell.model.batch import Batch
    from lightwell.model.network.transformer import Transformer
    from lightwell.server.engine.engine import Engine

    if factor := float(os.environ.get("SLOWDOWN", "0")):
        slow_down(factor)
    forward = Transformer.forward
    is_poisoned = False

    def breakable(self: Transformer, batch: Batch, *arguments: Any) -> torch.Tensor:
        nonlocal is_poisoned
        hidden = forward(self, batch, *arguments)
        tokens = set(batch.token_ids.tolist())
        is_poisoned |= POISONS in tokens
        if is_poisoned:
            raise RuntimeError("the device is lost")
        if STUCK in tokens:
            time.sleep(3600)
        if ALLOCATES in tokens:
            torch.empty(1 << 50)
        if RAISES in tokens:
            raise ArithmeticError("a token that the network cannot bear")
        return hidden

    Transformer.forward = breakable
    return Engine.from_folder(config, progress)


def main() -> int:
    settings = from_arguments(build_parser().parse_args(["serve", *sys.argv[1:]]), os.environ)
    forget_keys()
    try:
        serve(settings, engine_factory="tests.support.breakable_server:engine")
    except ServeError as error:
        return fail(str(error), 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
