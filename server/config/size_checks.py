"""Refuses sizes and threads that this machine, or its container, does not have. It knows no model."""

import dataclasses
import os
from pathlib import Path

from server.config.setting_names import flag_name
from server.config.setting_types import format_bytes
from server.config.settings import Settings, SettingsError
from server.engine.memory.memory_limit import total_host_memory

_MOST_THREADS_PER_CORE = 4
"""Most threads per core. More than one is of use only to tests; more than this is a mistake."""


def check_sizes(settings: Settings, root: Path = Path("/")) -> None:
    """Raise SettingsError for a size that was set and is over the memory of this machine or its container, and for
    more threads than its cores can run. The worker checks `--kv-cache-memory`, which may be a card's.
    """
    memory = total_host_memory(root)
    for setting in dataclasses.fields(Settings):
        value = getattr(settings, setting.name)
        is_size = setting.metadata["type"].metavar == "BYTES" and setting.name != "kv_cache_memory"
        if is_size and memory is not None and value not in (None, setting.default) and value > memory:
            raise SettingsError(
                f"{flag_name(setting.name)} {format_bytes(value)} is more than the memory of this machine, or the "
                f"limit of its container: {memory} bytes ({memory / (1 << 30):.1f} GiB); at most that is accepted"
            )
    most = _MOST_THREADS_PER_CORE * (os.cpu_count() or 1)
    if settings.threads is not None and settings.threads > most:
        raise SettingsError(
            f"--threads {settings.threads} is more than {os.cpu_count()} CPU cores can run; at most {most} are accepted"
        )
