"""Turns the model that the user named into a local folder. It knows folders and hub ids, but not what the files mean.

It never imports torch: the API process resolves the same folder as the worker.
"""

import re
from pathlib import Path

PACKAGED = Path(__file__).parent.parent / "fables"
"""The folder of the default model, shipped inside the package."""

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
# Only what a text model is read from. The patterns' `*` also matches `/`, hence the folders to leave out.
_SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
_OTHER_FORMATS = ["original/*", "onnx/*", "openvino/*", "coreml/*", "flax/*", "tf/*"]


class ModelLoadError(ValueError):
    """The model cannot be loaded. The message is one line that names the value at fault and what is accepted."""


def one_line(error: Exception) -> str:
    """Return an error's message in one line, or the error's name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def resolve(name_or_path: str | None) -> Path:
    """Return the folder of a model.

    `name_or_path`: None for the packaged model, a local folder, or a hub id such as `openai-community/gpt2`
    (downloaded, safetensors preferred; an earlier download is used when the hub cannot be reached).

    Raises ModelLoadError when there is no such folder, when it holds no config.json, or when the hub does not give it.
    """
    if name_or_path is None:
        return _with_config(PACKAGED)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _with_config(path)
    if path.exists():
        raise ModelLoadError(f"model {name_or_path!r} is a file; give the folder that holds it and config.json")
    if not _HUB_ID.fullmatch(name_or_path):
        raise ModelLoadError(f"model {name_or_path!r}: no such folder; a hub id would look like 'owner/name'")
    return _with_config(_download(name_or_path))


def resolve_config(name_or_path: str) -> Path:
    """Return the file that contains a model's configuration: the file itself, a folder's config.json, or a hub id's.

    Nothing else of a hub id is downloaded. Raises ModelLoadError in the same cases as `resolve`.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path if path.is_file() else _with_config(path) / "config.json"
    if not _HUB_ID.fullmatch(name_or_path):
        raise ModelLoadError(f"config {name_or_path!r}: no such file or folder; a hub id would look like 'owner/name'")
    import huggingface_hub  # here, as below
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(huggingface_hub.hf_hub_download(name_or_path, "config.json"))
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise _not_given(name_or_path, error, "a config.json or a folder that holds one") from error


def _with_config(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"model folder {str(folder)!r} holds no config.json, so it is not a model's")
    return folder


def _download(hub_id: str) -> Path:
    # Imported here: a local model needs neither the hub's client nor the time it takes to import.
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    def fetch(weights: str) -> Path:
        allowed = [*_SMALL_FILES, weights]
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=allowed, ignore_patterns=_OTHER_FORMATS))

    try:
        folder = fetch("*.safetensors")
        if not any(folder.glob("*.safetensors")):
            folder = fetch("*.bin")
    # OSError covers connections, missing cache entries and full disks; ValueError covers ids the hub refuses.
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise _not_given(hub_id, error, "a folder that holds config.json, the weights and the tokenizer") from error
    return folder


def _not_given(hub_id: str, error: Exception, needed: str) -> ModelLoadError:
    return ModelLoadError(
        f"model {hub_id!r} is no local folder and the hub did not give it ({one_line(error)[:200]}); without a network "
        f"give the path of {needed}"
    )
