"""Streamed text equals unstreamed text, character for character, and stop strings never leak."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lightwell.model.tokenization.detokenizer import Detokenizer, StopMatcher
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization import tokenizer_folders as folders
from tests.support.examples import examples

many = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
places = st.lists(st.floats(0, 1, exclude_max=True), max_size=24)
words = st.lists(
    st.one_of(
        st.sampled_from(
            ["\U0001f642", "\U0001f469\u200d\U0001f680", "\u5929\u7a93", "e\u0301", " the", " .", "n't", " '"]
        ),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    made = folders.build_all(tmp_path_factory.mktemp("tokenizers"))
    return {name: Tokenizer.from_folder(path) for name, path in made.items()}


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, skip: bool = True) -> list[str]:
    stream = Detokenizer(tokenizer, prompt or [], skip_special_tokens=skip)
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@many
@given(places=places, skip=st.booleans())
def test_the_pieces_of_random_tokens_join_to_their_text(
    tokenizers: dict[str, Tokenizer], places: list[float], skip: bool
) -> None:
    # Random tokens of byte-level vocabularies are mostly broken UTF-8.
    for name, tokenizer in tokenizers.items():
        ids = [int(place * tokenizer.vocab_size) for place in places]
        assert "".join(streamed(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip), name


@many
@given(places=st.lists(st.floats(0, 1, exclude_max=True), max_size=30))
def test_runs_of_byte_tokens_join_to_their_text(tokenizers: dict[str, Tokenizer], places: list[float]) -> None:
    tokenizer = tokenizers["byte fallback, Llama class"]
    assert tokenizer.token(3 + 0xE2) == "<0xE2>"
    choices = [3 + 0xE2, 3 + 0x82, 3 + 0xAC, 3 + 0x41, 3 + 0xFF, 300, 1]
    ids = [choices[int(place * len(choices))] for place in places]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@many
@given(text=words)
def test_pieces_of_real_text_are_whole_characters(tokenizers: dict[str, Tokenizer], text: str) -> None:
    text = text.replace("\N{REPLACEMENT CHARACTER}", "")
    for name in ("byte level, plain class", "byte level, Llama class declared", "byte fallback, plain class"):
        tokenizer = tokenizers[name]
        pieces = streamed(tokenizer, tokenizer.encode(text).ids)
        assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces), name
        assert "".join(pieces) == tokenizer.decode(tokenizer.encode(text).ids), name


@many
@given(prompt=words, completion=words)
def test_a_completion_is_what_its_tokens_add_to_the_prompt(
    tokenizers: dict[str, Tokenizer], prompt: str, completion: str
) -> None:
    for name, tokenizer in tokenizers.items():
        if tokenizer.cleans_up:
            continue  # cleaning joins words across the cut, so the completion has no text of its own
        before = tokenizer.encode("The sun" + prompt + " x").ids
        after = tokenizer.encode(completion, add_special_tokens=False).ids
        whole = tokenizer.decode(before + after)
        assert tokenizer.decode(before) + "".join(streamed(tokenizer, after, before)) == whole, name


def test_a_completion_keeps_the_space_before_its_first_word(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte fallback, plain class"]
    prompt, word = tokenizer.encode("The sun").ids, tokenizer.encode("the", add_special_tokens=False).ids
    assert "".join(streamed(tokenizer, word, prompt)) == " the"
    assert "".join(streamed(tokenizer, word)) == "the"
    assert "".join(streamed(tokenizer, word, [1])) == "the", "a prompt of skipped tokens is no text"


def test_bytes_that_nothing_can_mend_become_replacement_characters_at_once_and_at_the_end(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["byte level, plain class"]
    first, *_ = tokenizer.encode("\U0001f680").ids
    letter = tokenizer.encode("a").ids
    assert streamed(tokenizer, [first, *letter]) == ["", "\N{REPLACEMENT CHARACTER}a", ""]
    assert streamed(tokenizer, [*letter, first]) == ["a", "", "\N{REPLACEMENT CHARACTER}"]


def test_text_without_stop_strings_comes_out_with_its_own_token(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte level, plain class"]
    ids = tokenizer.encode("The sun lights the yard.").ids
    assert streamed(tokenizer, ids) == [*tokenizer.token_strings(ids), ""]


def test_an_id_beyond_the_vocabulary_adds_no_text(tokenizers: dict[str, Tokenizer]) -> None:
    for tokenizer in tokenizers.values():
        assert streamed(tokenizer, [tokenizer.vocab_size + 3]) == ["", ""]


def first_stop(text: str, stops: list[str], after: int = 0) -> tuple[str, str] | None:
    """Find by brute force the text before the stop string that ends first (of several the longest), and that string.

    Those that end within the first `after` characters do not count.
    """
    for end in range(after + 1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return None


letters = st.text(alphabet="ab\n", max_size=24)


@settings(max_examples=examples(400))
@given(
    pieces=st.lists(letters, max_size=6),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
    num_unheeded=st.integers(0, 3),
)
@example(pieces=["a", "ab"], stops=["b", "ab"], include=False, num_unheeded=0)
def test_the_stop_matcher_agrees_with_a_search_of_the_whole_text(
    pieces: list[str], stops: list[str], include: bool, num_unheeded: int
) -> None:
    matcher = StopMatcher(stops, include)
    unheeded = len("".join(pieces[:num_unheeded]))
    out, fed = "", ""
    for number, piece in enumerate(pieces):
        out, fed = out + matcher.push(piece, may_stop=number >= num_unheeded), fed + piece
        found = first_stop(fed, stops, unheeded)
        assert matcher.stopped_by == (found[1] if found else None)
        if found is None:
            held = fed[len(out) :]
            assert fed.startswith(out), "what is out is final"
            longest = max((n for stop in stops for n in range(len(stop)) if fed.endswith(stop[:n])), default=0)
            assert len(held) == longest, "nothing is held without need"
    out += matcher.flush()
    found = first_stop("".join(pieces), stops, unheeded)
    assert out == ("".join(pieces) if found is None else found[0] + (found[1] if include else ""))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopMatcher(["a", ""])
