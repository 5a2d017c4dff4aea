"""Declares a setting as a field of a dataclass: its default, how its text is read, its help. It knows no setting."""

from dataclasses import field
from typing import Any

from server.config import setting_types as types
from server.config.setting_types import SettingType


def setting(default: Any, setting_type: SettingType, help_text: str, *, shown_default: str | None = None) -> Any:
    """Return the field of a setting; `shown_default` is what the help says in place of the default."""
    return field(default=default, metadata={"type": setting_type, "help": help_text, "shown_default": shown_default})


def repeated(setting_type: SettingType, help_text: str) -> Any:
    """Return the field of a setting of several values, none by default."""
    help_text += "; repeat the flag for several (variable: commas between)."
    return setting((), setting_type, help_text, shown_default="none")


def switch(help_text: str, *, shown_default: str | None = None) -> Any:
    """Return the field of a setting that is on or off."""
    return setting(False, types.switch(), help_text, shown_default=shown_default)
