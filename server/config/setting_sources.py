"""Values of settings from flags, variables and a YAML file, in this order."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightwell.model.checkpoint.nearest import did_you_mean
from lightwell.server.config.setting_names import flag_name, is_service_link, variable_name


def read_values(
    fields: Iterable[dataclasses.Field[Any]],
    flags: Mapping[str, str | Sequence[str] | bool],
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Return the values of the given settings: a flag wins over its variable, the variable over the file of the setting
    `config`. Raises ValueError, which names the source.
    """
    types = {field.name: field.metadata["type"] for field in fields}
    values: dict[str, Any] = {}
    file: Mapping[str, str | list[str]] = {}
    for name in sorted(types, key=lambda name: name != "config"):
        raw: Any = flags.get(name)
        source = flag_name(name)
        if raw is None or raw is False:
            source, raw = variable_name(name), environ.get(variable_name(name))
            if not raw or is_service_link(raw):
                source, raw = f"{values.get('config')}: {name.replace('_', '-')}", file.get(name)
        if raw is None:
            continue
        try:
            if isinstance(raw, list) and raw and not types[name].is_list:  # `--name=--` is an empty list
                raise ValueError(f"{raw!r:.200} is a list; one value is accepted")
            values[name] = types[name].read(raw)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        if name == "config":
            file = read_file(Path(values[name]), types)
    return values


def read_file(path: Path, names: Iterable[str]) -> dict[str, str | list[str]]:
    """Return the text of each setting in a YAML file, by its name. The keys are the names of flags without the leading
    --, with - or _. Raises ValueError for an unreadable file and for unknown keys.
    """
    import yaml  # here: most servers have no such file

    try:
        # The base loader keeps every value as text, such as `on` and `1e3`: each setting reads its own.
        content = yaml.BaseLoader(path.read_text(encoding="utf-8")).get_single_data()
    except OSError as error:
        raise ValueError(f"--config {str(path)!r}: the file cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError) as error:
        # The error's own text quotes the line, which may contain a key.
        mark = getattr(error, "problem_mark", None)
        where = f": {getattr(error, 'problem', None)} in line {mark.line + 1}" if mark else ""
        raise ValueError(f"--config {str(path)!r} is no YAML{where}") from None
    if content is None or content == "":
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"--config {str(path)!r}: lines such as 'port: 8000' are accepted")
    accepted, found = {name.replace("_", "-"): name for name in names if name != "config"}, {}
    for key, value in content.items():
        written = str(key).replace("_", "-")
        if written not in accepted:
            raise ValueError(f"--config {str(path)!r}: {key!r} is no setting{did_you_mean(written, accepted)}")
        if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise ValueError(f"--config {str(path)!r}: {key}: text, a number or a list of these is accepted")
        found[accepted[written]] = value
    return found
