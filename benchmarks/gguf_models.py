"""Make the GGUF files for the comparison with llama.cpp: SmolLM2-135M-Instruct as in its package and in Q8_0, and
random weights of 1.1B parameters in Q4_K, with the same tokenizer.

The last has TinyLlama's shape (Zhang et al. 2024, arXiv:2401.02385) except for the vocabulary. Its numbers are drawn
in Q4_K, with the magnitude of trained weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from lightwell.model.checkpoint.gguf.header import read_header
from lightwell.model.checkpoint.resolve import smollm2_file

_LARGE = {
    "block_count": 22,
    "context_length": 2048,
    "embedding_length": 2048,
    "feed_forward_length": 5632,
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "rope.dimension_count": 64,
}
_ADDED = np.float32(0.02)
"""Factor on the outputs of added blocks."""
_SCALE = 2e-4
"""Scale of a block of 256 random numbers: their standard deviation is then about 0.02."""


def smollm2_q8_0(cache: Path) -> Path:
    """Return SmolLM2's file with its matrices in Q8_0, and make it if the folder does not have it."""
    return _smollm2(cache, Type.Q8_0)


def smollm2_bf16(cache: Path) -> Path:
    """Return SmolLM2's file with its matrices in bfloat16, and make it if the folder does not have it."""
    return _smollm2(cache, Type.BF16)


def smollm2_deep(cache: Path) -> Path:
    """Return SmolLM2's file in bfloat16 with eight times as many blocks, and make it if the folder does not have it.

    The added blocks change the residual stream a little, so the network mostly agrees with the original one.
    """
    return _smollm2(cache, Type.BF16, 8)


def _smollm2(cache: Path, kind: Type, factor: int = 1) -> Path:
    path = cache / f"smollm2-135m-{kind.name.lower()}{f'-{factor}' * (factor > 1)}.gguf"
    if not path.exists():
        source = smollm2_file()
        header, content = read_header(source), np.memmap(source, np.uint8, "r")
        num_blocks = header.metadata["llama.block_count"]
        writer = _writer(path, header.metadata, {"block_count": factor * num_blocks})
        for name, entry in header.tensors.items():
            data = content[entry.offset : entry.offset + entry.num_bytes]
            group, _, rest = name.partition(".")
            number, _, rest = rest.partition(".")
            for i in range(factor if group == "blk" else 1):
                copy = f"blk.{factor * int(number) + i}.{rest}" if group == "blk" else name
                if len(entry.shape) == 1:
                    writer.add_tensor(copy, data.view(np.float32))
                    continue
                rows = gguf.quants.dequantize(data.reshape(entry.shape[0], -1), entry.type)
                rows = rows * _ADDED if i and rest.startswith(("attn_output", "ffn_down")) else rows
                writer.add_tensor(copy, gguf.quants.quantize(rows, kind), raw_dtype=kind)
        _write(writer, path)
    return path


def random_q4_k(cache: Path) -> Path:
    """Return a file of 1.1B random parameters in Q4_K, the token table and the head in Q6_K, and make it if the folder
    does not have it.
    """
    path = cache / "random-1.1b-q4_k.gguf"
    if not path.exists():
        metadata = read_header(smollm2_file()).metadata
        writer, rng = _writer(path, metadata, _LARGE), np.random.default_rng(0)
        width, inside, vocabulary = _LARGE["embedding_length"], _LARGE["feed_forward_length"], 49152
        keys = 64 * _LARGE["attention.head_count_kv"]
        shapes = {"attn_q": (width, width), "attn_k": (keys, width), "attn_v": (keys, width)}
        shapes |= {"attn_output": (width, width), "ffn_gate": (inside, width), "ffn_up": (inside, width)}
        shapes |= {"ffn_down": (width, inside)}
        for name in ("token_embd", "output"):
            writer.add_tensor(f"{name}.weight", _random(rng, vocabulary, width, Type.Q6_K), raw_dtype=Type.Q6_K)
        writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
        for layer in range(_LARGE["block_count"]):
            for name in ("attn_norm", "ffn_norm"):
                writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
            for name, (rows, columns) in shapes.items():
                data = _random(rng, rows, columns, Type.Q4_K)
                writer.add_tensor(f"blk.{layer}.{name}.weight", data, raw_dtype=Type.Q4_K)
        _write(writer, path)
    return path


def _random(rng: np.random.Generator, rows: int, columns: int, kind: Type) -> np.ndarray:
    """Return random blocks of 256 numbers with small scales: bytes [rows, bytes of a row]."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // block_size, block_bytes), np.uint8)
    if kind == Type.Q4_K:  # scale, and a minimum equal to the mean of the scaled values
        blocks[:, :, 0:2] = np.array([_SCALE], np.float16).view(np.uint8)
        blocks[:, :, 2:4] = np.array([7.5 * _SCALE], np.float16).view(np.uint8)
        blocks[:, :, 12:16] = blocks[:, :, 4:8] & 15 | blocks[:, :, 4:8] << 4  # the factors of both are the same
        blocks[:, :, 8:12] = blocks[:, :, 4:8]
    else:
        blocks[:, :, 208:210] = np.array([_SCALE / 8], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def _writer(path: Path, metadata: Mapping[str, Any], changed: Mapping[str, int]) -> gguf.GGUFWriter:
    """Return a writer of a file with another one's metadata. changed: fields of the architecture."""
    architecture = metadata["general.architecture"]
    writer = gguf.GGUFWriter(path.with_suffix(".partial"), architecture)
    for key, value in metadata.items():
        value = changed.get(key.removeprefix(f"{architecture}."), value)
        if key in ("general.architecture", "general.file_type"):
            continue
        if isinstance(value, np.ndarray | list):
            writer.add_array(key, value.tolist() if isinstance(value, np.ndarray) else value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    return writer


def _write(writer: gguf.GGUFWriter, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".partial").rename(path)
