"""Make the 124M checkpoint that the benchmarks serve: Llama-shaped, the size of GPT-2 small, random weights.

Speed does not depend on the values of the weights. The generated tokens are whole characters, because an engine that
holds back the first half of a character would seem to stutter. This module is independent of the server.
"""

import json
import random
from pathlib import Path
from typing import Any

VOCABULARY = 50257
CONTEXT = 1024
END = "<|endoftext|>"
NAME = "llama-124m-ascii"


def random_prompts(count: int, seed: int, num_tokens: int = 128, vocabulary: int = VOCABULARY) -> list[list[int]]:
    """Return `count` prompts of random token ids, different for every seed; no prefix is shared."""
    draw = random.Random(seed)
    return [[draw.randrange(256, vocabulary - 1) for _ in range(num_tokens)] for _ in range(count)]


def make_checkpoint(cache: Path) -> Path:
    """Return the folder of the 124M checkpoint under `cache`, made when it is not there yet (float32, 0.5 GB)."""
    return make_llama(
        cache / NAME,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=CONTEXT,
    )


def make_llama(folder: Path, **sizes: Any) -> Path:
    """Return a Llama-shaped checkpoint of these sizes (LlamaConfig's names), made in `folder` when it is not there
    yet.
    """
    if (folder / "complete").exists():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **sizes,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        bos_token_id=VOCABULARY - 1,
        eos_token_id=VOCABULARY - 1,
    )
    folder.mkdir(parents=True, exist_ok=True)
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    (folder / "complete").touch()
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE of the right size: the 256 bytes, pairs and triples of printable ASCII characters, one
    end of text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    pairs = [(a, b) for a in printable for b in printable]
    triples = [(a + b, c) for a, b in pairs for c in printable]
    merges = (pairs + triples)[: VOCABULARY - len(alphabet) - 1]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": CONTEXT}, indent=2))
