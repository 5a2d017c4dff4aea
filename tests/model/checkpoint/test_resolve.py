"""Models of the hub that are not there: why, in words of our own."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.resolve import resolve, resolve_config


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
        (resolve, "a folder that holds config.json, "),
        (resolve_config, "a config.json or a folder "),
    ):
        with pytest.raises(ModelLoadError) as caught:
            read(hub_id)
        told = f"model '{hub_id}' is no local folder and the hub did not give it: {reason}"
        assert str(caught.value).startswith(f"{told}without a network the path of {needed}")
