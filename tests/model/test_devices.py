"""The device of a model: GPUs that are too old, and drivers that torch cannot use."""

from pathlib import Path

import pytest
import torch

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.loading import loader
from lightwell.model.loading.loader import resolve_device


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_gpu_without_bfloat16_products_is_refused_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ModelLoadError, match=r"Tesla T4 \(cuda.*\) has compute capability 7\.5; 8\.0 and above"):
        resolve_device(name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert resolve_device(name) == torch.device("cuda" if name == "auto" else name)
    assert resolve_device("cpu") == torch.device("cpu")


def test_an_unusable_driver_ends_the_start_instead_of_serving_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(loader, "_CARD_FILES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    assert resolve_device("auto") == torch.device("cpu")  # there is no GPU
    (tmp_path / "nvidia0").touch()
    with pytest.raises(ModelLoadError, match=r"nvidia0\) that torch cannot use.* for CUDA 12\.9.* 'cpu' is accepted"):
        resolve_device("auto")
    assert resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.version, "cuda", None)  # a build of torch for CPUs, chosen at the installation
    assert resolve_device("auto") == torch.device("cpu")
