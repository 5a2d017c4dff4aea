"""Tokenizer class of a checkpoint, and the changes that the class makes to `tokenizer.json`.

`transformers.AutoTokenizer` does not always use `tokenizer.json` unchanged. Classes such as `LlamaTokenizer` and
`GPT2Tokenizer` keep only the vocabulary, the merges and the post-processor of the file, and add their own normaliser,
pre-tokenizer and decoder. This table gives the same ids: each class is a function from its options to the JSON parts
that it replaces. Classes that are not in the table use the file unchanged.

Independent of files and of encoding. Source: transformers 5.23, `models/auto/tokenization_auto.py` and
`models/*/tokenization_*.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_MODEL_TYPES = {
    "GPT2Tokenizer": "gpt2 gpt_neo gptj opt phi starcoder2 codegen dbrx jais2",
    "GPTNeoXTokenizer": "gpt_neox olmo olmoe mpt mamba mamba2 falcon_mamba rwkv",
    "Qwen2Tokenizer": "qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next",
    "GemmaTokenizer": "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma t5gemma",
    "BertTokenizer": "bert distilbert electra squeezebert nomic_bert convbert",
    "RobertaTokenizer": "roberta bart longformer",
    "T5Tokenizer": "t5 mt5 switch_transformers",
    "MPNetTokenizer": "mpnet",
    "XLMRobertaTokenizer": "xlm-roberta jina_embeddings_v3",
    "CamembertTokenizer": "camembert",
    "CodeLlamaTokenizer": "code_llama",
    "TokenizersBackend": "mistral mixtral ministral mistral3 olmo2 olmo3 granite granitemoe granitemoehybrid "
    "granitemoeshared stablelm glm glm4 gpt_bigcode persimmon umt5 phi3 phimoe nemotron modernbert internlm2",
}
_REGISTERED = {model_type: name for name, types in _MODEL_TYPES.items() for model_type in types.split()}
"""The class that `AutoTokenizer` registers for a `model_type`; other types use the folder's declared class."""

_DECLARED_WRONGLY = frozenset({"qwen2", "phi3", "phimoe", "nemotron", "modernbert", "internlm2"})
"""Model types with published folders that declare a wrong class; the registered one is used."""

_SAME = {
    "BartTokenizer": "RobertaTokenizer",
    "LongformerTokenizer": "RobertaTokenizer",
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
}
"""Other names of classes, which older folders declare."""

_PLAIN = frozenset({"TokenizersBackend", "PreTrainedTokenizer", "PreTrainedTokenizerFast", "PythonBackend"})


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """The changes of one class to a tokenizer file."""

    name: str
    rebuild: Callable[[Json, Mapping[str, Any]], Json] | None = None
    """A function (the `tokenizer.json` object, the options) -> a new object; None keeps the file unchanged."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """The class's default special tokens, by name."""
    extra_tokens: Callable[[Mapping[str, Any]], list[Any]] | None = None
    """A function (the options) -> the special tokens without a name, if the class has some of its own."""
    marks_special: bool = False
    """Whether special tokens that are plain ones in the file become special (and are skipped in output)."""
    rebuilds_post_processor: bool = False
    """Whether add_bos_token and add_eos_token define a post-processor that replaces the file's."""
    post_processor: Callable[[Mapping[str, tuple[str, int]], Mapping[str, Any]], Json] | None = None
    """A function (named special tokens as (content, id), options) -> the post-processor that replaces the file's, or
    None.
    """
    gives_types: bool = False
    """The default of `TokenizerFiles.gives_types`."""


PLAIN = TokenizerClass("TokenizersBackend")


def choose_class(model_type: str | None, declared: str | None, *, byte_level: bool) -> TokenizerClass:
    """Return the class that `AutoTokenizer` chooses.

    `model_type` is config.json's; `declared` the folder's `tokenizer_class`; `byte_level` is true if its
    `tokenizer.json` has a ByteLevel part (Llama 3 folders declare LlamaTokenizer, which could not read them).
    """
    registered = _REGISTERED.get(model_type or "")
    declared = declared.removesuffix("Fast") if declared else None
    declared = _SAME.get(declared or "", declared)
    wrong = model_type in _DECLARED_WRONGLY
    if declared == "LlamaTokenizer" and byte_level and not wrong:
        return PLAIN
    if declared is None or declared == registered:
        chosen = registered
    elif registered is None:
        chosen = declared
    elif registered in _PLAIN:
        chosen = None
    else:
        chosen = registered if wrong else declared
    return CLASSES.get(chosen or "", PLAIN)


def _byte_level(options: Mapping[str, Any], *, use_regex: bool = True) -> Json:
    prefix = bool(options.get("add_prefix_space"))
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


_BYTE_LEVEL_DECODER: Json = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
"""The character for a space in sentencepiece vocabularies."""
_FALLBACK_DECODERS: tuple[Json, ...] = (
    {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)


def _bpe(file: Json, **flags: Any) -> Json:
    """Return the file's vocabulary and merges under the class's own flags; the file's flags are dropped."""
    defaults: Json = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    defaults |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    model = file["model"]
    return defaults | flags | {"vocab": model["vocab"], "merges": model.get("merges", [])}


def _rebuilt(file: Json, model: Json, *, normalizer: Json | None, pre_tokenizer: Json, decoder: Json) -> Json:
    # Added tokens are added again later, in AutoTokenizer's order, so that ids agree.
    parts = {"model": model, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}
    return (
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
        | parts
        | {"post_processor": file.get("post_processor")}
    )


def _gpt2(file: Json, options: Mapping[str, Any]) -> Json:
    model = _bpe(file, continuing_subword_prefix="", end_of_word_suffix="")
    return _rebuilt(file, model, normalizer=None, pre_tokenizer=_byte_level(options), decoder=_BYTE_LEVEL_DECODER)


_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _qwen2(file: Json, options: Mapping[str, Any]) -> Json:
    split = {"type": "Split", "pattern": {"Regex": _QWEN2_WORDS}, "behavior": "Isolated", "invert": False}
    words = {"type": "Sequence", "pretokenizers": [split, _byte_level(options, use_regex=False)]}
    model = _bpe(file, continuing_subword_prefix="", end_of_word_suffix="")
    return _rebuilt(file, model, normalizer={"type": "NFC"}, pre_tokenizer=words, decoder=_BYTE_LEVEL_DECODER)


def _llama(file: Json, options: Mapping[str, Any]) -> Json:
    prefix = options.get("add_prefix_space")
    prefix = True if prefix is None else bool(prefix)
    scheme = "never" if not prefix else "always" if options.get("legacy") else "first"
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return _rebuilt(
        file,
        _bpe(file, fuse_unk=True, byte_fallback=True),
        normalizer=None,
        pre_tokenizer={"type": "Metaspace", "replacement": _SPACE_MARK, "prepend_scheme": scheme, "split": False},
        decoder={"type": "Sequence", "decoders": [*_FALLBACK_DECODERS, *strip]},
    )


def _gemma(file: Json, options: Mapping[str, Any]) -> Json:
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return _rebuilt(
        file,
        _bpe(file, fuse_unk=True, byte_fallback=True, unk_token=str(options["unk_token"])),
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK},
        pre_tokenizer=split,
        decoder={"type": "Sequence", "decoders": list(_FALLBACK_DECODERS)},
    )


def _bert(file: Json, options: Mapping[str, Any]) -> Json:
    return _rebuilt(
        file,
        {
            "type": "WordPiece",
            "unk_token": str(options["unk_token"]),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": file["model"]["vocab"],
        },
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(options.get("tokenize_chinese_chars", True)),
            "strip_accents": options.get("strip_accents"),
            "lowercase": bool(options.get("do_lower_case", True)),
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def _unigram(file: Json, unk_id: int, options: Mapping[str, Any]) -> Json:
    """Return SentencePiece's Unigram with only the table of characters from the file's normaliser."""
    normalizer = file.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    prefix = options.get("add_prefix_space")
    scheme = "always" if prefix is None or prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": _SPACE_MARK, "prepend_scheme": scheme, "split": True}
    return _rebuilt(
        file,
        {"type": "Unigram", "unk_id": unk_id, "vocab": file["model"]["vocab"], "byte_fallback": False},
        normalizer=next((step for step in steps if step.get("type") == "Precompiled"), None),
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        decoder=metaspace,
    )


def _t5_extra(options: Mapping[str, Any]) -> list[Any]:
    """Return the sentinels of gaps in T5's training texts, unless the folder lists them."""
    listed = options.get("additional_special_tokens") or []
    if any("<extra_id_" in str(token) for token in listed):
        return list(listed)
    return [*listed, *(f"<extra_id_{i}>" for i in range(options.get("extra_ids", 100)))]


def _camembert(file: Json, options: Mapping[str, Any]) -> Json:
    tokens = [token for token, _score in file["model"]["vocab"]]
    unknown = str(options["unk_token"])
    return _unigram(file, tokens.index(unknown) if unknown in tokens else 0, options)


def _camembert_extra(options: Mapping[str, Any]) -> list[Any]:
    listed = options.get("additional_special_tokens")
    return ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"] if listed is None else list(listed)


def _around(single: str, pair: str) -> Callable[[Mapping[str, tuple[str, int]], Mapping[str, Any]], Json]:
    """Return a post-processor that puts named special tokens around a text, $A, and around each of a pair, $A and $B;
    all of type 0.
    """

    def template(special: Mapping[str, tuple[str, int]], _options: Mapping[str, Any]) -> Json:
        def pieces(written: str) -> list[Json]:
            return [
                {"Sequence": {"id": name[1], "type_id": 0}}
                if name.startswith("$")
                else {"SpecialToken": {"id": special[name][0], "type_id": 0}}
                for name in written.split()
            ]

        used = [special[name] for name in pair.split() if not name.startswith("$")]
        tokens = {token: {"id": token, "ids": [token_id], "tokens": [token]} for token, token_id in used}
        return {
            "type": "TemplateProcessing",
            "single": pieces(single),
            "pair": pieces(pair),
            "special_tokens": tokens,
        }

    return template


def _bert_post(special: Mapping[str, tuple[str, int]], _options: Mapping[str, Any]) -> Json:
    (cls, cls_id), (sep, sep_id) = special["cls_token"], special["sep_token"]
    return {"type": "BertProcessing", "sep": [sep, sep_id], "cls": [cls, cls_id]}


def _roberta_post(special: Mapping[str, tuple[str, int]], options: Mapping[str, Any]) -> Json:
    return {
        "type": "RobertaProcessing",
        "sep": list(special["sep_token"]),
        "cls": list(special["cls_token"]),
        "trim_offsets": bool(options.get("trim_offsets", True)),
        "add_prefix_space": bool(options.get("add_prefix_space", False)),
    }


_END_OF_TEXT = {"unk_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
_SENTENCEPIECE = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_BERT_TOKENS = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
_BERT_TOKENS |= {"cls_token": "[CLS]", "mask_token": "[MASK]"}
_ROBERTA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"}
_ROBERTA_TOKENS |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}

_FRAMED = _around("bos_token $A eos_token", "bos_token $A eos_token eos_token $B eos_token")
_MPNET_TOKENS = _ROBERTA_TOKENS | {"unk_token": "[UNK]"}

CLASSES: dict[str, TokenizerClass] = {
    row.name: row
    for row in (
        TokenizerClass("GPT2Tokenizer", _gpt2, _END_OF_TEXT),
        TokenizerClass("LlamaTokenizer", _llama, _SENTENCEPIECE),
        TokenizerClass(
            "GPTNeoXTokenizer",
            lambda file, options: _gpt2(file, options) | {"normalizer": {"type": "NFC"}},
            _END_OF_TEXT | {"pad_token": "<|padding|>"},
            rebuilds_post_processor=True,
        ),
        TokenizerClass(
            "Qwen2Tokenizer",
            _qwen2,
            {"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
            marks_special=True,
        ),
        TokenizerClass(
            "GemmaTokenizer",
            _gemma,
            {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>"}
            | {"pad_token": "<pad>", "mask_token": "<mask>"},
        ),
        TokenizerClass("BertTokenizer", _bert, _BERT_TOKENS, post_processor=_bert_post, gives_types=True),
        TokenizerClass("RobertaTokenizer", _gpt2, _ROBERTA_TOKENS, post_processor=_roberta_post),
        TokenizerClass(
            "MPNetTokenizer", _bert, _MPNET_TOKENS, post_processor=lambda special, options: _roberta_post(special, {})
        ),
        TokenizerClass(
            "T5Tokenizer",
            lambda file, options: _unigram(file, 2, {}),  # its prefix is no option
            {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
            extra_tokens=_t5_extra,
            post_processor=_around("$A eos_token", "$A eos_token $B eos_token"),
        ),
        TokenizerClass(
            "XLMRobertaTokenizer",
            lambda file, options: _unigram(file, 3, options),
            _ROBERTA_TOKENS,
            post_processor=_FRAMED,
        ),
        TokenizerClass(
            "CamembertTokenizer",
            _camembert,
            _ROBERTA_TOKENS,
            extra_tokens=_camembert_extra,
            post_processor=_FRAMED,
        ),
    )
}
"""The classes that change their files."""
