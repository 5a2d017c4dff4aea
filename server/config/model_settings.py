"""Settings of each model of a server: `--model NAME=MODEL`, and `models:` in the file of `--config`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import exists
from typing import Any

from lightwell.server.config.setting_types import SettingType

_NAME = r"\w[\w.:-]*(?:/[\w.:-]+)?"
_NAMED = re.compile(rf"({_NAME})=(.+)", re.DOTALL)
_BETWEEN = re.compile(rf",(?={_NAME}=)")
"""A comma before another NAME=: paths may hold commas too."""


@dataclass(frozen=True, slots=True)
class ModelOption:
    """A model on the command line, in a variable or in a file."""

    source: str | None
    """A folder, a GGUF file, a built-in name or a hub id; None is the default model."""
    name: str | None = None
    """Its name in requests; None is a name that follows from `source`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of its own settings, by their names."""


def models_type() -> SettingType:
    """Return the type of MODEL or NAME=MODEL, with commas between several in a variable."""

    def read(text: str) -> ModelOption:
        named = _NAMED.fullmatch(text)
        if named is not None and not exists(text):
            return ModelOption(named[2], named[1])
        if not text.strip():
            raise ValueError("text that is not empty is accepted")
        return ModelOption(text)

    def parse(text: str) -> tuple[ModelOption, ...]:
        return tuple(map(read, _BETWEEN.split(text)))

    return SettingType(parse, "MODEL|NAME=MODEL", is_list=True)
