"""Settings of LoRA adapters: their names, folders and limits. Independent of the adapters' files."""

import re
from collections.abc import Sequence
from os.path import expanduser, isdir
from pathlib import Path

from lightwell.server.config.setting_types import SettingType, texts
from lightwell.server.engine.config import AdapterFolder

ADAPTER_NAME = re.compile(r"[\w.:@/+-]{1,128}")
ADAPTER_NAME_RULE = "1 to 128 letters, digits and . : @ / + - _"


def adapters_type() -> SettingType:
    """Return the type of pairs: the name of an adapter on the wire, and its folder."""

    def read(text: str) -> tuple[str, str]:
        name, equals, folder = text.partition("=")
        if not equals or not folder or not ADAPTER_NAME.fullmatch(name):
            raise ValueError(f"NAME=FOLDER is accepted, with a NAME of {ADAPTER_NAME_RULE}")
        return name, folder

    return texts("NAME=FOLDER", read)


def lora_problem(
    adapters: Sequence[tuple[str, str]], max_loras: int, root: str | None, tensor_parallel: int
) -> str | None:
    """Return why these settings do not go together, in one line, or None if they do."""
    names = [name for name, _ in adapters]
    if tensor_parallel > 1 and (names or root):
        return f"--tensor-parallel {tensor_parallel} excludes --lora and --lora-root; 1 is accepted with them"
    if repeated := next((name for name in names if names.count(name) > 1), None):
        return f"--lora: the name {repeated!r} is given twice; each is accepted for one adapter"
    if len(names) > max_loras:
        return f"--lora is given {len(names)} times; at most {max_loras} adapters are accepted (--max-loras)"
    if root is not None and not isdir(expanduser(root)):
        return f"--lora-root {root!r:.200} is not a folder; a folder that contains adapters is accepted"
    return None


def resolved_root(root: str | None) -> Path | None:
    """Return the folder of adapters that may be loaded at run time, without links, or None if none may be."""
    return None if root is None else Path(expanduser(root)).resolve()


def adapter_folders(adapters: Sequence[tuple[str, str]]) -> tuple[AdapterFolder, ...]:
    """Return the adapters as the engine names them: by number, from 1 on."""
    return tuple(AdapterFolder(i, Path(expanduser(folder))) for i, (_, folder) in enumerate(adapters, 1))
