"""Tiny tokenizers made in code, one folder each, in the forms of published checkpoints."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The sun lights the yard, and the well brings daylight into the middle of the house.",
    "Don't stop; it's the year's first snow. They've gone, haven't they? I'm sure!",
    "Die Sonne scheint über München, über den Fluß. Le garçon a été à l'école, où ça?",
    "天窓は建物の中に光を運ぶ。光、光、光。",
    "numbers 1 22 333 4444 55555 and    spaces\n\tand\r\nlines",
    "🙂🙂 emoji 👩‍🚀 e\u0301 a\u0308",
]

LLAMA3_LIKE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write(folder: Path, tokenizer: Tokenizer | None, **files: Any) -> Path:
    """Write a tokenizer folder; `files` are its JSON files by stem, or None for omitted files."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    for stem, value in files.items():
        if value is not None:
            (folder / f"{stem}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def byte_level(special: tuple[str, ...] = ("<|endoftext|>",), *, prefix: bool = False) -> Tokenizer:
    """Return a tokenizer of GPT-2's kind: every byte is in the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def llama3_like() -> Tokenizer:
    """Return a byte-level tokenizer with a split pattern and a template that writes the first token."""
    tokenizer = byte_level(("<|begin|>", "<|end|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_LIKE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]),
        ]
    )
    return tokenizer


def roberta_like() -> Tokenizer:
    """Return a byte-level tokenizer with RoBERTa's marks around each text."""
    tokenizer = byte_level(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def llama2_like(*, bos: bool = True) -> Tokenizer:
    """Return Sentencepiece's BPE: spaces are marks, unknown characters are runs of byte tokens."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=[*special, *byte_tokens], show_progress=False)
    trained.train_from_iterator([line for line in CORPUS if line.isascii()], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram(
    special: tuple[str, ...] = ("<pad>", "</s>", "<unk>"), around: tuple[str, ...] = ("$A", "</s>")
) -> Tokenizer:
    """Return a tokenizer of T5's kind: Unigram pieces after a space mark, an end token after each text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    used = [(token, special.index(token)) for token in around if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=list(around), special_tokens=used)
    return tokenizer


def word_piece(special: tuple[str, ...] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")) -> Tokenizer:
    """Return a tokenizer of BERT's kind, as its class saves it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing((special[3], 3), (special[2], 2))
    return tokenizer


_PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_SPM = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_GPT2 = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}


def vocab_and_merges(folder: Path, **files: Any) -> Path:
    """Write GPT-2's two files instead of tokenizer.json."""
    model = json.loads(byte_level().to_str())["model"]
    write(folder, None, vocab=model["vocab"], **files)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def words(folder: Path, **files: Any) -> Path:
    """Write BERT's one file instead of tokenizer.json."""
    vocab = word_piece().get_vocab()
    write(folder, None, **files)
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n", encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Shape:
    """A folder with a tokenizer.json; `name` describes its special property."""

    name: str
    tokenizer: Tokenizer
    tokenizer_config: dict[str, Any] | None
    model_type: str | None = None
    """The model type in its config.json, or None."""
    files: dict[str, Any] = field(default_factory=dict)
    """Its other JSON files by stem."""

    def write(self, root: Path) -> Path:
        config = None if self.model_type is None else {"model_type": self.model_type}
        return write(
            root / self.name, self.tokenizer, tokenizer_config=self.tokenizer_config, config=config, **self.files
        )


def build_all(root: Path) -> dict[str, Path]:
    """Write one folder for each kind of tokenizer in checkpoints; each name describes the special property."""
    shapes = [*byte_levels(), *byte_levels_of_encoders(), *byte_fallbacks(), *unigrams(), *word_pieces()]
    return {shape.name: shape.write(root) for shape in shapes} | files_of_vocabularies(root)


def byte_levels() -> list[Shape]:
    """Return folders of GPT-2's kind, as decoders have it."""
    late = {
        "0": {"content": "<|endoftext|>", "special": True, "normalized": False},
        "400": {"content": "<|im_start|>", "special": True, "normalized": False},
        "401": {"content": "<|im_end|>", "special": True, "normalized": False},
        "402": {"content": "<tool>", "special": False, "normalized": False},
    }
    return [
        Shape("byte level, plain class", byte_level(), _PLAIN | _GPT2 | {"clean_up_tokenization_spaces": True}),
        Shape("byte level, GPT-2 class", byte_level(), {"tokenizer_class": "GPT2Tokenizer"}, "gpt2"),
        Shape(
            "byte level, GPT-2 class, prefix space",
            byte_level(prefix=True),
            {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True},
            "gpt2",
        ),
        Shape("byte level, class by model type only", byte_level(), None, "gpt2"),
        Shape(
            "byte level, late tokens",
            byte_level(),
            _PLAIN | {"eos_token": "<|im_end|>", "added_tokens_decoder": late, "extra_special_tokens": ["<extra>"]},
        ),
        Shape(
            "byte level, Qwen class",
            byte_level(),
            {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "added_tokens_decoder": late},
            "qwen2",
        ),
        Shape(
            "byte level, Granite 4",
            llama3_like(),
            {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|begin|>", "eos_token": "<|end|>"},
            "granitemoehybrid",
        ),
        Shape(
            "byte level, NeoX class",
            byte_level(("<|endoftext|>", "<|padding|>")),
            {"tokenizer_class": "GPTNeoXTokenizer", "add_bos_token": True},
            "gpt_neox",
        ),
        Shape(
            "byte level, OPT",
            byte_level(("<s>", "</s>", "<pad>", "<unk>")),
            _SPM | {"tokenizer_class": "GPT2Tokenizer", "pad_token": "<pad>", "add_bos_token": True},
            "opt",
        ),
        Shape(
            "byte level, Llama class declared",
            llama3_like(),
            {"tokenizer_class": "LlamaTokenizer", "bos_token": "<|begin|>", "eos_token": "<|end|>"},
            "llama",
            {"generation_config": {"eos_token_id": [1, 7]}},
        ),
    ]


def byte_levels_of_encoders() -> list[Shape]:
    """Return folders of GPT-2's kind, with the tokens that encoders write around a text."""
    modern = byte_level(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))
    modern.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return [
        Shape("byte level, RoBERTa class", roberta_like(), {"tokenizer_class": "RobertaTokenizer"}, "roberta"),
        Shape("byte level, BART", roberta_like(), {"tokenizer_class": "BartTokenizer"}, "bart"),
        Shape("byte level, ModernBERT", modern, _PLAIN | _BERT, "modernbert"),
    ]


def byte_fallbacks() -> list[Shape]:
    """Return folders of Sentencepiece's BPE, as the families that descend from Llama declare it."""
    llama = _SPM | {"tokenizer_class": "LlamaTokenizer"}
    gemma = _SPM | {"tokenizer_class": "GemmaTokenizer", "pad_token": "<unk>", "mask_token": None}
    special_tokens_map = {
        "bos_token": {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False},
        "eos_token": "</s>",
        "additional_special_tokens": ["<note>"],
    }
    return [
        Shape("byte fallback, plain class", llama2_like(), _PLAIN | _SPM, "llama"),
        Shape(
            "byte fallback, Llama class",
            llama2_like(),
            llama | {"add_bos_token": True, "add_eos_token": True, "legacy": True},
            "llama",
        ),
        Shape(
            "byte fallback, Llama class, not legacy, no prefix",
            llama2_like(bos=False),
            _SPM | {"tokenizer_class": "LlamaTokenizerFast", "legacy": False, "add_prefix_space": False},
            "llama",
        ),
        Shape("byte fallback, Mistral", llama2_like(), llama | {"legacy": False}, "mistral"),
        Shape(
            "byte fallback, special tokens map",
            llama2_like(),
            {"tokenizer_class": "LlamaTokenizer"},
            "llama",
            {"special_tokens_map": special_tokens_map, "added_tokens": {"<late>": 500}},
        ),
        Shape("byte fallback, Gemma class", llama2_like(), gemma, "gemma"),
        Shape("byte fallback, Gemma 3", llama2_like(), gemma, "gemma3_text"),
        Shape("byte fallback, Phi-3", llama2_like(), llama | {"legacy": False, "pad_token": "</s>"}, "phi3"),
    ]


def unigrams() -> list[Shape]:
    """Return folders of Sentencepiece's Unigram: T5's end token, or both ends marked as encoders have it."""
    whole = ("<s>", "$A", "</s>")
    return [
        Shape("unigram", unigram(), _PLAIN | {"eos_token": "</s>", "clean_up_tokenization_spaces": True}),
        Shape("unigram, T5 class", unigram(), {"tokenizer_class": "T5Tokenizer"}, "t5"),
        Shape(
            "unigram, T5 class, its own sentinels",
            unigram(("<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>")),
            {
                "tokenizer_class": "T5Tokenizer",
                "extra_ids": 2,
                "additional_special_tokens": ["<extra_id_0>", "<extra_id_1>"],
            },
            "t5",
        ),
        Shape(
            "unigram, XLM-RoBERTa class",
            unigram(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), whole),
            {"tokenizer_class": "XLMRobertaTokenizer"},
            "xlm-roberta",
        ),
        Shape(
            "unigram, CamemBERT class",
            unigram(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>"), whole),
            {"tokenizer_class": "CamembertTokenizer"},
            "camembert",
        ),
    ]


def word_pieces() -> list[Shape]:
    """Return folders of BERT's kind."""
    mpnet = word_piece(("<pad>", "[UNK]", "<s>", "</s>", "<mask>"))
    mpnet.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2))
    return [
        Shape("word piece, plain class", word_piece(), _PLAIN | _BERT | {"clean_up_tokenization_spaces": True}),
        Shape(
            "word piece, BERT class",
            word_piece(),
            {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 512},
            "bert",
        ),
        Shape("word piece, MPNet class", mpnet, {"tokenizer_class": "MPNetTokenizer"}, "mpnet"),
    ]


def files_of_vocabularies(root: Path) -> dict[str, Path]:
    """Write folders without a tokenizer.json: their vocabulary is in the older files."""
    return {
        "vocab of word pieces": words(root / "vocab of word pieces", config={"model_type": "bert"}),
        "vocab of word pieces, cased": words(
            root / "vocab of word pieces, cased",
            config={"model_type": "distilbert"},
            tokenizer_config={"do_lower_case": False, "model_max_length": 512},
        ),
        "vocab and merges": vocab_and_merges(root / "vocab and merges", config={"model_type": "gpt2"}),
        "vocab and merges, added tokens": vocab_and_merges(
            root / "vocab and merges, added tokens",
            config={"model_type": "gpt2"},
            tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "add_bos_token": True},
            added_tokens={"<|im_start|>": 400, "plain": 401},
            special_tokens_map={"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"},
        ),
    }
