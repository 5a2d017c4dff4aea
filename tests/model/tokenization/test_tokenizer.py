"""The tokenizer gives AutoTokenizer's ids, offsets and text, and reports clearly which files it cannot load."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightwell.model.checkpoint.folder import PACKAGED, ModelLoadError
from lightwell.model.tokenization.tokenizer import Tokenizer, TokenizerError
from tests.model.tokenization import tokenizer_folders as folders

SPECIAL = ["<s>", "</s>", "<tool>", "<extra>", "<note>", "<late>", "[SEP]"]
SPECIAL += [f"<|{name}|>" for name in ("endoftext", "im_start", "im_end")]
MARKS = ["\u2581", " ", "  ", "\n", " .", " n't", " 's", "<0x41>", "\u200d", "e\u0301", "\U0001f642", "\x00", "\u5929"]
texts = st.lists(st.one_of(st.sampled_from(SPECIAL + MARKS), st.text(max_size=8)), max_size=8).map("".join)
few = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])

Pair = tuple[Tokenizer, Any]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Our tokenizer and transformers' for each kind of folder."""
    made = folders.build_all(tmp_path_factory.mktemp("tokenizers"))
    made["the packaged model"] = PACKAGED
    return {
        name: (Tokenizer.from_folder(path), transformers.AutoTokenizer.from_pretrained(path, local_files_only=True))
        for name, path in made.items()
    }


def every(check: Callable[[Tokenizer, Any], None], pairs: dict[str, Pair]) -> None:
    for name, (ours, theirs) in pairs.items():
        try:
            check(ours, theirs)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@few
@given(text=texts, add_special_tokens=st.booleans())
def test_text_becomes_the_ids_and_offsets_of_transformers(
    pairs: dict[str, Pair], text: str, add_special_tokens: bool
) -> None:
    def check(ours: Tokenizer, theirs: Any) -> None:
        expected = theirs(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
        encoding = ours.encode(text, add_special_tokens)
        assert encoding.ids == expected["input_ids"]
        assert encoding.offsets == [tuple(span) for span in expected["offset_mapping"]]

    every(check, pairs)


@few
@given(first=texts, second=texts, cut=st.integers(0, 12))
def test_pairs_of_texts_become_the_ids_of_transformers_and_are_cut_as_there(
    pairs: dict[str, Pair], first: str, second: str, cut: int
) -> None:
    def check(ours: Tokenizer, theirs: Any) -> None:
        whole = theirs(first, second)["input_ids"]
        least = theirs.num_special_tokens_to_add(pair=True) + 1
        for length in (None, max(least, len(whole) - cut)):
            limit = {} if length is None else {"max_length": length, "truncation": "longest_first"}
            expected = theirs([first], [second], **limit)
            (found,) = ours.encode_pairs([(first, second)], length)
            assert found.ids == expected["input_ids"][0]
            types = expected.get("token_type_ids", [[0]])[0]
            assert found.second_segment == (types.index(1) if 1 in types else None)

    every(check, pairs)


def test_a_length_without_room_for_a_pair_is_refused(pairs: dict[str, Pair]) -> None:
    ours, theirs = pairs["the packaged model"]
    least = theirs.num_special_tokens_to_add(pair=True)
    with pytest.raises(ValueError, match=f"{least} tokens are too few for a pair"):
        ours.encode_pairs([("Once upon", "a time")], least)


@few
@given(data=st.data(), skip=st.booleans())
def test_ids_become_the_text_of_transformers(pairs: dict[str, Pair], data: st.DataObject, skip: bool) -> None:
    places = data.draw(st.lists(st.floats(0, 1, exclude_max=True), max_size=12))

    def check(ours: Tokenizer, theirs: Any) -> None:
        ids = [int(place * len(theirs)) for place in places]
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)

    every(check, pairs)


def test_special_tokens_are_those_of_transformers(pairs: dict[str, Pair]) -> None:
    def check(ours: Tokenizer, theirs: Any) -> None:
        assert ours.special_tokens == theirs.special_tokens_map
        assert ours.vocab_size == len(theirs)
        assert ours.bos_token_id == theirs.bos_token_id
        assert ours.mask_token_id == theirs.mask_token_id
        assert theirs.eos_token_id is None or theirs.eos_token_id in ours.eos_token_ids
        assert all(ours.decode([token_id]) == "" for token_id in ours.special_ids)

    every(check, pairs)


@few
@given(batch=st.lists(texts, max_size=3))
def test_a_batch_is_encoded_as_each_text_alone(pairs: dict[str, Pair], batch: list[str]) -> None:
    def check(ours: Tokenizer, _theirs: Any) -> None:
        assert ours.encode_batch(batch) == [ours.encode(text) for text in batch]

    every(check, pairs)


@few
@given(text=texts)
def test_token_bytes_join_to_the_text(pairs: dict[str, Pair], text: str) -> None:
    # Behind a first word, because tokenizers that mark spaces treat the very first token apart.
    for name in ("byte level, plain class", "byte fallback, plain class", "byte fallback, Gemma class"):
        ours, _ = pairs[name]
        start = len(ours.encode("a", add_special_tokens=False).ids)
        encoding = ours.encode("a" + text, add_special_tokens=False)
        if ours.token_strings(encoding.ids[:start]) != ["a"] or set(encoding.ids) & ours.special_ids:
            continue
        data = b"".join(bytes(ours.token_bytes(token_id) or []) for token_id in encoding.ids[start:])
        if "<0x41>" not in text:
            assert data.decode() == ours.decode(encoding.ids)[1:]


def test_token_strings_are_each_token_decoded_alone(pairs: dict[str, Pair]) -> None:
    ours, theirs = pairs["byte level, late tokens"]
    ids = theirs("Hi <|im_end|>\u5929", add_special_tokens=False)["input_ids"]
    assert ours.token_strings(ids) == [theirs.decode([token_id]) for token_id in ids]
    assert "<|im_end|>" in ours.token_strings(ids)


def test_a_padded_id_beyond_the_vocabulary_has_no_text(pairs: dict[str, Pair]) -> None:
    ours, _ = pairs["byte level, plain class"]
    assert ours.token_strings([ours.vocab_size + 5]) == [""]
    assert ours.token_bytes(ours.vocab_size + 5) is None


def test_end_of_text_ids_come_from_the_generation_config_and_the_tokenizer(pairs: dict[str, Pair]) -> None:
    assert pairs["byte level, Llama class declared"][0].eos_token_ids == (1, 7)
    assert pairs["byte level, plain class"][0].eos_token_ids == (0,)


@pytest.mark.parametrize("bad", [-1, 400, 2**40])
def test_an_id_out_of_range_is_refused_with_the_range(pairs: dict[str, Pair], bad: int) -> None:
    ours, _ = pairs["byte level, plain class"]
    with pytest.raises(ValueError, match=rf"token id {bad} is out of range; 0 to 399 are accepted"):
        ours.decode([5, bad])


def test_a_lone_surrogate_is_refused_by_name_and_place(pairs: dict[str, Pair]) -> None:
    ours, _ = pairs["byte level, plain class"]
    with pytest.raises(ValueError, match=r"lone surrogate U\+D83D at character 2"):
        ours.encode("ab\ud83d")
    with pytest.raises(ValueError, match=r"lone surrogate U\+D83D at character 0"):
        ours.encode_batch(["fine", "\ud83d"])


def test_the_default_chat_template_is_found_in_each_place_it_may_stand(tmp_path: Path) -> None:
    tokenizer = folders.byte_level()
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "list"}]
    in_config = folders.write(tmp_path / "config", tokenizer, tokenizer_config={"chat_template": "text"})
    in_list = folders.write(tmp_path / "list", tokenizer, tokenizer_config={"chat_template": named})
    in_file = folders.write(tmp_path / "file", tokenizer, tokenizer_config={"chat_template": "text"})
    (in_file / "chat_template.jinja").write_text("file")
    nowhere = folders.write(tmp_path / "nowhere", tokenizer)
    found = [Tokenizer.from_folder(path).chat_template for path in (in_config, in_list, in_file, nowhere)]
    assert found == ["text", "list", "file", None]


VOCAB = {"vocab__json": '{"a": 0}', "merges__txt": ""}


def broken(folder: Path, **texts: str) -> Path:
    folder.mkdir()
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no tokenizer: it needs tokenizer.json, vocab.json and merges.txt, or vocab.txt"),
        ({"tokenizer__model": "x"}, r"only tokenizer.model.*AutoTokenizer.from_pretrained\(f\).save_pretrained\(f\)"),
        ({"vocab__json": "{}", "source__spm": "x"}, r"has source.spm and target.spm, .* a tokenizer.json is needed"),
        ({"tokenizer__json": '{"model": '}, r"tokenizer.json: cannot be read as JSON \(line 1, column 11\)"),
        ({"tokenizer__json": "[]"}, r"tokenizer.json must contain a JSON object, not list"),
        ({"tokenizer__json": "{}"}, r"tokenizer.json is not a tokenizer file"),
        ({"tokenizer__json": '{"model": {"type": "BPE", "vocab": 3}}'}, r"cannot build the tokenizer of"),
        ({"vocab__json": "{}", "merges__txt": "a b c"}, r"cannot read .*vocab.json and .*merges.txt"),
        (
            {**VOCAB, "generation_config__json": '{"eos_token_id": "x"}'},
            r"generation_config.json: eos_token_id must be an integer or a list of them, not 'x'",
        ),
        ({**VOCAB, "tokenizer_config__json": '{"added_tokens_decoder": 3}'}, r"tokenizer_config.json: added_tokens_de"),
        ({**VOCAB, "tokenizer_config__json": '{"chat_template": 3}'}, r"chat_template must be a text"),
        (
            {**VOCAB, "tokenizer_config__json": '{"tokenizer_class": ["x"]}'},
            r"tokenizer_config.json: tokenizer_class must be a text, not \['x'\]",
        ),
        (
            {"tokenizer__json": '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [{"id": 1}]}'},
            r"an added token must have a text as its content, not None",
        ),
        (
            {"tokenizer__json": '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [3]}'},
            r"the tokenizer files of .* are malformed",
        ),
        ({"tokenizer__json": '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'}, r"has an empty vocabulary"),
    ],
)
def test_a_folder_that_cannot_be_read_gives_one_clear_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_folder(broken(tmp_path / "folder", **files))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ModelLoadError)


def template(special: str, tokens: dict[str, list[int]]) -> dict[str, Any]:
    """Return a post-processor that writes one token before a text."""
    text, known = {"Sequence": {"id": "A", "type_id": 0}}, {"tokens": ["x"]}
    single = [{"SpecialToken": {"id": special, "type_id": 0}}, text]
    ids = {name: {"id": name, "ids": ids, **known} for name, ids in tokens.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": [text], "special_tokens": ids}


@pytest.mark.parametrize(
    "step",
    [
        template("<none>", {}),
        template("<none>", {"<none>": [99_999]}),
        {"type": "Sequence", "processors": [template("a", {"a": [0]}), template("<none>", {"a": [0]})]},
        {"type": "BertProcessing", "cls": ["a", 0], "sep": ["<none>", 99_999]},
        {
            "type": "RobertaProcessing", "cls": ["<none>", 99_999], "sep": ["a", 0], "trim_offsets": True,
            "add_prefix_space": False,
        },
    ],
)  # fmt: skip
def test_a_post_processor_that_writes_a_token_without_an_id_is_named(tmp_path: Path, step: dict[str, Any]) -> None:
    file = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "post_processor": step}
    folder = broken(tmp_path / "folder", tokenizer__json=json.dumps(file))
    with pytest.raises(TokenizerError, match=r"tokenizer.json: post_processor names '<none>', a token that is not"):
        Tokenizer.from_folder(folder)
    file["post_processor"] = template("a", {"a": [0], "unused": [99_999]})
    (folder / "tokenizer.json").write_text(json.dumps(file))
    assert list(Tokenizer.from_folder(folder).encode("aa").ids) == [0, 0, 0]


def test_a_tokenizer_for_which_there_is_no_memory_is_not_called_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise MemoryError

    folder = broken(tmp_path / "folder", tokenizer__json="{}", tokenizer_config__json="{}")
    monkeypatch.setattr("lightwell.model.tokenization.tokenizer_files.read_json", fail)
    with pytest.raises(TokenizerError, match=r"files of .*folder are too large for the memory that is left"):
        Tokenizer.from_folder(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"nowhere does not exist"):
        Tokenizer.from_folder(tmp_path / "nowhere")


def test_vocab_and_merges_need_no_config_file(tmp_path: Path) -> None:
    ours = Tokenizer.from_folder(folders.vocab_and_merges(tmp_path / "bare"))
    assert ours.decode(ours.encode("Hello, world").ids) == "Hello, world"
