"""Run sentence-transformers, onnxruntime or OpenVINO as a peer of embeddings and of reranking.

{"texts": ["...", ...]} -> the first text's vector, for the comparison; with --pairs
{"texts": [["query", "document"], ...]} -> the score of each pair. Seconds are from texts to vectors or scores. For
onnxruntime and OpenVINO this module does the work of `SentenceTransformer.encode` and `CrossEncoder.predict` around the
network: texts are sorted by length, 32 to a batch, and padded to the longest; vectors are the mean over the tokens, of
length 1. OpenVINO's network is in int8, as `nncf.quantize` makes it for transformers with texts of a book, which is the
call of optimum-intel.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.lines import answer_all

Run = Callable[[Sequence[Any]], npt.NDArray[np.float32]]
Inputs = dict[str, npt.NDArray[np.int64]]
Encode = Callable[[Sequence[Any]], Inputs]
Network = Callable[[Inputs], npt.NDArray[np.float32]]
BOOK = Path(__file__).parents[2] / "tests" / "e2e" / "book_of_dragons.txt"
BATCH = 32
INPUTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""The network's inputs in their order, and the names of a tokenizer's lists."""


def sentence_transformers(folder: Path, dtype: str, has_pairs: bool) -> Run:
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer

    kind: Any = CrossEncoder if has_pairs else SentenceTransformer
    model = kind(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": getattr(torch, dtype)})
    if has_pairs:
        return lambda pairs: model.predict(pairs, batch_size=BATCH, activation_fn=torch.nn.Identity())
    return lambda texts: model.encode(texts, batch_size=BATCH, convert_to_tensor=True).float().numpy()


def onnxruntime(exported: Path) -> Network:
    import onnxruntime as ort  # installed in a separate folder

    session = ort.InferenceSession(str(exported), providers=["CPUExecutionProvider"])  # all optimisations, all cores
    return lambda inputs: session.run(None, inputs)[0]


def openvino(exported: Path, encode: Encode) -> Network:
    import nncf  # installed in a separate folder, like openvino
    import openvino as ov

    core, quantized = ov.Core(), exported.with_suffix(".int8.xml")
    if not quantized.exists():
        words = BOOK.read_text(encoding="utf-8").split()
        texts = [" ".join(words[start : start + 60]) for start in range(0, 300 * 60, 60)]
        calibration = nncf.Dataset([encode([text]) for text in texts])
        model = nncf.quantize(core.read_model(exported), calibration, model_type=nncf.ModelType.TRANSFORMER)
        ov.save_model(model, quantized)
    compiled = core.compile_model(quantized, "CPU")
    return lambda inputs: compiled(inputs)[0]


def encoder_of(folder: Path, has_pairs: bool) -> Encode:
    """Return the network's inputs for some texts, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    file, limit = ("config", "max_position_embeddings") if has_pairs else ("sentence_bert_config", "max_seq_length")
    tokenizer.enable_truncation(json.loads((folder / f"{file}.json").read_text())[limit])
    tokenizer.enable_padding()

    def encode(texts: Sequence[Any]) -> Inputs:
        encoded = tokenizer.encode_batch(list(texts))
        return {name: np.array([getattr(each, own) for each in encoded]) for name, own in INPUTS.items()}

    return encode


def batched(encode: Encode, network: Network, has_pairs: bool) -> Run:
    def run(texts: Sequence[Any]) -> npt.NDArray[np.float32]:
        order = sorted(range(len(texts)), key=lambda i: -len("".join(texts[i])))
        found = []
        for start in range(0, len(order), BATCH):
            inputs = encode([texts[i] for i in order[start : start + BATCH]])
            output = network(inputs)
            found.append(output[:, 0] if has_pairs else pooled(output, inputs["attention_mask"]))
        return np.concatenate(found)[np.argsort(order)]

    return run


def pooled(hidden: npt.NDArray[np.float32], mask: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    found: npt.NDArray[np.float32] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return found


def export(folder: Path, exported: Path, has_pairs: bool) -> None:
    """Write the network, from ids to scores or to the last layer's output, in the format ONNX."""
    import torch
    from transformers import AutoModel, AutoModelForSequenceClassification

    kind: Any = AutoModelForSequenceClassification if has_pairs else AutoModel
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)

    class Ordered(torch.nn.Module):
        """The network's arguments in the order of `INPUTS`."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.model(**dict(zip(INPUTS, inputs, strict=True)))[0]

    exported.parent.mkdir(parents=True, exist_ok=True)
    partial = exported.with_suffix(".partial")
    torch.onnx.export(
        Ordered().eval(),
        tuple(torch.ones(2, 8, dtype=torch.int64) for _ in INPUTS),
        str(partial),
        input_names=[*INPUTS],
        output_names=["output"],
        dynamic_axes={name: {0: "text", 1: "token"} for name in INPUTS},
        dynamo=False,
    )
    partial.rename(exported)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pairs", action="store_true", help="score pairs of texts")
    parser.add_argument("--onnx", type=Path, help="use onnxruntime, or OpenVINO, with the model exported to this file")
    parser.add_argument("--openvino", action="store_true")
    options = parser.parse_args()
    if options.onnx is None:
        run = sentence_transformers(options.folder, options.dtype, options.pairs)
    else:
        if not options.onnx.exists():
            export(options.folder, options.onnx, options.pairs)
        encode = encoder_of(options.folder, options.pairs)
        network = openvino(options.onnx, encode) if options.openvino else onnxruntime(options.onnx)
        run = batched(encode, network, options.pairs)

    def answer(body: dict[str, Any]) -> list[float]:
        texts = [tuple(each) if options.pairs else each for each in body["texts"]]
        found = run(texts)
        first: list[float] = (found if options.pairs else found[0]).astype(float).tolist()
        return first

    answer_all(answer)


if __name__ == "__main__":
    main()
