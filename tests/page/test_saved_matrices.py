"""Arrays saved from the pictures of matrices equal the weights in the built-in model's file and numpy's results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page
from safetensors import safe_open

from tests.page.conftest import Open
from tests.page.test_saved import HEAD, KEY, LAYER, PLACE, Api, Arrays, Saved, check_saved
from tests.support.processes import ROOT, Server

pytestmark = pytest.mark.usefixtures("kept_page")


def of_fables(name: str) -> Any:
    """Return a parameter of the built-in model's file."""
    with safe_open(ROOT / "model" / "fables" / "model.safetensors", "pt") as file:
        return file.get_tensor(f"model.{name}.weight").float().numpy()


def of_head(name: str) -> Any:
    """Return W_Q, W_K or W_V of the chosen head, [d_model, d_head]."""
    return of_fables(f"layers.{LAYER}.self_attn.{name}_proj")[HEAD * 32 : (HEAD + 1) * 32].T


def weight_numbers(api: Api) -> Arrays:
    return {f"blocks.{LAYER}.mlp.W_in": of_fables(f"layers.{LAYER}.mlp.up_proj").T[64:96, 656:688]}


def weight_product(api: Api) -> Arrays:
    x, matrix = api.point("ln1.hook_out", positions=KEY), of_head("v")
    return {"W_V-x-x": x, "W_V-x-w_v": matrix, "W_V-x-v": x @ matrix.astype(float)}


def weight_values(api: Api) -> Arrays:
    up = of_fables(f"layers.{LAYER}.self_attn.o_proj").T[HEAD * 32 : (HEAD + 1) * 32]
    name = f"layer-{LAYER}-head-{HEAD}-values"
    return {f"{name}-value-down": of_head("v"), f"{name}-value-up": up}


def weight_angles(api: Api) -> Arrays:
    rows = of_fables(f"layers.{LAYER}.mlp.up_proj")[:48].astype(float)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return {"cosines-of-vectors": unit @ unit.T - np.eye(48)}


def weight_positions(api: Api) -> Arrays:
    angles = np.arange(64)[:, None] / 10000 ** (np.arange(0, 128, 2) / 256)
    return {"sinusoids": np.stack([np.sin(angles), np.cos(angles)], -1).reshape(64, 128)}


def weight_units(api: Api) -> Arrays:
    return {"two-neurons": api.point("mlp.hook_post")[:, [5, 17]].T}


SAVED: list[tuple[Callable[[Api], Arrays], str, dict[str, Any]]] = [
    (weight_numbers, "numbers", {"weights_name": "blocks.{layer}.mlp.W_in", "weights_row": 64, "weights_column": 1000}),
    (weight_product, "product", {"weights_letter": "V"}),
    (weight_values, "rank", {}),
    (weight_angles, "angles", {"weights_between": "vectors", "weights_less": 1}),
    (weight_positions, "positions", {}),
    (weight_units, "units", {"weights_unit": 5, "weights_other": 17}),
]


@pytest.mark.parametrize(
    ("arrays", "shown", "state"),
    [pytest.param(*each, marks=[] if each[1] in ("numbers", "product") else pytest.mark.nightly) for each in SAVED],
)
def test_all_that_a_picture_saves_is_what_it_shows(
    open_view: Open, decoder: Page, server: Server, tmp_path: Path, arrays: Any, shown: str, state: dict[str, Any]
) -> None:
    page = open_view("weights", **PLACE, weights_show=shown, **state)
    check_saved(page, decoder, server, tmp_path, Saved(arrays, 1))
