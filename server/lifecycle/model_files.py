"""The models of the settings and of a folder, and the files of each model but its weights. It imports no torch."""

import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from lightwell.model.checkpoint import resolve as checkpoint
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.generation_defaults import SamplingDefaults, read_sampling_defaults
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.network.cross_encoder import score_defaults
from lightwell.model.network.sentence_transformers import embedding_defaults
from lightwell.model.tokenization.chat_template import ChatTemplate, read_template_option
from lightwell.model.tokenization.template_client import shared_client
from lightwell.model.tokenization.tokenizer import Tokenizer
from lightwell.server.config.model_settings import ModelOption
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.generation.served_model import ModelFiles
from lightwell.server.worker.model_fingerprint import fingerprint

logger = logging.getLogger(__name__)

_MOST_LOADED = 4
"""Most loaded models by default, unless the command line names more."""


def load_model_files(settings: Settings) -> ModelFiles:
    """Find the model's folder and read all but the weights. Raises ValueErrors of one line."""
    folder = checkpoint.resolve(settings.source, settings.gguf_file, settings.revision)
    try:
        before = fingerprint(folder)
    except OSError as error:
        raise ModelLoadError(f"{error.filename}: cannot be read ({error.strerror})") from error
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    limit = settings.max_model_len if isinstance(settings.max_model_len, int) else None
    if limit is not None and limit > config.max_model_len:
        raise SettingsError(
            f"--max-model-len {limit} is larger than the model's context of {config.max_model_len} tokens"
        )
    source = tokenizer.chat_template if settings.chat_template is None else read_template_option(settings.chat_template)
    model_id = settings.served_model_name or checkpoint.name_of(settings.source, folder)
    if any(name == model_id for name, _ in settings.lora):
        raise SettingsError(f"--lora: {model_id!r} is already the name of the model; another name is accepted")
    return ModelFiles(
        settings=settings,
        id=model_id,
        root=settings.source or str(checkpoint.root_of(folder)),
        folder=folder,
        fingerprint=before,
        config=config,
        tokenizer=tokenizer,
        chat_template=None if source is None else ChatTemplate(source, tokenizer),
        embedding_defaults=embedding_defaults(folder, config),
        score_defaults=score_defaults(folder, config),
        sampling_defaults=SamplingDefaults()
        if settings.generation_config == "vllm"
        else read_sampling_defaults(folder),
        max_model_len=limit or config.max_model_len,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NamedFiles:
    """A model that the settings name: its files, and all of its names."""

    files: ModelFiles
    names: list[str]


def named_models(settings: Settings) -> list[NamedFiles]:
    """Read the files of each model of the settings; names with the same files and settings are one model.

    Raises ValueErrors of one line.
    """
    found: dict[tuple[Path, Settings], NamedFiles] = {}
    for own in settings.of_models():
        files = load_model_files(own)
        key = checkpoint.root_of(files.folder), dataclasses.replace(own, model=(), served_model_name=None)
        found.setdefault(key, NamedFiles(files, [])).names.append(files.id)
    names = [name for each in found.values() for name in each.names]
    names += [name for each in found.values() for name, _ in each.files.settings.lora]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SettingsError(
            f"--model: two models or LoRA adapters have the name {repeated!r}; NAME=MODEL names a model"
        )
    if all(each.files.chat_template is None for each in found.values()) and settings.models_dir is None:
        shared_client().stop()
    return list(found.values())


class ModelsFolder:
    """The folder of `--models-dir`: each folder with a config.json or GGUF files in it, and each GGUF file."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError if the path is not a folder."""
        self._settings = dataclasses.replace(settings, lora=())  # these are for the models of --model
        self._path = Path(settings.models_dir or "").expanduser()
        if not self._path.is_dir():
            raise SettingsError(f"--models-dir {str(self._path)!r}: no such folder")
        self._read_at = -1
        """Time of the last change of the folder that was seen, in nanoseconds."""
        self._seen: set[str] = set()

    def new_models(self) -> Iterator[Settings]:
        """Yield the settings of each model that has come since the last call."""
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._read_at:
                return
            self._read_at = changed
            entries = sorted(self._path.iterdir())
        except OSError as error:
            logger.warning("--models-dir %s: cannot be read (%s)", self._path, error.strerror)
            return
        for path in entries:
            name = _name_of_model(path)
            if name is None and path.suffix.lower() != ".gguf" and os.path.isdir(path):
                self._read_at = -1  # its files may still be copied, which does not change the time of the parent
            if name is not None and name not in self._seen:
                self._seen.add(name)
                yield self._settings.of_model(ModelOption(str(path), name))


def _name_of_model(path: Path) -> str | None:
    """Return the name of the model in a folder or file, or None if it is no model or has a name that cannot be sent."""
    try:
        if path.is_dir():
            is_model, name = (path / "config.json").is_file() or any(path.glob("*.gguf")), path.name
        else:
            is_model, name = path.suffix.lower() == ".gguf" and path.is_file(), path.stem
    except OSError:
        return None
    return name if is_model and name.isprintable() else None


def most_loaded(settings: Settings) -> int:
    """Return the most models that are loaded at a time."""
    return settings.max_loaded_models or max(_MOST_LOADED, len(settings.model))
