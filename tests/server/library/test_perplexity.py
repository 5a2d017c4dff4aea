"""`lightwell perplexity` against `transformers`' own loss, and its errors."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightwell.model.checkpoint.folder import PACKAGED
from lightwell.server.cli import main

TEXT = Path(__file__).parents[2] / "e2e" / "book_of_dragons.txt"
NUM_TOKENS, WINDOW = 700, 512


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    lines = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    return {name.strip(): float(number.rstrip("%").replace(",", "")) for name, number in lines}


def test_perplexity_is_that_of_transformers_and_int8_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--dtype", "float32", "--text", str(TEXT), "--max-tokens", str(NUM_TOKENS)]
    assert main(["perplexity", str(PACKAGED), *arguments, "--quantize", "int8", "--against", str(PACKAGED)]) == 0
    found = printed(capsys)
    reference = AutoModelForCausalLM.from_pretrained(PACKAGED, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(PACKAGED)
    ids = tokenizer(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"][:NUM_TOKENS]
    loss = 0.0
    for first in range(0, NUM_TOKENS - 1, WINDOW - 1):
        part = torch.tensor([ids[first : first + WINDOW]])
        with torch.inference_mode():
            loss += float(reference(part, labels=part).loss) * (part.shape[1] - 1)
    assert found["tokens"] == NUM_TOKENS - 1
    assert found["perplexity of other"] == pytest.approx(math.exp(loss / (NUM_TOKENS - 1)), rel=1e-4)
    assert found["perplexity"] != found["perplexity of other"]
    assert 0 < found["KL from other, mean"] < found["KL from other, 99 %"] < 0.1
    assert 90 < found["same likeliest token"] <= 100


def test_rows_rounded_to_8_bits_cost_less_than_weights_of_4_and_need_such_weights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["perplexity", str(PACKAGED), "--text", str(TEXT), "--max-tokens", "300", "--against", str(PACKAGED)]
    assert main([*arguments, "--quantize", "int8"]) == 0
    exact = printed(capsys)
    assert main([*arguments, "--quantize", "int8", "--activations", "int8"]) == 0
    rounded = printed(capsys)
    assert main([*arguments, "--quantize", "int8", "--activations", "auto"]) == 0
    assert printed(capsys) == rounded
    assert exact["perplexity"] != rounded["perplexity"]
    assert main([*arguments, "--quantize", "int4"]) == 0
    assert rounded["KL from other, mean"] < printed(capsys)["KL from other, mean"]
    assert main([*arguments, "--activations", "int8"]) == 1
    assert "no weight of" in capsys.readouterr().err
    assert main([*arguments, "--activations", "auto"]) == 0
    assert printed(capsys)["KL from other, mean"] == 0


def test_a_model_is_what_it_is_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--text", str(TEXT), "--max-tokens", "20", "--against", str(PACKAGED)]
    assert main(["perplexity", str(PACKAGED), *arguments]) == 0
    found = printed(capsys)
    assert found["KL from other, mean"] == 0
    assert found["same likeliest token"] == 100


def test_a_text_that_says_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").touch()
    assert main(["perplexity", str(PACKAGED), "--text", str(tmp_path / "text")]) == 1
    assert "0 tokens" in capsys.readouterr().err
