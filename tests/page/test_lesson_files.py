"""The files of lessons: an error in one is reported clearly, and each sentence about two models is true when
recomputed.
"""

import copy
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.registry import read_config
from model.checkpoint.resolve import smollm2_file
from model.checkpoint.weight_files import load_weights
from tests import reference
from tests.page import lessons
from tests.page.conftest import ask
from tests.reference.contributions import Contributions
from tests.source_tree import ROOT
from tests.support.processes import Server, serve

Points = dict[str, np.ndarray]
FABLES = ROOT / "model" / "fables"


@pytest.mark.parametrize("name", lessons.NAMES)
def test_a_lessons_file_is_whole(name: str) -> None:
    assert lessons.problems(lessons.read(name)) == []


def test_every_file_of_the_folder_is_in_the_list() -> None:
    assert sorted(lessons.NAMES) == sorted(path.stem for path in lessons.FOLDER.glob("*.json") if path.stem != "list")


def say(sentence: object) -> Callable[[dict[str, Any]], object]:
    """Return a change that adds a sentence to a lesson's first step."""
    return lambda lesson: lesson["steps"][0]["say"].append(sentence)


def ask_also(value: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    """Return a change that adds a value to a lesson."""
    return lambda lesson: lesson["values"].update(more=value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lesson: lesson.pop("title"), "the lesson has no 'title'"),
        (lambda lesson: lesson.update(levels=3), "the lesson has 'levels', which nothing reads"),
        (lambda lesson: lesson.pop("otherwise"), "does not say 'otherwise'"),
        (lambda lesson: lesson["steps"][0].update(view="atention"), "in the view 'atention', which is none of"),
        (lambda lesson: lesson["steps"][0].update(select={"haed": 1}), "selects 'haed', which is no field"),
        (say("{lok.value}"), "{lok} is quoted, which is none of the values"),
        (say("{sum:percnt}"), "{sum:percnt} has no format of that name"),
        (say({"if": "{sum} is 1", "say": "."}), "the condition '{sum} is 1'"),
        (say({"say": "."}), "neither text nor an 'if'"),
        (ask_also({"route": "/v1/next"}), "does not say which 'value' of the answer"),
        (ask_also({"compute": "mean", "of": []}), "computes 'mean', which is none of"),
        (ask_also({"words": "it"}), "none of a 'word', a 'compute' of values"),
        (ask_also({"word": "it"}), "the value 'more' is quoted nowhere"),
    ],
)
def test_an_error_in_a_file_is_told(change: Callable[[dict[str, Any]], object], said: str) -> None:
    lesson = copy.deepcopy(lessons.read("six-steps"))
    change(lesson)
    assert any(said in problem for problem in lessons.problems(lesson)), lessons.problems(lesson)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Server]:
    try:
        smollm2_file()
    except ModelLoadError as error:
        pytest.skip(str(error))
    with serve(["smollm2"]) as running:
        yield running


class Recomputed:
    """The numbers of answers, computed by numpy from the points of a pass and, where they are known, from weights."""

    def __init__(self, points: Callable[..., Points], config: dict[str, Any], tolerance: float) -> None:
        self.points, self.tolerance = cache(points), tolerance
        self.stack = config["stacks"]["decoder"]
        self.checked = 0

    def close(self, found: Any, expected: Any) -> None:
        """Assert that numbers are equal within the tolerance times the largest of them."""
        found, expected = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
        assert np.abs(found - expected).max() <= self.tolerance * max(1.0, np.abs(expected).max())
        self.checked += 1

    def dots(self, text: str, layer: int) -> np.ndarray:
        """Return q.k of all heads of a layer, [H, S, S], before the scale and the mask."""
        q, k = (self.points(text)[f"blocks.{layer}.attn.hook_rot_{which}"] for which in "qk")
        dots: np.ndarray = np.einsum("qhd,khd->hqk", q, np.repeat(k, q.shape[1] // k.shape[1], axis=1))
        return dots

    def pattern(self, text: str, layer: int) -> np.ndarray:
        """Return the weights of all heads of a layer, [H, S, S]."""
        scores = self.dots(text, layer) * self.stack["attention_scale"]
        scores[:, np.triu(np.ones(scores.shape[1:], dtype=bool), 1)] = -np.inf
        return softmax(scores)

    def check(self, route: str, body: Any, answer: Any) -> None:
        """Assert that an answer's numbers equal the numbers computed here, if the route has a method for it."""
        check = getattr(self, f"_{route.strip('/').replace('v1/', '')}", None)
        if check is not None:
            check(body, answer["data"])

    def _attention(self, body: Any, data: Any) -> None:
        (entry,) = data
        patterns = np.stack([self.pattern(body["input"], layer) for layer in entry["layers"]])[:, entry["heads"]]
        for change in body.get("interventions", []):
            assert change["op"] == "temperature"
            patterns = patterns ** (1 / change["value"])  # softmax of the scores / value, before normalisation
            patterns /= patterns.sum(axis=-1, keepdims=True)
        self.close(entry["attention"], patterns[:, :, entry["query_positions"]][..., entry["key_positions"]])

    def _explain(self, body: Any, data: Any) -> None:
        arrays = {name: array["data"] for name, array in data[0]["arrays"].items()}
        text, layer, head, query = (body[name] for name in ("input", "layer", "head", "query_position"))
        weights = self.pattern(text, layer)[head, query]
        v = self.points(text)[f"blocks.{layer}.attn.hook_v"]
        v = v[:, head * v.shape[1] // self.stack["num_heads"]]
        self.close(arrays["dots"], self.dots(text, layer)[head, query])
        self.close(arrays["weights"], weights)
        self.close(arrays["v"], v)
        self.close(arrays["z"], weights @ v)

    def _next(self, body: Any, data: Any) -> None:
        zeroed = [(one["layer"], one["head"]) for one in body.get("interventions", []) if one["op"] == "zero"]
        logits = self.points(body["input"], *zeroed)["logits"][data[0]["position"]]
        for row in data[0]["temperatures"]:
            p = softmax(logits / row["temperature"])
            self.close([one["probability"] for one in row["tokens"]], p[[one["token_id"] for one in row["tokens"]]])
            self.close(row["entropy"], -(p[p > 0] * np.log(p[p > 0])).sum())

    def _geometry(self, body: Any, data: Any) -> None:
        found = {name: array["data"] for name, array in data[0]["arrays"].items()}
        neurons = self.points(body["input"])[f"blocks.{body['layer']}.{body['point']}"]
        correlations = np.corrcoef(neurons[:, neurons.std(axis=0) > 0].T)
        self.close(np.abs(found["strongest_correlations"]), [np.abs(np.triu(correlations, 1)).max()])
        self.close(found["strongest_correlations"], [np.corrcoef(neurons[:, found["strongest_pairs"][0]].T)[0, 1]])

    def _lens(self, body: Any, data: Any) -> None:
        (entry,) = data
        p = softmax(self.points(body["input"])["logits"][entry["positions"][0]])
        best = entry["arrays"]["ids"]["data"][-1][0][0]
        self.close(entry["arrays"]["probabilities"]["data"][-1][0][0], p[best])
        self.close(p.max(), p[best])

    def _embeddings(self, body: Any, data: Any) -> None:
        point = "hook_embed" if body.get("layer") == 0 else "ln_final.hook_out"
        for text, entry in zip(body["input"], data, strict=True):
            vector = self.points(text)[point][-1]
            self.close(entry["embedding"], vector / np.linalg.norm(vector))

    def _trajectory(self, body: Any, data: Any) -> None:
        (position,), count = data[0]["positions"], self.stack["num_layers"]
        points = self.points(body["input"])
        names = [f"blocks.{layer}.hook_resid_pre" for layer in range(count)] + [f"blocks.{count - 1}.hook_resid_post"]
        states = np.stack([points[name][position] for name in names])
        lengths = np.linalg.norm(states, axis=1)
        self.close(data[0]["arrays"]["norms"]["data"][0], lengths)
        self.close(data[0]["arrays"]["cosine_to_start"]["data"][0], states @ states[0] / lengths / lengths[0])

    def _trace(self, body: Any, data: Any) -> None:
        for name, point in data[0]["points"].items():
            self.close(point["data"], self.points(body["input"])[name][point["positions"]])


class FromWeights(Recomputed):
    """The numbers of the built-in model, from its weights only: everything is computed in float64 by the reference."""

    def __init__(self, server: Server) -> None:
        self.config = read_config(FABLES)
        self.weights = load_weights(FABLES, self.config, torch.float64)
        self._server = server
        self.trace = cache(self._trace_of)
        super().__init__(self._points, ask(server, "/v1/capabilities"), tolerance=0.03)  # the server's is bfloat16

    def _trace_of(self, text: str, zeroed: tuple[int, int] | None = None) -> reference.Trace:
        weights = dict(self.weights)
        if zeroed is not None:  # the columns of W_O of that head are set to zero
            name = f"layers.{zeroed[0]}.attn_out.weight"
            weights[name] = weights[name].clone()
            weights[name][:, zeroed[1] * self.config.head_dim :][:, : self.config.head_dim] = 0
        return reference.run(self.config, weights, ask(self._server, "/tokenize", {"prompt": text})["tokens"])

    def _points(self, text: str, zeroed: tuple[int, int] | None = None) -> Points:
        return {name: point.numpy() for name, point in self.trace(text, zeroed).points.items()}

    def check(self, route: str, body: Any, answer: Any) -> None:
        if route.endswith("/parameters"):
            assert answer["total"] == sum(weight.numel() for weight in self.weights.values())
            self.checked += 1
        elif "/geometry?matrix=W_E" in route:
            rows = self.weights["embed.weight"].numpy().copy()
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
            found = answer["data"][0]["cosines"]
            self.close([found["mean"], found["std"]], [cosines.mean(), cosines.std()])
        else:
            super().check(route, body, answer)

    def _contributions(self, body: Any, data: Any) -> None:
        (entry,) = data
        of = Contributions(self.trace(body["input"]), self.weights, "decoder")
        queries, keys = entry["query_positions"], entry["key_positions"]
        for name, array in entry["arrays"].items():
            if name not in ("norms", "attributions"):
                continue
            for layer, found in zip(entry["layers"], array["data"], strict=True):
                all_heads = of.vectors(layer).norm(dim=-1) if name == "norms" else of.logits(layer, body["target"])
                self.close(found, all_heads[entry["heads"]][:, queries][..., keys])
        if body.get("sum_over") == ["key"]:
            (layer,) = entry["layers"]
            self.close(entry["arrays"]["vectors"]["data"][0], of.vectors(layer)[:, queries].sum(2))

    def _circuits(self, body: Any, data: Any) -> None:
        layer, head, width = body["layers"], body["heads"], self.config.head_dim
        own = slice(head * width, (head + 1) * width)
        w_v = self.weights[f"layers.{layer}.qkv.weight"][2 * self.config.num_heads * width :][own]
        ov = self.weights[f"layers.{layer}.attn_out.weight"][:, own] @ w_v
        share = np.linalg.svd(ov.numpy(), compute_uv=False)[:width]
        share /= share.sum()
        self.close(data[0]["arrays"]["ov.effective_rank"]["data"][0][0], np.exp(-(share * np.log(share)).sum()))


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials: np.ndarray = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return shares


POINTS = ("attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_v", "hook_resid_pre", "hook_resid_post", "hook_resid_mid",
          "hook_attn_out", "mlp.hook_post", "hook_embed", "ln_final.hook_out", "logits")  # fmt: skip


def traced(server: Server) -> Callable[[str], Points]:
    """Return a function that returns the points of a text, from the server's network."""

    def points(text: str, zeroed: tuple[int, int] | None = None) -> Points:
        body: dict[str, Any] = {"input": text, "points": POINTS, "dtype": "float32"}
        if zeroed is not None:
            body["interventions"] = [{"point": "attn.hook_z", "layer": zeroed[0], "head": zeroed[1], "op": "zero"}]
        headers = {"Content-Type": "application/json", "Accept": "application/vnd.safetensors"}
        request = urllib.request.Request(f"{server.url}/v1/trace", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return {name.partition("/")[2]: array for name, array in load(answer.read()).items()}

    return points


def replay(server: Server, numbers: Recomputed) -> None:
    """Assert for each lesson that all its values are found, and that the answers behind them equal recomputed ones."""
    for name in lessons.NAMES:
        replayed = lessons.Replayed(lessons.read(name), server)
        for step in replayed.lesson["steps"]:
            assert replayed.said(step), f"{name}: nothing is said of {step['title']}"
            assert {"text", *replayed.lesson.get("select", {}), *step.get("select", {})} == replayed.look(step).keys()
        missing = [value for value in replayed.lesson["values"] if replayed.value(value) is None]
        assert not missing, f"{name}: this model has no {missing}"
        for asked in replayed.asked:
            numbers.check(*asked)


def test_what_lessons_say_of_the_built_in_model_follows_from_its_weights(server: Server) -> None:
    numbers = FromWeights(server)
    replay(server, numbers)
    assert numbers.checked > 60


@pytest.mark.nightly
def test_what_lessons_say_of_smollm2_follows_from_its_points(smollm2: Server) -> None:
    numbers = Recomputed(traced(smollm2), ask(smollm2, "/v1/capabilities"), tolerance=0.005)
    replay(smollm2, numbers)
    assert numbers.checked > 40


DOCUMENT = (ROOT / "docs" / "lessons.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"^```json\n(.*?)^```\n.*?^```text\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
PICTURES = re.findall(r"^\| ([A-E]) \| .* \| ([\w-]+): (.*) \| (\w+)(?: `(.*)`)? \|$", DOCUMENT, re.MULTILINE)


def test_the_documents_example_is_whole_and_says_what_stands_below_it(server: Server) -> None:
    assert EXAMPLE
    lesson = json.loads(EXAMPLE[1])
    assert lessons.problems(lesson) == []
    replayed = lessons.Replayed(lesson, server)
    said = [sentence for step in lesson["steps"] for sentence in replayed.said(step)]
    digits = re.compile(r"\d+(?:\.\d+)?")  # the last ones are the CPU's affair
    assert [digits.sub("0", line) for line in said] == [digits.sub("0", line) for line in EXAMPLE[2].splitlines()]


def test_the_documents_table_has_every_step_with_its_view_and_selection() -> None:
    there = {
        (name, step["title"]): (step["view"], step.get("select", {}))
        for name in lessons.NAMES
        for step in lessons.read(name)["steps"]
        if name != "tour"
    }
    assert {(name, title) for _, name, title, _, _ in PICTURES} == there.keys()
    for _, name, title, view, fields in PICTURES:
        assert view == there[name, title][0], title
        chosen = {field: str(value) for field, value in there[name, title][1].items()}
        assert dict(parse_qsl(fields)).items() <= chosen.items(), title
