"""Models of `--models-dir`, and names of models that share files: read from the disk, without a server."""

import os
import shutil
from pathlib import Path

import pytest

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.server.config.model_settings import ModelOption
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.lifecycle.model_files import ModelsFolder, load_model_files, most_loaded, named_models
from lightwell.server.lifecycle.model_host import check_memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of models: two folders, a GGUF file, and entries that are no models."""
    for name in ("b-model", "a model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "c.GGUF").touch()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "weights.gguf").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


def names_of(models: ModelsFolder) -> list[str | None]:
    return [settings.served_model_name for settings in models.new_models()]


def test_each_folder_and_gguf_file_is_a_model_once(folder: Path) -> None:
    models = ModelsFolder(Settings(models_dir=str(folder), threads=3, lora=(("tuned", "/x"),)))
    found = list(models.new_models())
    assert [each.served_model_name for each in found] == ["a model", "b-model", "c", "d"]
    assert [each.source for each in found] == [str(folder / name) for name in ("a model", "b-model", "c.GGUF", "d")]
    assert {each.threads for each in found} == {3}
    assert {each.lora for each in found} == {()}, "an adapter is for one model"
    assert names_of(models) == []


def test_links_are_followed_and_entries_that_cannot_be_read_or_named_are_left_out(folder: Path) -> None:
    (folder / "e-link").symlink_to(PACKAGED)
    (folder / "broken").symlink_to(folder / "nothing")
    (folder / "broken.gguf").symlink_to(folder / "nothing")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    os.mkfifo(folder / "pipe.gguf")
    for name in (b"not-utf8-\xff", b"two\nlines"):
        os.mkdir(os.fsencode(folder) + b"/" + name)
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name), "config.json").touch()
    assert names_of(ModelsFolder(Settings(models_dir=str(folder)))) == ["a model", "b-model", "c", "d", "e-link"]


def test_a_model_that_is_copied_into_the_folder_is_found_when_it_has_its_files(folder: Path) -> None:
    models = ModelsFolder(Settings(models_dir=str(folder)))
    names_of(models)
    (folder / "new").mkdir()
    assert names_of(models) == []
    (folder / "new" / "config.json").write_text("{}")
    assert names_of(models) == ["new"]
    assert names_of(models) == []


def test_a_folder_that_disappears_is_no_error(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = ModelsFolder(Settings(models_dir=str(folder)))
    names_of(models)
    shutil.rmtree(folder)
    assert names_of(models) == []
    assert "cannot be read (No such file or directory)" in caplog.text


@pytest.mark.parametrize("name", ["nothing", "notes.txt"])
def test_a_models_dir_that_is_no_folder_is_refused(name: str, folder: Path) -> None:
    with pytest.raises(SettingsError, match=f"--models-dir '.*{name}': no such folder"):
        ModelsFolder(Settings(models_dir=str(folder / name)))


def test_names_with_the_same_files_and_settings_are_one_model() -> None:
    options = (
        ModelOption(str(PACKAGED), "a"),
        ModelOption(str(PACKAGED), "b", {"max_model_len": 64}),
        ModelOption(str(PACKAGED), "c"),
        ModelOption(str(PACKAGED / "."), "d", {"max_model_len": 64}),
    )
    found = named_models(Settings(model=options))
    assert [(each.names, each.files.max_model_len) for each in found] == [(["a", "c"], 512), (["b", "d"], 64)]


@pytest.mark.parametrize(
    ("settings", "repeated"),
    [
        (Settings(model=(ModelOption(str(PACKAGED)), ModelOption(str(PACKAGED), None, {"threads": 1}))), "fables"),
        (Settings(model=(ModelOption(str(PACKAGED), "a", {"lora": (("b", "/x"),)}), ModelOption(str(PACKAGED), "b"))),
         "b"),
        (Settings(model=(ModelOption(str(PACKAGED), "a"), ModelOption(str(PACKAGED), "c", {"threads": 1})),
                  lora=(("b", "/x"),)), "b"),
    ],
)  # fmt: skip
def test_a_name_of_two_models_or_adapters_is_refused(settings: Settings, repeated: str) -> None:
    with pytest.raises(SettingsError, match=f"two models or LoRA adapters have the name '{repeated}'"):
        named_models(settings)


def test_a_model_is_not_loaded_into_less_memory_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    files = load_model_files(Settings(model=(ModelOption(str(PACKAGED)),), device="cpu"))
    check_memory(files)
    monkeypatch.setattr("lightwell.server.lifecycle.model_host.free_host_memory", lambda: 64 << 20)
    with pytest.raises(ValueError, match=r"it needs about \d+ MiB of memory \(\d+ of weights\), and 64 MiB are free"):
        check_memory(files)


def test_four_models_are_loaded_at_a_time_unless_more_are_named_or_another_number() -> None:
    named = tuple(ModelOption("x", str(number)) for number in range(6))
    assert most_loaded(Settings()) == 4
    assert most_loaded(Settings(model=named)) == 6
    assert most_loaded(Settings(model=named, max_loaded_models=2)) == 2
