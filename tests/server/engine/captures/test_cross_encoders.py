"""Settings of scores in the files of a CrossEncoder; an unsupported setting is an error, never guessed.

tests/server/dialects/test_reranking.py compares the scores with sentence-transformers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore

from lightwell.model.checkpoint.folder import PACKAGED, ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.network.cross_encoder import ScoreDefaults, TokenScore, score_defaults
from tests import tiny

QUERY = "Who lives in the wood?"
DOCUMENTS = (
    "The Wolf said: Little Pig, Little Pig, let me come in!",
    "a",
    "Once upon a time there was a little girl who lived in a house beside the wood, and there were 3 bears.",
    "ÜBERMUT tut selten gut. Où est le Château ? 茨姫は眠っている。",
)
PAIRS = [(QUERY, document) for document in DOCUMENTS]
_IDENTITY = "torch.nn.modules.linear.Identity"


def defaults_of(folder: Path) -> ScoreDefaults:
    found = score_defaults(folder, read_config(folder))
    assert found is not None
    return found


def theirs(folder: Path, prompt_name: str | None = None) -> np.ndarray:
    model = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    scores: np.ndarray = model.predict(PAIRS, prompt_name=prompt_name)
    return scores.reshape(len(PAIRS), -1)


def save(family: str, top: Path, num_labels: int = 1, **options: Any) -> Path:
    """Save a folder as the library does."""
    padded = {"pad_token_id": 1} if family == "qwen3" else {}  # the library always pads
    raw = tiny.make_classifier(family, top / "raw", num_labels=num_labels, **padded)
    edit(raw / "tokenizer.json", lambda file: file["post_processor"].update(pair=_pair(file["post_processor"])))
    more: dict[str, Any] = {"pad_token": tiny.EOS} if padded else {}
    if family == "bert":
        more = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    edit(raw / "tokenizer_config.json", lambda file: file.update(more))
    CrossEncoder(str(raw), device="cpu", local_files_only=True, **options).save(str(top / "folder"))
    return top / "folder"


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def _pair(template: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the template of a pair: the template of one text, then the second text and its end token."""
    single: list[dict[str, Any]] = template["single"]
    end = [{"SpecialToken": {**single[-1]["SpecialToken"], "type_id": 1}}] if "SpecialToken" in single[-1] else []
    return [*single, {"Sequence": {"id": "B", "type_id": 1}}, *end]


@pytest.mark.parametrize("false_id", [7, None])
def test_a_decoder_that_says_yes_or_no_is_scored_by_these_tokens(false_id: int | None, tmp_path: Path) -> None:
    raw = tiny.make("qwen3", tmp_path / "raw", pad_token_id=1)
    edit(raw / "tokenizer_config.json", lambda file: file.update(pad_token=tiny.EOS))
    modules = [Transformer(str(raw), transformer_task="text-generation"), LogitScore(5, false_id)]
    CrossEncoder(modules=modules, device="cpu").save(str(tmp_path / "folder"))
    defaults = defaults_of(tmp_path / "folder")
    assert defaults.token_score == TokenScore(true_id=5, false_id=false_id)
    assert defaults.is_declared
    assert not defaults.has_messages


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": _IDENTITY, "version": "4.1.0"}}, "identity"),
        ({"sbert_ce_default_activation_function": _IDENTITY}, "identity"),
        ({"sentence_transformers": {"activation_fn": "my.code.Activation"}}, "sigmoid"),
    ],
)
def test_older_folders_name_their_activation_in_config_json(
    written: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    folder = tiny.make_classifier("roberta", tmp_path, num_labels=1)
    edit(folder / "config.json", lambda file: file.update(written))
    defaults = defaults_of(folder)
    assert defaults.activation == expected
    assert defaults.is_declared == ("sentence_transformers" in written)


def test_what_is_not_supported_is_said(tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    edit(
        folder / "config_sentence_transformers.json",
        lambda file: file.update(activation_fn="torch.nn.modules.activation.GELU"),
    )
    assert "GELU" in (defaults_of(folder).refusal or "")
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Dense", "type": "x.Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert "Transformer, Dense" in (defaults_of(folder).refusal or "")
    (folder / "modules.json").write_text('[{"type": "x.Transformer"}, {"type": "x.LogitScore"}]', encoding="utf-8")
    assert "LogitScore needs a decoder" in (defaults_of(folder).refusal or "")


def test_ways_of_writing_pairs_that_are_not_supported_are_said(tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    path = folder / "sentence_bert_config.json"
    saved = path.read_text(encoding="utf-8")
    for written, named in (
        ({"processing_kwargs": {"text": {"max_length": 9}}}, "sets text"),
        ({"processing_kwargs": {"chat_template": {"truncation": False}}}, "sets truncation"),
        ({"modality_config": {"message": {"format": "auto"}}}, "format is 'auto'"),
    ):
        path.write_text(json.dumps({**json.loads(saved), **written}), encoding="utf-8")
        assert named in (defaults_of(folder).refusal or "")
    edit(path, lambda file: file.update(modality_config={"message": {"format": "flat"}}))
    assert defaults_of(folder).refusal is None


def test_a_network_that_does_not_label_has_no_scores() -> None:
    assert score_defaults(PACKAGED, read_config(PACKAGED)) is None


def test_a_yes_that_is_no_token_is_refused(tmp_path: Path) -> None:
    folder = tiny.make("qwen3", tmp_path)
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "x.LogitScore"}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}', encoding="utf-8")
    (folder / "1_LogitScore").mkdir()
    for written, named in (({"true_token_id": 9999}, "true_token_id is 9999"), ({}, "true_token_id is None")):
        (folder / "1_LogitScore" / "config.json").write_text(json.dumps(written), encoding="utf-8")
        with pytest.raises(ModelLoadError, match=named):
            defaults_of(folder)
