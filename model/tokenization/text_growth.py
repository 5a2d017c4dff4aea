"""Growth of a text in a tokenizer: with a hostile tokenizer.json, a short text could fill the memory."""

import base64
import json
from typing import Any

import tokenizers

MOST_GROWTH = 64
"""Largest number of characters that replace one. NFKC, which SentencePiece's tables contain too, needs 18."""
_STEPS = ("normalizers", "pretokenizers", "decoders", "processors")
_USUAL = {"ByteLevel": 4, "BertNormalizer": 3}
"""Growth of steps that replace a character by several: by its bytes, or with spaces around it."""


def text_growth(raw: tokenizers.Tokenizer) -> dict[str, float]:
    """Return the largest number of characters, or of tokens, that each part of a tokenizer makes from one."""
    parts = {name: getattr(raw, name) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")}
    return {name: _growth(json.loads(part.__getstate__())) for name, part in parts.items() if part is not None}


def _growth(step: dict[str, Any]) -> float:
    kind = step.get("type")
    if kind == "Sequence":
        product = 1.0
        for inner in next(step[name] for name in _STEPS if name in step):
            product *= _growth(inner)
        return product
    if kind == "Replace":
        found = len(step["pattern"].get("String", "x"))  # an expression may match one character
        return max(1, len(step["content"]) / found if found else 1 + len(step["content"]))
    if kind == "Prepend":
        return max(1, len(step["prepend"]))
    if kind == "TemplateProcessing":
        return max(len(step["single"]), len(step["pair"]))
    if kind == "Precompiled":
        table = base64.b64decode(step["precompiled_charsmap"])
        texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")  # after the trie that leads to them
        return max(1, *(len(text.decode("utf-8", "replace")) for text in texts))
    return _USUAL.get(str(kind), 1)
