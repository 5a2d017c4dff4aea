"""Settings on the command line: flags and help, and warnings of misspelt or deprecated names. All of it follows from
the fields of `server.config.settings`.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

from lightwell.model.checkpoint.nearest import did_you_mean
from lightwell.server.config.setting_names import ENV_PREFIX, flag_name, is_service_link, variable_name
from lightwell.server.config.setting_types import SettingType, format_bytes
from lightwell.server.config.settings import Settings, SettingsError, setting_names

_OTHER_VARIABLES = {"LIGHTWELL_KERNEL_LEVEL", "LIGHTWELL_KERNEL_LIBRARY"}
"""Variables that `model.kernels.library` reads in every program that uses it; no setting has these names."""


class Parser(argparse.ArgumentParser):
    """A parser of the command line. Its errors suggest the nearest options and commands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Read the arguments, and end the program if some are unknown: each command knows its own options."""
        found, unknown = super().parse_known_args(args, namespace)
        # Before Python 3.12, argparse does not read an optional positional that follows an option.
        optional = [each.dest for each in self._actions if each.nargs == "?" and not each.option_strings]
        free = [name for name in optional if getattr(found, name, None) is None]
        if free and len(unknown) == 1 and not unknown[0].startswith("-"):
            setattr(found, free[0], unknown.pop())
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), None)
            if word is None:
                self.error(f"{unknown[0]!r} is one argument too many")
            word = word.partition("=")[0]
            self.error(f"`{self.prog}` has no option {word}{did_you_mean(word, self._option_string_actions)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the usage and one line on stderr, and end with status 2."""
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        self.print_usage(sys.stderr)
        self.exit(2, f"lightwell: error: {message} (`{self.prog} --help` explains the options)\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser one flag per setting. Values remain text: `Settings.from_sources` reads and checks them."""
    parser.usage = "%(prog)s [MODEL] [OPTION ...]"
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=_help("model"))
    add_flags(parser, setting_names())


def add_flags(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Give the parser the flags of these settings, in their groups."""
    groups: dict[str, Any] = {}
    for setting in dataclasses.fields(Settings):
        if setting.name not in names:
            continue
        setting_type: SettingType = setting.metadata["type"]
        options: dict[str, Any] = {"dest": setting.name, "help": _help(setting.name), "default": None}
        if not setting_type.is_flag:
            options["metavar"] = setting_type.metavar
        if setting_type.is_flag or setting_type.is_list:
            options["action"] = "store_true" if setting_type.is_flag else "append"
        title = setting.metadata["group"].title
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(flag_name(setting.name), *setting.metadata["other_flags"], **options)


def from_arguments(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Read the settings from the arguments of the parser and from the environment. Raises SettingsError."""
    flags: dict[str, Any] = {name: getattr(arguments, name) for name in setting_names()}
    positional = arguments.model_argument
    if positional is not None and flags["model"] not in (None, [positional]):
        others = " ".join(flags["model"])
        raise SettingsError(f"MODEL {positional!r} and --model {others!r} differ; give one of them")
    flags["model"] = flags["model"] if positional is None else [positional]
    return Settings.from_sources(flags, environ)


def shown_default(name: str) -> str:
    """Return the default as a person would write it."""
    setting = Settings.__dataclass_fields__[name]
    if setting.metadata["shown_default"] is not None:
        return str(setting.metadata["shown_default"])
    if setting.metadata["type"].metavar == "BYTES":
        return format_bytes(cast("int", setting.default))
    if isinstance(setting.default, bool):
        return "off"
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


def _help(name: str) -> str:
    text = Settings.__dataclass_fields__[name].metadata["help"]
    return f"{text} [{variable_name(name)}; default: {shown_default(name)}]".replace("%", "%%")


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """`LIGHTWELL_*` variables that nothing reads, most likely misspelt ones."""
    known = _OTHER_VARIABLES | {variable_name(name) for name in setting_names()}
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX)
        and name not in known
        and not name.startswith(("LIGHTWELL_PORT_", "LIGHTWELL_SERVICE_"))
        and not is_service_link(value)
    )


def deprecations(settings: Settings) -> list[str]:
    """Warnings, a line each, of deprecated settings that were given."""
    lines = []
    if settings.no_compile:
        lines.append("--no-compile goes with 1.0; it stands for --kernels torch, which says the same")
    if settings.max_look_tokens is not None:
        lines.append("--max-look-tokens goes with 1.0; it is called --max-capture-tokens now")
    return lines
