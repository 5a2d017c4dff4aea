"""Vocabularies of GGUF files against the tokenizers of `transformers` for them, on random texts."""

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers
from gguf import TokenType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Trained
from tokenizers import models, pre_tokenizers, trainers

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.resolve import resolve
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.gguf_files import finish
from tests.support.examples import examples

pytestmark = pytest.mark.every_family  # each kind of tokenizer has rules of its own

_TEXT = (
    "Once upon a time there were 3 bears, and they had 12 bowls of porridge in the year 1837; it wasn't cold!",
    "The wolf said:\n\n\tlittle pig, little pig, LET me come in...  You'll see. THEY'RE here, and the the the end",
    "Übermut tut selten gut. Où est le château ? 茨姫は眠っている。 1234567890 1000000",
)
_SPACE = "\u2581"
_RUNS = [" " * count for count in range(2, 9)]
"""Gemma's tokens of several spaces; its own are longer."""
_NORMAL, _CONTROL, _USER = int(TokenType.NORMAL), int(TokenType.CONTROL), int(TokenType.USER_DEFINED)

PIECES = st.sampled_from(
    (
        *" \n\t.,'a1é茨🐺[]#",
        "  ",
        "   ",
        "the",
        " The",
        "they're",
        "WE'LL",
        " 1837",
        "bears",
        "\r\n",
        "château",
        "e\u0301",
    )
)
"""Parts of random texts, in addition to any characters: rules for words treat these parts differently."""
SPELT = ("<|end|>", "<think>", "<s>", "[MASK]")
TEXTS = st.lists(st.one_of(PIECES, st.sampled_from(SPELT), st.text(max_size=5)), max_size=14).map("".join)


@pytest.fixture(scope="module", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        yield


def write(path: Path, architecture: str, kind: str, tokens: list[str], types: list[int], **more: Any) -> Path:
    """Write a file that has a vocabulary and the fields from which a network's configuration is read.

    more: fields of the tokenizer, such as `merges`.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for name in ("embedding_length", "block_count", "context_length", "feed_forward_length", "head_count"):
        getattr(writer, f"add_{name}")(32)
    writer.add_head_count_kv(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    fields = {name if "." in name else f"tokenizer.ggml.{name}": value for name, value in more.items()}
    finish(writer, fields, {"token_embd.weight": np.zeros((len(tokens), 32))})
    return path


def ours(path: Path) -> Tokenizer:
    return Tokenizer.from_folder(resolve(str(path)))


def theirs(path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def byte_level(path: Path, architecture: str, pre: str) -> Path:
    """Write a file with merged pairs of bytes, trained on words cut roughly by the rule of the file's `pre`."""
    trained = Trained(models.BPE())
    cut = pre_tokenizers.Split(" ", "merged_with_next")  # leaves digits and punctuation together: cutting must show
    trained.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        _TEXT * 3, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    state = json.loads(trained.to_str())["model"]
    tokens = [*sorted(state["vocab"], key=state["vocab"].__getitem__), "<|end|>", "<think>"]
    types = [*[_NORMAL] * (len(tokens) - 2), _CONTROL, _USER]
    merges = [" ".join(pair) for pair in state["merges"]]
    end = len(tokens) - 2
    return write(
        path, architecture, "gpt2", tokens, types, merges=merges, pre=pre, eos_token_id=end, bos_token_id=end,
        padding_token_id=end, add_bos_token=pre == "llama-bpe",
    )  # fmt: skip


def pieces(path: Path, architecture: str, **more: Any) -> Path:
    """Write a file with pieces as SentencePiece makes them: bytes, merged ones by falling scores, then characters."""
    trained = Trained(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    trained.train_from_iterator(_TEXT * 3, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    by_id = sorted(trained.get_vocab().items(), key=lambda pair: pair[1])
    merged, single = ([token for token, _ in by_id if (len(token) > 1) == wanted] for wanted in (True, False))
    special = ["<unk>", "<s>", "</s>"]
    marked = ["<|end|>", "<think>", *([*_RUNS, "\n\n"] if architecture.startswith("gemma") else [])]
    merged = [token for token in merged if token not in marked]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *marked, *merged, *single]
    types = [int(TokenType.UNKNOWN), _CONTROL, _CONTROL, *[int(TokenType.BYTE)] * 256]
    types += [_CONTROL, *[_USER] * (len(marked) - 1), *[_NORMAL] * (len(merged) + len(single))]
    scores = [0.0] * (len(special) + 256) + [-1000.0] * len(marked) + [-float(i) for i in range(len(merged + single))]
    return write(
        path, architecture, "llama", tokens, types, scores=scores, unknown_token_id=0, bos_token_id=1, eos_token_id=2,
        **more,
    )  # fmt: skip


def word_pieces(path: Path) -> tuple[Path, dict[str, int]]:
    """Write a file of BERT's kind; also return its vocabulary in BERT's spelling."""
    trained = Trained(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    trained.train_from_iterator([text.lower() for text in _TEXT], trainer)
    spelt = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    spelt += [token for token in ("[unused0]", "[", "]", "#", "##[", "##]", "###") if token not in spelt]
    tokens = [
        token if token in special else token.removeprefix("##") if token.startswith("##") else f"{_SPACE}{token}"
        for token in spelt
    ]
    types = [_CONTROL if token in special else _NORMAL for token in spelt]
    ids = {"padding": 0, "unknown": 1, "cls": 2, "seperator": 3, "mask": 4}
    write(path, "bert", "bert", tokens, types, **{f"{name}_token_id": i for name, i in ids.items()})
    return path, {token: i for i, token in enumerate(spelt)}


@pytest.fixture(scope="module", params=["llama-bpe", "tekken", "gpt-4o", "qwen2", "gpt-2", "phi3", "gemma2", "bert"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """The same vocabulary read by us, and the tokenizer of `transformers` for it."""
    path = tmp_path_factory.mktemp("vocabulary") / "a.gguf"
    if request.param == "bert":  # transformers reads no such GGUF files
        path, vocabulary = word_pieces(path)
        return ours(path), transformers.BertTokenizer(vocab=vocabulary)
    if request.param in ("phi3", "gemma2"):
        pieces(path, request.param, add_space_prefix=request.param == "phi3")
    else:
        byte_level(path, {"qwen2": "qwen2", "gpt-2": "gpt2"}.get(request.param, "llama"), request.param)
    reference = theirs(path)
    if request.param == "phi3":  # its tokenizer.json has this, but not the GGUF reader of transformers
        state = json.loads(reference.backend_tokenizer.to_str())
        for token in state["added_tokens"]:
            token["rstrip"] = token["content"] not in ("<unk>", "<s>")
        reference = transformers.PreTrainedTokenizerFast(tokenizer_object=Trained.from_str(json.dumps(state)))
    return ours(path), reference


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_texts_become_the_ids_that_transformers_gives(both: tuple[Tokenizer, Any], text: str) -> None:
    tokenizer, reference = both
    # It composes characters, but not where transformers reads it from a GGUF file.
    if isinstance(reference, transformers.Qwen2Tokenizer):
        text = unicodedata.normalize("NFC", text)
    text = re.sub(" {9,}", _RUNS[-1], text)  # SentencePiece takes the longest run first, and merging takes pairs
    ids = tokenizer.encode(text).ids
    assert ids == reference(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == reference.decode(ids)


def test_smollms_numbers_are_cut_into_digits_and_its_words_as_gpt2s(tmp_path: Path) -> None:
    tokenizer = ours(byte_level(tmp_path / "a.gguf", "llama", "smollm"))
    reference = ours(byte_level(tmp_path / "b.gguf", "gpt2", "gpt-2"))
    assert tokenizer.token_strings(tokenizer.encode("in 1837").ids)[-4:] == ["1", "8", "3", "7"]
    for text in _TEXT:
        words = "".join(character for character in text if not character.isnumeric())
        assert tokenizer.encode(words).ids == reference.encode(words).ids


@pytest.mark.parametrize(("architecture", "name"), [("phi3", "Phi 3.5 Mini"), ("llama", "my-Phi-3-merge")])
def test_phi3s_special_tokens_take_the_spaces_that_follow_them(architecture: str, name: str, tmp_path: Path) -> None:
    """The chat template writes a newline after each; llama.cpp and transformers leave it out."""
    tokenizer = ours(pieces(tmp_path / "a.gguf", architecture, **{"general.name": name}))
    ids = tokenizer.encode("<|end|>\nbears<|end|>\n<think> \n").ids
    bears = tokenizer.encode("bears", add_special_tokens=False).ids
    assert ids == [1, 259, *bears, 259, 260]
    other = ours(pieces(tmp_path / "b.gguf", "llama", **{"general.name": "Llama 3"}))
    assert other.encode("<|end|>\nbears").ids[:3] == [1, 259, other.encode("\n", add_special_tokens=False).ids[0]]


@pytest.mark.parametrize(
    ("texts", "more", "ends"),
    [
        (["<|end|>", "<|user|>"], {}, ["a", "<|end|>"]),
        (
            ["<end_of_turn>", "<|im_end|>", "<|eot_id|>", "</s>"],
            {},
            ["a", "<end_of_turn>", "<|im_end|>", "<|eot_id|>", "</s>"],
        ),
        (["<|end|>", "<|user|>"], {"eot_token_id": 1, "eom_token_id": 2}, ["a", "b", "ab", "<|end|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], {}, ["a", "<|return|>", "<|call|>"]),
        (["<|end|>", "<|flush|>", "<|calls|>"], {}, ["a", "<|flush|>", "<|calls|>"]),
        (["</s>", "<|tool_response>"], {}, ["a", "<|tool_response>"]),
    ],
)
def test_the_ends_of_turns_are_found_by_their_texts_as_llama_cpp_does(
    texts: list[str], more: dict[str, int], ends: list[str], tmp_path: Path
) -> None:
    """These tokens are special, even if the file has another type for them."""
    tokens, fields = ["a", "b", "ab", *texts], {"merges": ["a b"], "pre": "gpt-2", "eos_token_id": 0, **more}
    tokenizer = ours(write(tmp_path / "a.gguf", "llama", "gpt2", tokens, [_NORMAL] * len(tokens), **fields))
    assert [tokenizer.token(i) for i in tokenizer.eos_token_ids] == ends
    assert tokenizer.special_ids == set(tokenizer.eos_token_ids)
    assert tokenizer.decode([1, *tokenizer.eos_token_ids[1:]]) == ("" if more else "b")


@pytest.mark.parametrize("pre", [None, "default"])
def test_a_file_without_a_rule_for_words_is_cut_by_llama_cpps_default(
    pre: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    letters = [*"0123456789abc+=.Ġ", "'s"]
    words = ["123", "1234", "456", "++", "+=", "ab", "Ġab", "Ġ1", "Ġ+", "Ġ.", "'s"]
    merges = ["1 2", "12 3", "123 4", "4 5", "45 6", "+ +", "+ =", "a b", "Ġ ab", "Ġ 1", "Ġ +", "Ġ ."]
    tokens = [*dict.fromkeys([*letters, "12", "45", *words])]
    more = {} if pre is None else {"pre": pre}
    path = write(tmp_path / "a.gguf", "llama", "gpt2", tokens, [_NORMAL] * len(tokens), merges=merges, **more)
    tokenizer = ours(path)
    for text, expected in (("1234567890", "123 456 7 8 9 0"), (" 1234 ab+=.", "Ġ 123 4 Ġab += .")):
        assert [tokenizer.token(i) for i in tokenizer.encode(text).ids] == expected.split()
    assert ("tokenizer.ggml.pre" in caplog.text) == (pre is None)


def test_a_token_of_endless_length_is_refused_before_its_pieces_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match=r"a token of tokenizer.ggml.tokens has 100000 characters; at most 256 are"
    ):
        resolve(
            str(write(tmp_path / "a.gguf", "llama", "llama", ["a", "a" * 100_000], [_NORMAL] * 2, scores=[0.0, 0.0]))
        )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"pre": "viking"}, "tokenizer.ggml.pre is 'viking'; default"),
        ({"merges": ["a"]}, "tokenizer.ggml.merges has the entry 'a'"),
        ({"merges": ["a c"]}, "tokenizer.ggml.merges has the entry 'a c'"),
        ({"merges": ["b a"]}, "tokenizer.ggml.merges has the entry 'b a'"),
        ({"merges": [3, 4]}, "tokenizer.ggml.merges is "),
        ({"eot_token_id": 3}, "tokenizer.ggml.eot_token_id is 3; 0 to 2 are accepted"),
        ({"eos_token_id": 300}, "tokenizer.ggml.eos_token_id is 300; 0 to 2 are accepted"),
    ],
)
def test_a_vocabulary_that_makes_no_sense_is_refused_in_one_line(more: Any, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", "qwen2", "gpt2", ["a", "b", "ab"], [_NORMAL] * 3, **{"merges": ["a b"], **more})
    with pytest.raises(ModelLoadError) as caught:
        resolve(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
