"""Makes a small checkpoint that generates fixed texts: one text after a user's message, another after a tool's.

Tests can follow clients that run tools by themselves through a whole turn, whatever they send: the context is long,
and the network looks only at the last token.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 131072
"""Tokens of its context: programs that write code send up to thirty thousand before the first word."""
_SIZE = 128
_ROOT = Path(__file__).resolve().parents[2]
_EOS, _CALLS, _ANSWERS = "<|end|>", "<|calls|>", "<|answers|>"
_TEMPLATE = """
{%- if tools %}<|system|>{{ tools | tojson }}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}{% endfor %}
{%- if add_generation_prompt %}
{{- "<|calls|>" if tools and messages[-1].role != "tool" else "<|answers|>" }}{% endif %}"""


def make_scripted(path: Path, call: Sequence[str], answer: Sequence[str]) -> Path:
    """Write a checkpoint to folder `path` and return it.

    It generates `call` in a chat with tools until a tool has answered, and `answer` otherwise. Each is a list of parts,
    one a token, all of them different.
    """
    path.mkdir(exist_ok=True)
    tokenizer = _tokenizer(path, [*call, *answer])
    said = [_CALLS, *call, _EOS], [_ANSWERS, *answer, _EOS]
    ids = tokenizer.get_vocab()
    _network(len(ids), [[ids[token] for token in script] for script in said]).save_pretrained(path)
    return path


def _tokenizer(path: Path, parts: list[str]) -> Tokenizer:
    """Write a byte-level BPE that was trained on this repository's pages, with the parts as tokens of their own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4096, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(page) for page in sorted((_ROOT / "docs").glob("*.md"))], trainer)
    tokenizer.add_special_tokens([_EOS, _CALLS, _ANSWERS])
    tokenizer.add_tokens([AddedToken(part, normalized=False) for part in parts])
    tokenizer.save(str(path / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _EOS, "chat_template": _TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    return tokenizer


def _network(size_of_vocabulary: int, scripts: list[list[int]]) -> LlamaForCausalLM:
    """Return a network with layers that add nothing. Its head sees the last token's embedding, and finds the next token
    of the script by it.
    """
    config = LlamaConfig(
        vocab_size=size_of_vocabulary,
        hidden_size=_SIZE,
        intermediate_size=_SIZE,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=scripts[0][-1],
    )
    network = LlamaForCausalLM(config)
    layer = network.model.layers[0]
    embeddings = torch.randn(size_of_vocabulary, _SIZE, generator=torch.Generator().manual_seed(0))
    head = torch.zeros_like(embeddings)
    embeddings[:, 0], head[scripts[0][-1], 0] = 1.0, _SIZE / 4  # the end follows tokens that no script has
    for script in scripts:
        for token, following in pairwise(script):
            head[following] += embeddings[token]
    for parameter, value in (
        (layer.self_attn.o_proj.weight, torch.zeros(_SIZE, _SIZE)),
        (layer.mlp.down_proj.weight, torch.zeros(_SIZE, _SIZE)),
        (network.model.embed_tokens.weight, embeddings),
        (network.lm_head.weight, head),
    ):
        parameter.data = value
    return network
