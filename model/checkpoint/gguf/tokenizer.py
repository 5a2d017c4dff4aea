"""Creates a tokenizer of the `tokenizers` library from a GGUF file's vocabulary.

The file names a rule of llama.cpp that splits text into words (`tokenizer.ggml.pre`). Here the rules are those of the
families' own tokenizers.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lightwell.model.checkpoint.folder import ModelLoadError

logger = logging.getLogger(__name__)

_PREFIX = "tokenizer.ggml."
_SPACE = "\u2581"
"""The character for a space in SentencePiece's vocabularies."""
_MOST_CHARACTERS = 256
"""Most characters of a token. Published vocabularies have up to 256."""
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The words of Llama 3's tokenizer, as in its tokenizer.json. Qwen 2's splits numbers into digits."""
_DEFAULT_WORDS = (
    r"[\p{P}$+<=>^~|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    "[0-9]{3}",
)
"""llama.cpp's default rule. Each expression splits the results of the previous one."""
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = tuple(rf"[^\r\n\p{{L}}\p{{N}}]?{letters}" for letters in (f"{_UPPER}*{_LOWER}+", f"{_UPPER}+{_LOWER}*"))
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN_WORDS = "|".join(_CASED) + r"|\p{N}" + _REST
"""The words of Mistral Nemo's tokenizer. A word ends between a lower-case and an upper-case letter."""
_GPT4O_WORDS = "|".join(f"{word}(?i:'s|'t|'re|'ve|'m|'ll|'d)?" for word in _CASED) + r"|\p{N}{1,3}" + _REST
"""The words of the tokenizers of GPT-4o and Phi-4-mini."""
_NAMED = {
    "bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "cls": "cls", "mask": "mask",
}  # fmt: skip
"""Special tokens: the name in llama.cpp, sometimes misspelt, and the name in `transformers`."""
_BERT_NAMES = {"bos": "cls", "eos": "sep"}
_ENDS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
        "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    }
)  # fmt: skip
"""Tokens that end an answer or a turn in any model, as in llama.cpp's vocabulary loader."""
_NO_ENDS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|flush|>", "<|calls|>"}), "<|end|>"),
    (frozenset({"<|tool_response>"}), "</s>"),
)
"""Sets of tokens, and a token that does not end a turn in a vocabulary with that set."""
_KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")
"""The special tokens of Phi-3 that keep the spaces that follow them."""


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer of the metadata.

    Raises ModelLoadError for an unsupported or missing kind of vocabulary or rule for words.
    """
    kind = metadata.get(f"{_PREFIX}model")
    tokens = metadata.get(f"{_PREFIX}tokens")
    if kind not in _MAKERS:
        raise ModelLoadError(f"GGUF metadata: {_PREFIX}model is {kind!r}; {', '.join(_MAKERS)} are accepted")
    if not isinstance(tokens, list) or len(set(tokens)) != len(tokens):
        raise ModelLoadError(f"GGUF metadata: {_PREFIX}tokens must be a list of different tokens")
    types = metadata.get(f"{_PREFIX}token_type")
    if types is not None and len(types) != len(tokens):
        raise ModelLoadError(f"GGUF metadata: {_PREFIX}token_type has {len(types)} entries for {len(tokens)} tokens")
    if (longest := max(map(len, tokens), default=0)) > _MOST_CHARACTERS:
        raise ModelLoadError(
            f"GGUF metadata: a token of {_PREFIX}tokens has {longest} characters; "
            f"at most {_MOST_CHARACTERS} are accepted"
        )
    tokenizer = _MAKERS[kind](metadata, {token: i for i, token in enumerate(tokens)})
    kinds = np.asarray(types if types is not None else np.ones(len(tokens), np.int32))
    special, defined = kinds == TokenType.CONTROL, kinds == TokenType.USER_DEFINED
    if kind == "bert":
        special = special | np.isin(np.arange(len(tokens)), [*_ids(metadata).values()])
    special = special | np.isin(np.arange(len(tokens)), end_ids(metadata))
    strips = _strips_spaces(metadata)
    added = [
        AddedToken(
            tokens[i], special=bool(special[i]), normalized=False, rstrip=strips and tokens[i] not in _KEEPS_SPACES
        )
        for i in np.flatnonzero(special | defined)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def special_tokens_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens, by their names in tokenizer_config.json."""
    tokens = metadata[f"{_PREFIX}tokens"]
    renamed = _BERT_NAMES if metadata.get(f"{_PREFIX}model") == "bert" else {}
    return {f"{renamed.get(name, name)}_token": tokens[i] for name, i in _ids(metadata).items()}


def end_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Return the ids of the tokens that end an answer: tokens named by the metadata, then tokens with known texts.

    Raises ModelLoadError for an id outside the vocabulary.
    """
    named = [_id(metadata, name) for name in ("eos", "eot", "eom")]
    known = {token: i for i, token in enumerate(metadata[f"{_PREFIX}tokens"]) if token in _ENDS}
    for shown, no_end in _NO_ENDS:
        if shown <= known.keys():
            known.pop(no_end, None)
    return list(dict.fromkeys(i for i in (*named, *known.values()) if i is not None))


def _strips_spaces(metadata: Mapping[str, Any]) -> bool:
    """Return whether special tokens remove the spaces after them, as in Phi-3. Files have no field for it: llama.cpp
    checks the model's name, and `transformers` the architecture.
    """
    name = str(metadata.get("general.name")).lower()
    is_phi = metadata.get("general.architecture") == "phi3" and metadata.get(f"{_PREFIX}model") == "llama"
    return is_phi or "phi-3" in name or "phi3" in name


def _ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of special tokens, by the names of `transformers`. Raises ModelLoadError for an invalid id."""
    found = {ours: _id(metadata, theirs) for theirs, ours in _NAMED.items()}
    return {name: token_id for name, token_id in found.items() if token_id is not None}


def _id(metadata: Mapping[str, Any], name: str) -> int | None:
    token_id = metadata.get(f"{_PREFIX}{name}_token_id")
    size = len(metadata[f"{_PREFIX}tokens"])
    if token_id is not None and (not isinstance(token_id, int) or not 0 <= token_id < size):
        raise ModelLoadError(f"GGUF metadata: {_PREFIX}{name}_token_id is {token_id!r}; 0 to {size - 1} are accepted")
    return token_id


def _byte_level(metadata: Mapping[str, Any], vocabulary: dict[str, int]) -> Tokenizer:
    """Return a tokenizer of GPT-2's kind: byte-level BPE."""
    merges = metadata.get(f"{_PREFIX}merges")
    if not isinstance(merges, list):
        raise ModelLoadError(f"GGUF metadata: {_PREFIX}merges is {merges!r}; a list of pairs is expected")
    pre = metadata.get(f"{_PREFIX}pre")
    if pre is None:
        logger.warning(
            "the GGUF file has no %spre: text is cut into words by llama.cpp's default rule, which may not be the "
            "model's; a file converted again has it",
            _PREFIX,
        )
        pre = "default"
    if pre not in _WORDS:
        raise ModelLoadError(f"GGUF metadata: {_PREFIX}pre is {pre!r}; {', '.join(_WORDS)} are accepted")
    pairs = [tuple(pair.split(" ", 1)) for pair in merges]
    for pair in pairs:
        if len(pair) != 2 or not all(part in vocabulary for part in (*pair, pair[0] + pair[1])):
            found = " ".join(pair)
            raise ModelLoadError(
                f"GGUF metadata: {_PREFIX}merges has the entry {found!r}; two tokens that form a third are expected"
            )
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    tokenizer.pre_tokenizer = _WORDS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _ends(metadata) or processors.ByteLevel(trim_offsets=False)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _split(*words: str) -> pre_tokenizers.PreTokenizer:
    cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in words]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_WORDS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": lambda: _split(*_DEFAULT_WORDS),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx"), lambda: _split(_LLAMA3_WORDS)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), lambda: _split(_QWEN2_WORDS)),
    "gpt-4o": lambda: _split(_GPT4O_WORDS),
    "tekken": lambda: _split(_TEKKEN_WORDS),
}
"""Functions that split text into words before pairs are merged, by llama.cpp's names."""
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Rules with which a word that is a token is not merged, and a text begins with the bos token by default."""


def _pieces(metadata: Mapping[str, Any], vocabulary: dict[str, int]) -> Tokenizer:
    """Return a tokenizer of SentencePiece's kind: the pair with the highest score of its merged piece is merged first.
    Characters in no piece are split into bytes.
    """
    scores = metadata.get(f"{_PREFIX}scores")
    if scores is None or len(scores) != len(vocabulary):
        raise ModelLoadError(f"GGUF metadata: {_PREFIX}scores must have one score for each token")
    tokens = list(vocabulary)
    # Merges are ordered by the score of the merged piece, the highest first, and several merges of one piece by the
    # ids of their parts, as in the files that transformers converts.
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    merges = []
    for i in order:
        token = tokens[i]
        if len(token) > 1:
            cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
            own = [(left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
            merges += sorted(own, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    unknown = _ids(metadata).get("unk")
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = metadata.get(f"{_PREFIX}add_space_prefix", True)
    spaces = [normalizers.Replace(" ", _SPACE)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if has_prefix else spaces)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    ends = _ends(metadata)
    if ends is not None:
        tokenizer.post_processor = ends
    return tokenizer


def _word_pieces(metadata: Mapping[str, Any], vocabulary: dict[str, int]) -> Tokenizer:
    """Return a tokenizer of BERT's kind. llama.cpp marks pieces at the beginning of a word, BERT all other pieces."""
    types = metadata.get(f"{_PREFIX}token_type")
    special = set(_ids(metadata).values()) | {
        i
        for token, i in vocabulary.items()
        # In files without types, and in older ones, all tokens in brackets are special, but not the piece "[".
        if (types is not None and types[i] == TokenType.CONTROL) or (token.startswith("[") and token.endswith("]"))
    }
    spelt = {token if i in special else _as_bert_spells(token): i for token, i in vocabulary.items()}
    named = {name: list(vocabulary)[i] for name, i in _ids(metadata).items()}
    tokenizer = Tokenizer(models.WordPiece(spelt, unk_token=named.get("unk", "[UNK]")))
    lower = all(token == token.lower() for token, i in spelt.items() if i not in special)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    first, last = named.get("cls", named.get("bos")), named.get("sep", named.get("eos"))
    if first is None or last is None:
        raise ModelLoadError("GGUF metadata: a vocabulary of BERT's kind needs the ids of [CLS] and [SEP]")
    tokenizer.post_processor = processors.BertProcessing((last, vocabulary[last]), (first, vocabulary[first]))
    return tokenizer


def _as_bert_spells(token: str) -> str:
    return token.removeprefix(_SPACE) if token.startswith(_SPACE) else f"##{token}"


def _ends(metadata: Mapping[str, Any]) -> processors.PostProcessor | None:
    """Return the post-processor that adds tokens at the beginning and the end of a text, or None without any."""
    tokens, ids = metadata[f"{_PREFIX}tokens"], _ids(metadata)
    is_usual = metadata.get(f"{_PREFIX}model") == "llama" or metadata.get(f"{_PREFIX}pre") in _WHOLE_WORDS_FIRST
    first = ids.get("bos") if metadata.get(f"{_PREFIX}add_bos_token", is_usual) else None
    last = ids.get("eos") if metadata.get(f"{_PREFIX}add_eos_token", False) else None
    if first is None and last is None:
        return None
    before, after = ([] if i is None else [tokens[i]] for i in (first, last))
    added = [(tokens[i], i) for i in dict.fromkeys((first, last)) if i is not None]
    pair = [*before, "$A", *after, *(f"{each}:1" for each in before), "$B:1", *(f"{each}:1" for each in after)]
    return processors.TemplateProcessing(single=[*before, "$A", *after], pair=pair, special_tokens=added)


_MAKERS: dict[str, Callable[[Mapping[str, Any], dict[str, int]], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _pieces,
    "bert": _word_pieces,
}
