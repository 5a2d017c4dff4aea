"""A checkpoint's default sampling parameters, from generation_config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightwell.model.checkpoint.folder import PACKAGED, ModelLoadError
from lightwell.model.checkpoint.generation_defaults import SamplingDefaults, read_sampling_defaults


def read(folder: Path, **values: Any) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return read_sampling_defaults(folder)


def test_what_the_file_says_counts_and_the_rest_is_plain(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == read_sampling_defaults(PACKAGED) == SamplingDefaults()
    qwens = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "do_sample": True}
    assert read(tmp_path, **qwens, min_p=None, eos_token_id=[1, 2]) == SamplingDefaults(
        temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05
    )
    assert read(tmp_path, temperature=0, top_k=-1) == SamplingDefaults(temperature=0, top_k=0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temperature": -1}, "temperature is -1; a number from 0 to 100"),
        ({"temperature": "hot"}, "temperature is 'hot'; a number"),
        ({"top_p": 0}, "top_p is 0; a number"),
        ({"top_k": True}, "top_k is True; a number"),
        ({"min_p": float("nan")}, "min_p is nan; a number"),
        ({"repetition_penalty": 10**400}, "a number from 1e-09 to 100"),
    ],
)
def test_a_value_that_no_request_may_have_is_named(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: ") as caught:
        read(tmp_path, **values)
    assert said in str(caught.value)
