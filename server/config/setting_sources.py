"""Values of settings from flags, variables and a YAML file, in this order."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightwell.model.checkpoint.nearest import did_you_mean
from lightwell.server.config.model_settings import ModelOption
from lightwell.server.config.setting_names import flag_name, is_service_link, variable_name
from lightwell.server.config.setting_types import SettingType


def read_values(
    fields: Iterable[dataclasses.Field[Any]],
    flags: Mapping[str, str | Sequence[str] | bool],
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """Return the values of the given settings: a flag wins over its variable, the variable over the file of the setting
    `config`. Raises ValueError, which names the source.
    """
    fields = tuple(fields)
    types = {field.name: field.metadata["type"] for field in fields}
    values: dict[str, Any] = {}
    file: Mapping[str, Any] = {}
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
            values[name] = _read(types[name], raw)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        if name == "config":
            file = read_file(Path(values[name]), types)
    if "models" in file and "model" not in values:
        own = {field.name: field.metadata["type"] for field in fields if not field.metadata["group"].of_server}
        values["model"] = _read_models(file["models"], own, f"{values['config']}: models")
    return values


def _read(setting_type: SettingType, raw: Any) -> Any:
    if isinstance(raw, list) and raw and not setting_type.is_list:  # `--name=--` is an empty list
        raise ValueError(f"{raw!r:.200} is a list; one value is accepted")
    return setting_type.read(raw)


def _read_models(entries: Any, types: Mapping[str, Any], source: str) -> tuple[ModelOption, ...]:
    """Return the models of a file: for each name a MODEL, or the settings of the model with a MODEL as `model`."""
    if not isinstance(entries, dict) or not entries:
        raise ValueError(f"{source}: names of models, each with its settings, are accepted")
    found = []
    for name, entry in entries.items():
        if not name.strip() or not name.isprintable():
            raise ValueError(
                f"{source}: {name!r:.200} is not a valid name; letters, digits and signs in one line are accepted"
            )
        given = dict(entry) if isinstance(entry, dict) else {"model": entry}
        model = given.pop("model", None)
        if not isinstance(model, str) or not model:
            raise ValueError(
                f"{source}.{name}: {model!r:.200} is not a model; a folder, a file or a hub id is accepted"
            )
        values = {}
        for key, text in _known(given, types, f"{source}.{name}", "setting of one model").items():
            try:
                values[key] = _read(types[key], text)
            except ValueError as error:
                raise ValueError(f"{source}.{name}.{key.replace('_', '-')}: {error}") from None
        found.append(ModelOption(model, name, values))
    return tuple(found)


def read_file(path: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the text of each setting in a YAML file, by its name, and the mapping `models`. The keys are the names of
    flags without the leading --, with - or _. Raises ValueError for an unreadable file and for unknown keys.
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
        raise ValueError(f"--config {str(path)!r} is not valid YAML{where}") from None
    if content is None or content == "":
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"--config {str(path)!r}: lines such as 'port: 8000' are accepted")
    models = content.pop("models", None)
    if models is not None and "model" in content:
        raise ValueError(f"--config {str(path)!r}: model and models are both set; one of them is accepted")
    found = _known(content, [name for name in names if name != "config"], f"--config {str(path)!r}")
    return found if models is None else {**found, "models": models}


def _known(content: Mapping[str, Any], names: Iterable[str], source: str, kind: str = "setting") -> dict[str, Any]:
    """Return the text of each setting by its name. Raises ValueError for other names and other values."""
    accepted, found = {name.replace("_", "-"): name for name in names}, {}
    for key, value in content.items():
        written = str(key).replace("_", "-")
        if written not in accepted:
            raise ValueError(f"{source}: {key!r} is no {kind}{did_you_mean(written, accepted)}")
        if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise ValueError(f"{source}: {key}: text, a number or a list of these is accepted")
        found[accepted[written]] = value
    return found
