"""Run sentence-transformers, or onnxruntime, in a separate process: one line of input, one line of output.

{"texts": ["...", ...]} -> {"seconds": 1.5, "first": [0.1, ...]}: the seconds from text to vectors, and the first vector
for the comparison. For onnxruntime this module does the work of `SentenceTransformer.encode` around the network: texts
are sorted by length, 32 to a batch, and padded to the longest; vectors are the mean over the tokens, with length 1.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
BATCH = 32


def sentence_transformers(folder: Path, dtype: str) -> Callable[[Sequence[str]], Vectors]:
    import torch
    from sentence_transformers import SentenceTransformer

    options = {"dtype": getattr(torch, dtype)}
    model: Any = SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs=options)

    def embed(texts: Sequence[str]) -> Vectors:
        found: Vectors = model.encode(list(texts), batch_size=BATCH, convert_to_tensor=True).float().numpy()
        return found

    return embed


def onnxruntime(folder: Path, exported: Path) -> Callable[[Sequence[str]], Vectors]:
    if not exported.exists():
        from transformers import AutoModel

        export(AutoModel, folder, "last_hidden_state", exported)
    import onnxruntime as ort  # installed in a separate folder
    from tokenizers import Tokenizer

    session = ort.InferenceSession(str(exported), providers=["CPUExecutionProvider"])  # all optimisations, all cores
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
    tokenizer.enable_padding()

    def embed(texts: Sequence[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found = np.empty((len(texts), 0), np.float32)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            encoded = tokenizer.encode_batch([texts[i] for i in batch])
            ids, mask, types = (
                np.array([getattr(each, name) for each in encoded], np.int64)
                for name in ("ids", "attention_mask", "type_ids")
            )
            (hidden,) = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": types})
            mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            if not start:
                found = np.empty((len(texts), mean.shape[1]), np.float32)
            found[batch] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return found

    return embed


def export(kind: Any, folder: Path, output: str, exported: Path) -> None:
    """Write the network that a class of transformers reads, from ids to one of its outputs, as onnxruntime reads it."""
    import torch

    model: Any = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)

    class Ordered(torch.nn.Module):
        """The network's arguments in the order of `names`."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> Any:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)[output]

    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
    axes = {name: {0: "text", 1: "token"} for name in names}
    exported.parent.mkdir(parents=True, exist_ok=True)
    partial = exported.with_suffix(".partial")
    torch.onnx.export(
        Ordered().eval(),
        example,
        str(partial),
        input_names=names,
        output_names=[output],
        dynamic_axes=axes,
        dynamo=False,
    )
    partial.rename(exported)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--onnx", type=Path, help="use onnxruntime, with the model exported to this file")
    options = parser.parse_args()
    if options.onnx is None:
        embed = sentence_transformers(options.folder, options.dtype)
    else:
        embed = onnxruntime(options.folder, options.onnx)
    print("{}", flush=True)
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        started = time.perf_counter()
        vectors = embed(texts)
        seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds, "first": vectors[0].tolist()}), flush=True)


if __name__ == "__main__":
    main()
