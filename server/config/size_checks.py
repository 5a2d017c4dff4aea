"""Checks of sizes and threads against this machine or its container. Independent of the model."""

import dataclasses
import os
from pathlib import Path

from lightwell.server.config.setting_names import flag_name
from lightwell.server.config.setting_types import format_bytes
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.engine.memory.process_memory import total_host_memory

_MOST_THREADS = 4 * (os.cpu_count() or 1)
"""Most threads of a worker. More than one for each core is of use only to tests; more than this is a mistake."""


def check_sizes(settings: Settings, root: Path = Path("/")) -> None:
    """Raise SettingsError for a set size over the memory of this machine or its container, and for too many threads.
    The worker checks `--kv-cache-memory`, which may be a GPU's.
    """
    memory = total_host_memory(root)
    for setting in dataclasses.fields(Settings):
        value, is_size = getattr(settings, setting.name), setting.metadata["type"].metavar == "BYTES"
        is_checked = is_size and setting.name != "kv_cache_memory" and value not in (None, setting.default)
        if is_checked and memory is not None and value > memory:
            raise SettingsError(
                f"{flag_name(setting.name)} {format_bytes(value)} is more than the memory of this machine, or the "
                f"limit of its container: {memory} bytes ({memory / (1 << 30):.1f} GiB); at most that is accepted"
            )
    if settings.threads is not None and settings.threads > _MOST_THREADS:
        raise SettingsError(f"--threads {settings.threads}: at most {_MOST_THREADS}, 4 for each core, are accepted")
