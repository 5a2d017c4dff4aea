"""Tests that the benchmarks' checkpoint generates text that no engine has a reason to hold back."""

from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.checkpoint import VOCABULARY, random_prompts, write_tokenizer


def test_every_token_but_the_bytes_and_the_end_is_whole_characters(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY
    texts = tokenizer.decode_batch([[id_] for id_ in range(256, VOCABULARY - 1)])
    assert all(text.isascii() and text.isprintable() and len(text) > 1 for text in texts)
    assert len(set(texts)) == len(texts)


def test_prompts_are_of_the_model_s_tokens_and_differ_for_every_seed() -> None:
    first, again, other = (random_prompts(3, seed, num_tokens=50, vocabulary=300) for seed in (1, 1, 2))
    assert first == again
    assert not {tuple(prompt) for prompt in first} & {tuple(prompt) for prompt in other}
    assert {256 <= id_ < 299 for prompt in first for id_ in prompt} == {True}
