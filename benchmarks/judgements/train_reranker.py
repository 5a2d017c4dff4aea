"""Train a small cross-encoder: which passage of a book do these words come from?

    python -m benchmarks.judgements.train_reranker --corpus train.txt --folder tests/e2e/reranker

In the corpus, a blank line separates paragraphs and a line `<|endoftext|>` separates books. A query consists of some
words of one sentence, in order; its document is the passage around them, and the others are passages of the same book
and of other books. The network is a BERT of 2 layers, 128 wide. Queries and keys of its first layer start equal, so
that each token attends to equal tokens and training need not discover the match of words. The loss is the cross-entropy
over one right passage and five others. The output is a folder for sentence-transformers' CrossEncoder.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from tests.support.passages import CANDIDATES, draw, passages_of

VOCAB_SIZE, WIDTH, LAYERS, HEADS = 4096, 128, 2, 4
CONTEXT = 96
"""Most tokens of a pair."""
QUERIES_AT_ONCE = 8
RATE, WARM_UP_STEPS = 5e-4, 100
"""The largest learning rate, and the steps until it is reached: at 2e-3 all scores became one number."""


def new_tokenizer(corpus: Path, folder: Path) -> Any:
    """Train a tokenizer of BERT's kind on the corpus, and return it as transformers reads it."""
    trained = BertWordPieceTokenizer(lowercase=True)
    trained.train([str(corpus)], vocab_size=VOCAB_SIZE, show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    trained.save_model(str(folder))
    return BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=CONTEXT)


def new_network() -> Any:
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=CONTEXT,
        num_labels=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    network = BertForSequenceClassification(config)
    embeddings, first = network.bert.embeddings, network.bert.encoder.layer[0].attention
    with torch.no_grad():  # each token then attends to equal tokens, in both texts
        embeddings.position_embeddings.weight.mul_(0.1)
        embeddings.token_type_embeddings.weight.mul_(0.3)
        for linear, size in (
            (first.self.query, 1.2),
            (first.self.key, 1.2),
            (first.self.value, 1),
            (first.output.dense, 1),
        ):
            linear.weight.add_(size * torch.eye(WIDTH))
    return network


def train(network: Any, tokenizer: Any, books: list[list[str]], minutes: float, drawn: random.Random) -> None:
    """Train for the given time, and print the progress."""
    began = time.monotonic()
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    losses: list[float] = []
    while (done := (time.monotonic() - began) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, len(losses) / WARM_UP_STEPS) * (1 - done)
        batch = [draw(books, drawn) for _ in range(QUERIES_AT_ONCE)]
        queries = [query for query, passages in batch for _ in passages]
        texts = [passage for _, passages in batch for passage in passages]
        given = tokenizer(queries, texts, padding=True, truncation=True, return_tensors="pt")
        scores = network(**given).logits.view(QUERIES_AT_ONCE, CANDIDATES)
        loss = torch.nn.functional.cross_entropy(scores, torch.zeros(QUERIES_AT_ONCE, dtype=torch.int64))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % 100 == 0:
            print(f"{len(losses)} steps, {done:.0%}: loss {sum(losses[-100:]) / 100:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    books = passages_of(options.corpus.read_text(encoding="utf-8"))
    tokenizer, network = new_tokenizer(options.corpus, options.folder), new_network()
    train(network, tokenizer, books, options.minutes, random.Random(0))
    network.eval().save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)
    (options.folder / "vocab.txt").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
