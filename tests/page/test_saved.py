"""Other programs can read the files of the Save menus: pictures by their formats, the API's numbers as npy and as CSV.

The menus are found on the page, and a saved array is looked up by its file's name: a new entry of a menu fails here
until its numbers are listed below.
"""

import base64
import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import TEXT, Open, ask
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

LAYER, HEAD, QUERY, KEY = 1, 3, 7, 6
PLACE = {"layer": LAYER, "head": HEAD, "query": QUERY, "key": KEY}
TEXTS = ["The king sat on his throne.", "The wolf ran through the forest.", "The ship sailed over the sea."]

Arrays = dict[str, Any]


class Api:
    """The answers that the saved numbers must equal."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def get(self, route: str) -> Any:
        return ask(self._server, route)

    def post(self, name: str, **body: Any) -> Any:
        """Return the only entry of a route's answer."""
        return ask(self._server, f"/v1/{name}", body)["data"][0]

    def arrays(self, name: str, **body: Any) -> Arrays:
        return {key: np.array(made["data"], float) for key, made in self.post(name, **body)["arrays"].items()}

    def point(self, name: str, **body: Any) -> Any:
        (found,) = self.post("trace", input=TEXT, points=[name], layers=LAYER, **body)["points"].values()
        return np.array(found["data"], float)

    def guess(self) -> int:
        """Return the likeliest token after the query."""
        found = self.post("next", input=TEXT, position=QUERY, num_tokens=1)["temperatures"][0]["tokens"]
        return int(found[0]["token_id"])


def weights(api: Api, kind: str) -> Any:
    """Return the chosen head's numbers, [query, key]; masked numbers are null in JSON."""
    found = api.post("attention", input=TEXT, layers=LAYER, heads=HEAD, kind=kind)["attention"][0][0]
    return np.array([[-np.inf if value is None else value for value in row] for row in found])


def attention(api: Api) -> Arrays:
    wall = api.post("attention", input=TEXT, dtype="uint8")["attention"]
    return {"attention-all-heads": wall, f"layer-{LAYER}-head-{HEAD}": weights(api, "pattern")}


def attention_scores(api: Api) -> Arrays:
    found = np.array(api.post("attention", input=TEXT, kind="scores")["attention"], float)
    wall = np.where(np.isnan(found), -np.inf, found)  # masked numbers are null in JSON
    return {"attention-all-heads": wall, f"layer-{LAYER}-head-{HEAD}": weights(api, "scores")}


def attention_norms(api: Api) -> Arrays:
    norms = api.arrays("contributions", input=TEXT, query_positions="all")["norms"]
    return {"attention-all-heads": norms, f"layer-{LAYER}-head-{HEAD}": norms[LAYER, HEAD]}


def why(api: Api) -> Arrays:
    found = api.arrays("explain", input=TEXT, layer=LAYER, head=HEAD, query_position=QUERY)
    name = f"why-layer{LAYER}-head{HEAD}-query{QUERY}"
    q, k, products = found["q"], found["k"][KEY], found["products"][KEY]
    by_size = np.argsort(-products, kind="stable")
    in_order = products[by_size]
    shares = np.argsort(-found["weights"], kind="stable")
    shares = shares[found["weights"][shares] > 0]
    added = found["weighted_v"]
    return {
        f"{name}-weights": found["weights"],
        f"{name}-products": found["products"],
        "vectors": api.point("ln1.hook_out", positions=[QUERY, KEY]),
        "q-and-k": [found["q_projected"], found["k_projected"][KEY]],
        "turned-q-and-k": [found["q_projected"], q, found["k_projected"][KEY], k],
        "dot": [q[by_size], k[by_size], in_order, np.cumsum(in_order)],
        "value": [found["v"][KEY], added[KEY]],
        "weighted-values": [*added[shares[:6]], added[shares[6:]].sum(0), found["z"]],
        "output": [found["output"]],
    }


def contributions(api: Api) -> Arrays:
    found = api.arrays("contributions", input=TEXT, query_positions=QUERY, target=api.guess())
    way = api.arrays("trajectory", input=TEXT, positions=QUERY, compare_positions=KEY)
    reasons = api.post("next", input=TEXT, position=QUERY, num_tokens=6, explain=True)["reasons"]
    return {
        "contributions-lengths-layer-head-key": found["norms"][:, :, 0],
        "contributions-pushes-on-the-logit-layer-head-key": found["attributions"][:, :, 0],
        "contributions-parts-of-the-logit": found["components"][0],
        "contributions-by-head": found["attributions"].sum((2, 3)),
        "logit-parts": found["components"][0],
        "lengths": [way["norms"][0], way["steps"][0]],
        "directions": [way["cosine_to_start"][0], way["cosine_to_previous"][0], way["cosine_to_others"][0, :, 0]],
        "reasons": np.array([*(part["value"] for part in reasons["parts"]), *reasons["rest"].values()]),
    }


def motion(api: Api) -> Arrays:
    body = {"query_positions": QUERY, "vectors": True, "sum_over": ["layer", "head"]}
    entry = api.post("contributions", input=TEXT, **body)
    vectors, additions = (np.array(entry["arrays"][name]["data"], float)[..., :] for name in ("vectors", "additions"))
    summed = [sum(additions[i, 0] for i, name in enumerate(entry["addition_names"]) if name.endswith(end))
              for end in ("hook_embed", "hook_mlp_out", "rounding")]  # fmt: skip
    return {"motion": np.stack([summed[0], *vectors[0, : QUERY + 1], *summed[1:]])}


def lens(api: Api) -> Arrays:
    found = api.arrays("lens", input=TEXT, top_k=1)
    followed = api.arrays("lens", input=TEXT, positions=QUERY, target=api.guess())
    return {
        "lens-probability-of-the-top-word": found["probabilities"][:, :, 0],
        "lens-entropy": found["entropy"],
        "ranks": followed["target_ranks"][:, 0],
        "probabilities": followed["target_probabilities"][:, 0],
    }


def next_token(api: Api) -> Arrays:
    found = api.arrays("next", input=TEXT, position=QUERY, top_p=0.8, full=True)
    return {"next-token": np.stack([found["probabilities"][0], found["kept"][0]])}


def heads(api: Api) -> Arrays:
    return {"heads": api.arrays("heads", input=TEXT)["scores"].reshape(6 * 8, -1)}


def flow(api: Api) -> Arrays:
    tensor = api.point("hook_resid_pre")
    name = f"blocks.{LAYER}.hook_resid_pre"
    return {name: tensor, f"{name}-histogram": np.histogram(tensor, bins=41)[0][:, None]}


def stacks(api: Api) -> Arrays:
    return {f"mask-layer{LAYER}": np.tri(len(weights(api, "pattern")))}


def embeddings(api: Api) -> Arrays:
    vectors = np.array([api.post("embeddings", input=text)["embedding"] for text in TEXTS])
    lengths = np.linalg.norm(vectors, axis=1)
    left, singular, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    return {
        "cosines": vectors @ vectors.T / np.outer(lengths, lengths),
        "texts-vectors": vectors,
        "texts-places": np.abs(left[:, :2] * singular[:2]),  # an axis may point either way
    }


def model_weights(api: Api) -> Arrays:
    census = api.get("/v1/models/fables/parameters")["rows"]
    geometry = api.get("/v1/models/fables/geometry?matrix=W_E")["data"][0]
    counts = np.array(geometry["arrays"]["histogram"]["data"], float)
    centres = (np.arange(len(counts)) + 0.5) * 2 / len(counts) - 1
    random = (1 - centres**2) ** ((geometry["dimension"] - 3) / 2)  # density of the cosine of random directions
    circuits = api.arrays("circuits", layers=LAYER, heads=HEAD)
    return {
        "parameters": [[row["count"], row["parameters"], row["share"]] for row in census],
        "cosines": np.stack([counts, random / random.sum() * counts.sum()], 1),
        "circuits": [circuits[f"{name}.singular_values"][0, 0] for name in ("ov", "qk")],
    }


def nothing(api: Api) -> Arrays:
    return {}


@dataclass(frozen=True)
class Saved:
    """The files of a view: its arrays by file name, the number of menus, and of menus `without` a picture."""

    arrays: Callable[[Api], Arrays]
    num_menus: int
    without: int = 0
    state: dict[str, str] = field(default_factory=dict)


HEADINGS: dict[str, Callable[[Api], list[str]]] = {
    f"layer-{LAYER}-head-{HEAD}": lambda api: api.post("attention", input=TEXT, layers=0, heads=0)["tokens"],
    "heads": lambda api: api.post("heads", input=TEXT)["measures"],
    "logit-parts": lambda api: api.post(
        "contributions", input=TEXT, query_positions=QUERY, target=api.guess()
    )["component_names"],
}  # fmt: skip
"""The headings of the columns of some tables, by file name."""


SAVED = {
    "chat": Saved(nothing, 0),
    "attention": Saved(attention, 3),
    "attention, scores": Saved(
        attention_scores, 3, state={"attention_kind": "scores", "attention_orientation": "columns"}
    ),
    "attention, norms": Saved(attention_norms, 2, state={"attention_kind": "norm", "attention_picture": "matrix"}),
    "why": Saved(why, 8, without=1),
    "contributions": Saved(contributions, 6, without=2),
    "motion": Saved(motion, 1),
    "lens": Saved(lens, 3),
    "next": Saved(next_token, 1, state={"next_top_p": "0.8"}),
    "heads": Saved(heads, 1, state={"heads_on": "text"}),
    "flow": Saved(flow, 3, state={"flow_open": "hook_resid_pre"}),
    "stacks": Saved(stacks, 4),
    "embeddings": Saved(embeddings, 2, state={"embeddings_texts": "\n".join(TEXTS)}),
    "weights": Saved(model_weights, 3),
    "server": Saved(nothing, 0),
}


SWEEP = ("attention, scores", "attention, norms")
"""Other numbers of the attention's pictures, which only `make test-nightly` saves."""


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.nightly if what in SWEEP else []) for what in SAVED]
)
def test_all_that_a_view_saves_is_what_it_shows(
    open_view: Open, decoder: Page, server: Server, tmp_path: Path, what: str
) -> None:
    saved = SAVED[what]
    page = open_view(what.partition(",")[0], **PLACE, **saved.state)
    if "attention" in what:
        expect(page.locator(".wall-name")).to_have_text(f"layer {LAYER}, head {HEAD} is open")  # all layers are here
    check_saved(page, decoder, server, tmp_path, saved)


def check_saved(page: Page, decoder: Page, server: Server, tmp_path: Path, saved: Saved) -> None:
    """Save every file that the page's menus offer, and compare it with the expected numbers."""
    menus = page.get_by_role("button", name="Save…")
    expect(menus).to_have_count(saved.num_menus)
    api = Api(server)
    pictures: set[str] = set()
    arrays: Arrays = {}
    for number in range(saved.num_menus):
        files = save_all(page, menus.nth(number), tmp_path / str(number))
        if "picture (PNG)" in files:
            png, svg = files.pop("picture (PNG)"), files.pop("picture (SVG)")
            check_picture(decoder, png, svg, sizes_beside(menus.nth(number)))
            pictures.add(png.stem)
        for label in {name.rpartition(" ")[0] for name in files}:
            npy, table = files.pop(f"{label} (npy)"), files.pop(f"{label} (CSV)")
            headings, arrays[npy.stem] = read_both(npy, table)
            if npy.stem in HEADINGS:
                assert headings[-arrays[npy.stem].shape[-1] :] == HEADINGS[npy.stem](api)
        assert not files
    assert len(pictures) == saved.num_menus - saved.without
    expected = saved.arrays(api)
    assert sorted(arrays) == sorted(expected)
    for name, right in expected.items():
        shown = np.abs(arrays[name]) if name == "texts-places" else arrays[name]
        np.testing.assert_allclose(shown, right, rtol=2e-5, atol=1e-6, err_msg=name)


DOWNLOAD_MS = 110
"""Milliseconds between two downloads: Chromium silently drops downloads beyond ten in a second."""


def save_all(page: Page, menu: Locator, folder: Path) -> dict[str, Path]:
    """Return each file that the menu offers, by its name there."""
    menu.click()
    items = menu.locator("xpath=..").locator("li button")
    names = items.all_inner_texts()
    files = {}
    for name in names:
        if not items.count():
            menu.click()
        page.wait_for_timeout(DOWNLOAD_MS)
        with page.expect_download() as download:
            items.get_by_text(name, exact=True).click()
        files[name] = folder / download.value.suggested_filename
        download.value.save_as(files[name])
    assert len(set(files.values())) == len(names)
    return files


def sizes_beside(menu: Locator) -> list[list[int]]:
    """Return width and height, in CSS pixels, of the pictures in the nearest part of the page that has some."""
    beside = menu.locator("xpath=ancestor::*[.//figure][1]").locator("figure.picture .canvases canvas:first-child")
    measure = "all => all.map((one) => [one.getBoundingClientRect().width, one.getBoundingClientRect().height])"
    sizes: list[list[int]] = beside.evaluate_all(measure)
    return sizes


# Draws both files, with four pixels of the PNG as one, so that the edges of letters have little weight. Returns the
# share of drawn pixels (unlike the corner's colour) and the share of pixels that differ between both files.
COMPARE = """
async (files) => {
  const [png, svg] = await Promise.all(["png", "svg+xml"].map(async (type, i) => {
    const image = new Image();
    image.src = `data:image/${type};base64,${files[i]}`;
    await image.decode();
    return image;
  }));
  const [wide, tall] = [png.naturalWidth, png.naturalHeight];
  const drawn = (picture, width, height) => {
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, 0, 0, width, height);
    return context;
  };
  const [one, other] = [png, svg].map((image) => {
    const [width, height] = [Math.ceil(wide / 4), Math.ceil(tall / 4)];
    return drawn(drawn(image, wide, tall).canvas, width, height).getImageData(0, 0, width, height).data;
  });
  const distance = (data, at, i) => Math.max(...[0, 1, 2].map((part) => Math.abs(one[i + part] - data[at + part])));
  let [marked, unlike] = [0, 0];
  for (let i = 0; i < one.length; i += 4) {
    if (distance(one, 0, i) > 24) marked += 1;
    if (distance(other, i, i) > 48) unlike += 1;
  }
  const pixels = one.length / 4;
  return { size: [wide, tall], marked: marked / pixels, unlike: unlike / pixels };
}
"""


def check_picture(decoder: Page, png: Path, svg: Path, sizes: list[list[int]]) -> None:
    """Check that the PNG has twice the picture's size and is not blank, and that the SVG has its size and draws the
    same.
    """
    seen = decoder.evaluate(COMPARE, [base64.b64encode(path.read_bytes()).decode() for path in (png, svg)])
    assert [side / 2 for side in seen["size"]] in sizes, png.name
    assert seen["marked"] > 0.005, f"{png.name}: {seen}"
    # fine letters are drawn a little otherwise, 0.27 of a plane of short texts; without its text or its lines it would
    # be more than half
    assert seen["unlike"] < 0.4 * seen["marked"], f"{svg.name}: {seen}"
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert [float(root.attrib["width"]), float(root.attrib["height"])] in sizes, svg.name


def read_both(npy: Path, table: Path) -> tuple[list[str], Any]:
    """Return the table's first line and the array, after checking that the CSV's last columns have the same numbers."""
    array = np.load(npy)
    with table.open(newline="", encoding="utf-8") as opened:
        lines = list(csv.reader(opened))
    rows = array.size // array.shape[-1]
    assert len(lines) - rows in (0, 1), "more than a line of headings"
    cells = np.array([line[1:] for line in lines[-rows:]], float)
    np.testing.assert_array_equal(cells.astype(array.dtype).ravel(), array.ravel(), err_msg=table.name)
    return lines[0], array
