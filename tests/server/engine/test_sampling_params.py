"""Tokens that end a request: the model's end-of-text tokens and the request's own stop tokens."""

import pytest

from server.engine.sampling_params import SamplingParams


@pytest.mark.parametrize(("ignore_eos", "expected"), [(False, {3, 4, 9}), (True, {9})])
def test_stop_tokens_end_a_request_beside_the_end_of_text_unless_it_is_ignored(
    ignore_eos: bool, expected: set[int]
) -> None:
    params = SamplingParams(max_tokens=4, seed=0, eos_token_ids=(3, 4), ignore_eos=ignore_eos, stop_token_ids=(9,))
    assert params.stopping_ids == expected
