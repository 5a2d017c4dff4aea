"""`LLM` by vLLM's names: log-probabilities, the defaults of `SamplingParams`, and settings that only servers have."""

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest

from lightwell.server.config.settings import Settings
from lightwell.server.library.llm import LLM, SamplingParams
from lightwell_client import Completion

CONTEXT = 48


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("fables", threads=1, max_model_len=CONTEXT, served_model_name="tales") as made:
        yield made


def logprobs_of(llm: LLM, answer: Completion) -> np.ndarray:
    """Return the log-probabilities [position, vocab] of the token after each of an answer's, from the logits."""
    assert answer.prompt_token_ids is not None
    token_ids = answer.outputs[0].token_ids
    assert token_ids is not None
    logits = llm.trace([*answer.prompt_token_ids, *token_ids], "logits")["logits"].astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def test_log_probabilities_are_by_token_id_with_the_chosen_token_first(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=7, max_tokens=8, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    (answer,) = llm.generate("The fox and the crow", params)
    expected = logprobs_of(llm, answer)
    (output,), prompt_ids = answer.outputs, answer.prompt_token_ids
    assert output.token_ids is not None
    assert output.logprobs is not None
    assert answer.prompt_logprobs is not None
    assert prompt_ids is not None
    assert answer.prompt_logprobs[0] is None
    begin = len(prompt_ids) - 1
    seen = [*zip(prompt_ids[1:], answer.prompt_logprobs[1:], strict=True)]
    seen += zip(output.token_ids, output.logprobs, strict=True)
    for position, (token_id, entry) in enumerate(seen):
        assert entry is not None
        row, count = expected[position], 3 if position >= begin else 2
        assert next(iter(entry)) == token_id
        assert {*entry} == {token_id, *np.argsort(-row)[:count].tolist()}
        for each, found in entry.items():
            assert found.logprob == pytest.approx(row[each], abs=1e-4)
            assert found.rank == 1 + int((row > row[each]).sum())
            assert found.decoded_token == llm.detokenize([each])
    total = sum(expected[begin + i, token_id] for i, token_id in enumerate(output.token_ids))
    assert output.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_each_choice_and_a_chat_have_log_probabilities_and_without_them_there_are_none(llm: LLM) -> None:
    params = SamplingParams(n=2, seed=7, max_tokens=3, logprobs=0, ignore_eos=True)
    for (answer,) in (llm.generate("A fox", params), llm.chat("A fox", params)):
        assert [output.index for output in answer.outputs] == [0, 1]
        for output in answer.outputs:
            assert [list(entry or ()) for entry in output.logprobs or ()] == [[each] for each in output.token_ids or ()]
    (chat,) = llm.chat("A fox", SamplingParams(max_tokens=2, logprobs=2, prompt_logprobs=1, ignore_eos=True))
    assert [len(entry or ()) >= 2 for entry in chat.outputs[0].logprobs or ()] == [True, True]
    assert chat.prompt_logprobs is not None
    assert len(chat.prompt_logprobs) == len(chat.prompt_token_ids or ())
    (bare,) = llm.generate("A fox", SamplingParams(max_tokens=2))
    assert (bare.outputs[0].logprobs, bare.outputs[0].cumulative_logprob, bare.prompt_logprobs) == (None, None, None)


def test_16_tokens_are_the_default_and_none_fills_the_context(llm: LLM) -> None:
    assert SamplingParams().max_tokens == 16
    assert SamplingParams(max_tokens=None).max_tokens is None
    long = {"ignore_eos": True, "temperature": 0}
    for ask in (llm.generate, llm.chat):
        rest = CONTEXT - len(ask("A fox", max_tokens=1)[0].prompt_token_ids or ())  # type: ignore[operator]
        for params, options, count in (
            (None, long, 16),
            (SamplingParams(**long), {}, 16),
            (SamplingParams(max_tokens=None, **long), {}, rest),
            (SamplingParams(max_tokens=3, **long), {"max_tokens": None}, rest),
            (SamplingParams(max_tokens=None, **long), {"max_tokens": 3}, 3),
        ):
            (answer,) = ask("A fox", params, **options)  # type: ignore[operator]
            assert len(answer.outputs[0].token_ids or ()) == count
    (answer,) = llm.chat("A fox", SamplingParams(max_completion_tokens=5, **long))
    assert len(answer.outputs[0].token_ids or ()) == 5


def test_a_model_has_the_name_that_was_given(llm: LLM) -> None:
    assert llm.generate("A fox", max_tokens=1)[0].model == "tales"
    assert llm.generate("A fox", max_tokens=1, model="tales")[0].model == "tales"


def test_settings_that_only_servers_have_are_refused() -> None:
    of_servers = [setting.name for setting in fields(Settings) if setting.metadata["group"].of_server]
    assert {"host", "port", "api_key", "cors_origin", "log_format", "shutdown_grace"} <= {*of_servers}
    for name in {*of_servers} - {"model", "served_model_name"}:
        with pytest.raises(TypeError, match=f"no setting '{name}': it is for servers"):
            LLM("fables", **{name: "1"})
