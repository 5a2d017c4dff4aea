"""Small tokenizers trained here on a few sentences: a byte-level BPE, and BERT's WordPiece."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB_SIZE = 320
BOS, EOS = "<|begin|>", "<|end|>"

_SENTENCES = (
    "Once upon a time there was a little girl who lived in a house beside the wood.",
    "The wolf said: little pig, little pig, let me come in!",
    "There were 3 bears, and they had 12 bowls of porridge; the porridge was too hot.",
    "Übermut tut selten gut. Où est le château ? 茨姫は眠っている。 🐺🌲",
)


@dataclass(frozen=True)
class Text:
    """How a family writes text as tokens."""

    special: tuple[str, ...]
    """Special tokens; their indices are their ids."""
    template: str
    """The tokens around a text, in the form of tokenizers' TemplateProcessing."""
    named: dict[str, str]
    """Field of tokenizer_config.json -> special token."""
    model: Literal["bpe", "wordpiece"] = "bpe"


DECODER_TEXT = Text((BOS, EOS), f"{BOS} $A", {"bos_token": BOS, "eos_token": EOS})
T5_TEXT = Text(("<pad>", "</s>"), "$A </s>", {"pad_token": "<pad>", "eos_token": "</s>"})
_FRAMED = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
FRAMED_TEXT = Text(("<s>", "<pad>", "</s>"), "<s> $A </s>", _FRAMED)
"""The text format of RoBERTa and BART."""
_BERT = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
BERT_TEXT = Text(("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), "[CLS] $A [SEP]", _BERT, "wordpiece")
MARIAN_TEXT = Text(("<s>", "<pad>", "</s>"), "$A </s>", {"pad_token": "<pad>", "eos_token": "</s>"})


def make_tokenizer(path: Path, text: Text) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    tokenizer = _word_piece(text) if text.model == "wordpiece" else _byte_level(text)
    used = [(token, index) for index, token in enumerate(text.special) if token in text.template.split()]
    tokenizer.post_processor = processors.TemplateProcessing(single=text.template, special_tokens=used)
    tokenizer.save(str(path / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **text.named}
    (path / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")


def _byte_level(text: Text) -> Tokenizer:
    """Return a tokenizer with all 256 bytes and a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(text.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return tokenizer


def _word_piece(text: Text) -> Tokenizer:
    """Return a tokenizer of lower case and pieces of words; unknown characters become [UNK]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB_SIZE, special_tokens=list(text.special), show_progress=False)
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return tokenizer
