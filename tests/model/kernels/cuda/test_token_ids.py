"""A step's tokens are its own, or the tokens that the previous step has chosen."""

import random

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
from lightwell.model.kernels.cuda.token_ids import known_tokens
from tests.model.kernels.cuda.card import DEVICE


def test_tokens_that_are_not_known_are_taken_from_the_last_step() -> None:
    last = [random.randrange(1 << 40) for _ in range(7)]
    own = [random.choice([random.randrange(1 << 20), -1 - random.randrange(7)]) for _ in range(random.choice([1, 600]))]
    found = known_tokens(
        torch.tensor(own, dtype=torch.int32, device=DEVICE), torch.tensor(last, dtype=torch.int64, device=DEVICE)
    )
    assert found.tolist() == [token if token >= 0 else last[-1 - token] for token in own]
