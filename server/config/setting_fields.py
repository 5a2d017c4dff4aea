"""Declaration of a setting as a field of a dataclass: default, type, help, and group in the help."""

from dataclasses import dataclass, field
from typing import Any

from server.config import setting_types as types
from server.config.setting_types import SettingType


@dataclass(frozen=True)
class Group:
    """A group of settings in the help."""

    title: str

    def setting(
        self, default: Any, setting_type: SettingType, help_text: str, *, shown_default: str | None = None
    ) -> Any:
        """Return the field of a setting; `shown_default` is shown by the help instead of the default."""
        metadata = {"type": setting_type, "help": help_text, "shown_default": shown_default, "group": self.title}
        return field(default=default, metadata=metadata)

    def repeated(self, setting_type: SettingType, help_text: str) -> Any:
        """Return the field of a setting of several values, none by default."""
        help_text += "; repeat the flag for several (variable: commas between)."
        return self.setting((), setting_type, help_text, shown_default="none")

    def switch(self, help_text: str, *, shown_default: str | None = None) -> Any:
        """Return the field of a setting that is on or off."""
        return self.setting(False, types.switch(), help_text, shown_default=shown_default)


COMMON = Group("common options")
MODEL = Group("model")
ACCESS = Group("access")
COMPUTE = Group("computation")
BATCH = Group("batches and memory")
LIMITS = Group("limits")
RUNNING = Group("operation")
