"""Run sentence-transformers' CrossEncoder, or onnxruntime, in a separate process: one line in, one line out.

{"query": "...", "documents": ["...", ...]} -> {"seconds": 1.5, "scores": [0.1, ...]}: the seconds from texts to logits.
For onnxruntime this module does the work of `CrossEncoder.predict` around the network: pairs are sorted by length, 32
to a batch, and padded to the longest.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.embed import BATCH, export

Score = Callable[[str, Sequence[str]], list[float]]


def sentence_transformers(folder: Path, dtype: str) -> Score:
    import torch
    from sentence_transformers import CrossEncoder

    options = {"dtype": getattr(torch, dtype)}
    model: Any = CrossEncoder(str(folder), device="cpu", local_files_only=True, model_kwargs=options)

    def score(query: str, documents: Sequence[str]) -> list[float]:
        pairs, identity = [(query, document) for document in documents], torch.nn.Identity()
        found: list[float] = model.predict(pairs, batch_size=BATCH, activation_fn=identity).astype(float).tolist()
        return found

    return score


def onnxruntime(folder: Path, exported: Path) -> Score:
    if not exported.exists():
        from transformers import AutoModelForSequenceClassification

        export(AutoModelForSequenceClassification, folder, "logits", exported)
    import onnxruntime as ort  # installed in a separate folder
    from tokenizers import Tokenizer

    session = ort.InferenceSession(str(exported), providers=["CPUExecutionProvider"])  # all optimisations, all cores
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(json.loads((folder / "config.json").read_text())["max_position_embeddings"])
    tokenizer.enable_padding()

    def score(query: str, documents: Sequence[str]) -> list[float]:
        order = sorted(range(len(documents)), key=lambda i: -len(documents[i]))
        found = np.empty(len(documents))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            encoded = tokenizer.encode_batch([(query, documents[i]) for i in batch])
            ids, mask, types = (
                np.array([getattr(each, name) for each in encoded], np.int64)
                for name in ("ids", "attention_mask", "type_ids")
            )
            (logits,) = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})
            found[batch] = logits[:, 0]
        return found.tolist()

    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--onnx", type=Path, help="use onnxruntime, with the model exported to this file")
    options = parser.parse_args()
    if options.onnx is None:
        score = sentence_transformers(options.folder, options.dtype)
    else:
        score = onnxruntime(options.folder, options.onnx)
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.perf_counter()
        scores = score(asked["query"], asked["documents"])
        print(json.dumps({"seconds": time.perf_counter() - started, "scores": scores}), flush=True)


if __name__ == "__main__":
    main()
