"""How an answer starts, and the first position's number, by a checkpoint's files."""

import json
from pathlib import Path

import pytest

from lightwell.model.checkpoint.folder import ModelLoadError
from tests.model.checkpoint.test_families import OWN_SIZES, read, sizes_of


def test_how_an_answer_starts_comes_from_the_generation_config_first(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"decoder_start_token_id": 7, "bad_words_ids": [[9], [3, 4]], "suppress_tokens": [5]}),
        encoding="utf-8",
    )
    values = {**sizes_of("MarianMTModel"), "architectures": ["MarianMTModel"], "forced_bos_token_id": 3}
    config = read(tmp_path, values)
    assert (config.decoder_start_token_id, config.forced_bos_token_id) == (7, 3)
    assert config.suppressed_token_ids == (9, 5)


@pytest.mark.parametrize(
    ("ids", "start"),
    [({"decoder_start_token_id": 4, "bos_token_id": 5}, 4), ({"bos_token_id": 5, "pad_token_id": 6}, 5),
     ({"pad_token_id": 6}, 6)],
)  # fmt: skip
def test_an_answer_starts_with_the_first_id_that_is_named(tmp_path: Path, ids: dict[str, int], start: int) -> None:
    values = {**OWN_SIZES["t5"], "architectures": ["T5ForConditionalGeneration"]}
    assert read(tmp_path, {**values, **ids}).decoder_start_token_id == start


def test_an_encoder_decoder_that_names_no_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="decoder_start_token_id is None; the id that every answer starts with"):
        read(tmp_path, {**OWN_SIZES["t5"], "architectures": ["T5ForConditionalGeneration"]})


def test_positions_are_counted_from_where_the_family_counts_them(tmp_path: Path) -> None:
    for architecture, options, expected in (
        ("RobertaModel", {"max_position_embeddings": 514}, (512, 2)),
        ("MPNetModel", {"max_position_embeddings": 514}, (512, 2)),
        ("BartForConditionalGeneration", {"max_position_embeddings": 1024}, (1024, 2)),
        ("OPTForCausalLM", {"max_position_embeddings": 2048}, (2048, 2)),
        ("BertModel", {"max_position_embeddings": 512}, (512, 0)),
    ):
        config = read(tmp_path, {**sizes_of(architecture), "architectures": [architecture], **options})
        assert (config.max_model_len, config.position_offset) == expected
