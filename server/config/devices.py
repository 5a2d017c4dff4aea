"""Devices of the workers: a GPU, or a group of the CPU cores that this process may use.

It needs the standard library only: a separate process imports torch to count the GPUs.
"""

import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lightwell.server.engine.memory.cgroups import read_int, within_quota

logger = logging.getLogger(__name__)

Devices = int | Literal["all"] | tuple[int, ...]
"""The value of `--devices`: a number of workers, one on every card, or one on each of these cards."""

_COUNT_CARDS = "import torch; print(torch.cuda.device_count())"
_COUNT_TIMEOUT = 120.0
"""Seconds to count the cards. Importing torch from a slow disk takes some ten."""
_MOST_WORKERS_PER_CORE = 4
"""Most workers per core of a CPU. More than one is useful only in tests; more than this is a mistake."""
_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class Places:
    """One place for each worker."""

    accelerator: Literal["cpu", "cuda"]
    """The kind of device for the worker launcher. It is "cpu" too for one worker that finds its own device."""
    cards: tuple[int, ...] = ()
    """The card of each worker, in torch's numbers; empty without cards."""
    core_groups: tuple[tuple[int, ...], ...] = ()
    """The cores of each worker; empty if every worker uses all cores."""

    @property
    def num_workers(self) -> int:
        return max(1, len(self.cards), len(self.core_groups))


def places(devices: Devices, device: str, count_cards: Callable[[], int] | None = None) -> Places:
    """Return the devices of the workers for a value of `--devices`; `device` is auto, cpu or cuda.

    One worker is on all cores, or on the first card. Raises ValueError for missing cards, for cards on a CPU, and for
    more workers than the cores of a CPU can carry.
    """
    if devices == 1:
        return Places("cuda", cards=(0,)) if device == "cuda" else Places("cpu")
    num_cards = 0 if device == "cpu" else (count_cards or visible_cards)()
    if device == "cuda" and not num_cards:
        raise ValueError("--device cuda needs a GPU, but torch finds none; --device cpu is accepted")
    if num_cards:
        return Places("cuda", cards=_choose(devices, num_cards))
    if not isinstance(devices, int):
        why = "--device is cpu" if device == "cpu" else "torch finds none here"
        raise ValueError(f"GPUs are requested, but {why}; a number of workers is accepted")
    cores = sorted(os.sched_getaffinity(0), key=_neighbourhood)
    num_usable = within_quota(len(cores))
    most = _MOST_WORKERS_PER_CORE * num_usable
    if devices > most:
        raise ValueError(f"too many workers for {num_usable} CPU cores; at most {most} are accepted")
    if devices > num_usable:
        logger.warning("%d workers share %d CPU cores; each would need one", devices, num_usable)
    return Places("cpu", core_groups=core_groups(cores, devices))


def as_text(devices: Devices) -> str:
    """Return the devices as `--devices` reads them."""
    if not isinstance(devices, tuple):
        return str(devices)
    return f"{devices[0]}," if len(devices) == 1 else ",".join(map(str, devices))


def core_groups(cores: Sequence[int], num_groups: int) -> tuple[tuple[int, ...], ...]:
    """Divide the cores into groups of neighbours, as evenly as possible. More groups than cores share cores."""
    num_cores = len(cores)
    if num_groups > num_cores:
        return tuple((cores[i % num_cores],) for i in range(num_groups))
    bounds = [i * num_cores // num_groups for i in range(num_groups + 1)]
    return tuple(tuple(cores[start:end]) for start, end in itertools.pairwise(bounds))


def bind_to_cores(cores: Sequence[int]) -> None:
    """Bind this process to these cores, as far as it may still use them: a container may lose cores while a server
    runs. If none is left, use all available cores, and log it.
    """
    usable = os.sched_getaffinity(0).intersection(cores)
    if usable:
        os.sched_setaffinity(0, usable)
    else:
        logger.warning("CPU cores %s may not be used any more; this worker is bound to none", _listed(cores))


def visible_cards() -> int:
    """Return the number of cards that a worker would see. A short process asks torch: no other count agrees with it
    (CUDA_VISIBLE_DEVICES by number or name, parts of cards, other makers), and the count may initialise the cards.
    """
    try:
        # -P: ignore a torch.py in the working directory
        command = [sys.executable, "-P", "-c", _COUNT_CARDS]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_COUNT_TIMEOUT, check=True)
        return int(answer.stdout.split()[-1])
    except subprocess.CalledProcessError as error:
        said = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        why = f" It said: {said[-1]}" if said else ""  # the last line of a traceback is the error
        raise ValueError(f"the GPUs could not be counted: {error}{why}") from error
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        raise ValueError(f"the GPUs could not be counted: {error}") from error


def _choose(devices: Devices, num_cards: int) -> tuple[int, ...]:
    if devices == "all":
        return tuple(range(num_cards))
    if isinstance(devices, int):
        if devices > num_cards:
            accepted = "1 is" if num_cards == 1 else f"at most {num_cards} are"
            raise ValueError(f"{devices} workers need as many GPUs, but torch finds {num_cards}; {accepted} accepted")
        return tuple(range(devices))
    missing = [card for card in devices if card >= num_cards]
    if missing:
        accepted = "0 is" if num_cards == 1 else f"0 to {num_cards - 1} are"
        raise ValueError(f"there is no GPU {_listed(missing)}; torch finds {num_cards}; {accepted} accepted")
    return devices


def _neighbourhood(core: int) -> tuple[int, int, int]:
    """Return a sort key: cores of one processor, and threads of one core, are neighbours."""
    folder = _TOPOLOGY / f"cpu{core}" / "topology"
    # A kernel without these files: by number.
    return read_int(folder / "physical_package_id") or 0, read_int(folder / "core_id") or 0, core


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
