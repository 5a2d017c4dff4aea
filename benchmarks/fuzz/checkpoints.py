"""Small checkpoints of every format, and mutations of their files."""

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType as Type
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Raw
from tokenizers import models

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.gguf.folder import _files
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.kv_cache import KVCache
from lightwell.model.loading.loader import load_model
from lightwell.model.loading.lora_loader import load_adapter
from lightwell.model.network.cross_encoder import score_defaults
from lightwell.model.network.sentence_transformers import embedding_defaults
from lightwell.model.tokenization.tokenizer import Tokenizer, UnreadableText
from tests import quantized_files, tiny
from tests.gguf_files import make_network, write_gguf
from tests.quantized_files import Format, write_checkpoint
from tests.tiny.adapters import make_adapter

_CPU = torch.device("cpu")
_BLOCK = 8
_FORMATS: dict[str, Callable[[], Format]] = {
    "awq": quantized_files.awq,
    "gptq": quantized_files.gptq,
    "gptq, 8 bits": lambda: quantized_files.gptq(bits=8),
    "packed": lambda: quantized_files.packed(is_symmetric=False),
    "int8": lambda: quantized_files.int_quantized(has_zeros=True),
    "mxfp4": quantized_files.mxfp4,
    "mxfp4, compressed": lambda: quantized_files.mxfp4(is_compressed=True),
    "fp8": lambda: quantized_files.fp8((64, 32)),
}
_GGUF = {"gguf, Q8_0": ("llama", Type.Q8_0), "gguf, Q4_0": ("qwen2", Type.Q4_0), "gguf, F16": ("phi3", Type.F16)}
_PLAIN = ("gpt2", "bert", "llama-gqa")
_TORCH = {"torch": True, "torch, before 1.6": False}
"""Names of checkpoints that torch.save wrote, and whether as a zip file."""
_LARGE = (2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    *(None, -1, 0, 1, 3, 7, 65, 2**70, -(2**63), 1e308, "", "x", "../..", [], {}, [[]], True, [-3], "a" * 100_000),
    *(*_LARGE, 10**400),
)
"""Replacement values in JSON files."""
_SIZES = {"num_hidden_layers": 1, "intermediate_size": 192, "head_dim": 32}


class Sources:
    """Unchanged checkpoints in a folder, and room for a changed one."""

    def __init__(self, room: Path) -> None:
        self.room = room
        for name, made in _FORMATS.items():
            write_checkpoint(make_network("llama", **_SIZES), made(), room / name)
        for name, (architecture, kind) in _GGUF.items():
            (room / name).mkdir()
            write_gguf(make_network(architecture, num_hidden_layers=1), architecture, kind, room / name / "a.gguf")
        for name in _PLAIN:
            tiny.make_variant(name, room / name)
        make_adapter(room / "llama-gqa", room / "llama-gqa" / "adapter", 0)
        for name, is_zip in _TORCH.items():
            folder = tiny.make_variant("llama-gqa", room / name)
            tensors = load_file(folder / "model.safetensors")
            torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
            (folder / "model.safetensors").unlink()
        _write_shards(tiny.make_variant("llama-gqa", room / "shards"))
        self.names = (*_FORMATS, *_GGUF, *_PLAIN, *_TORCH, "shards")
        for name in set(self.names) - _GGUF.keys():
            _write_small_files(room / name)
        _spell_out_vocabulary(room / "gpt2")
        _spell_out_vocabulary(room / "bert")

    def choose(self, rng: random.Random) -> str:
        return rng.choice(self.names)

    def mutated(self, name: str, rng: random.Random) -> Path:
        folder = self.room / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.room / name, folder)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            file = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
            changes = {".json": [_change_json] * 4, ".safetensors": [_change_tensor, _change_tensor, _change_header]}
            try:
                rng.choice([*changes.get(file.suffix, []), _change_bytes])(file, rng)
            except (ValueError, LookupError, RecursionError, SafetensorError):  # an earlier change left no such file
                _change_bytes(file, rng)
        return folder


def _write_shards(folder: Path) -> None:
    tensors, places = load_file(folder / "model.safetensors"), dict[str, str]()
    (folder / "model.safetensors").unlink()
    for n in range(2):
        own = {name: tensors[name] for name in sorted(tensors)[n::2]}
        save_file(own, folder / f"part-{n}.safetensors")
        places |= dict.fromkeys(own, f"part-{n}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _spell_out_vocabulary(folder: Path) -> None:
    """Write a checkpoint's vocabulary in the files of before tokenizer.json."""
    (folder / "tokenizer.json").unlink()
    if folder.name == "bert":
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
        (folder / "tokenizer_config.json").write_text("{}")
        (folder / "special_tokens_map.json").unlink()
    else:
        (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
        (folder / "merges.txt").write_text("#version: 0.2\na b\n")


def _write_small_files(folder: Path) -> None:
    Raw(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).save(str(folder / "tokenizer.json"))
    modules = [{"type": "x.Transformer"}, {"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.Normalize"}]
    (folder / "1_Pooling").mkdir()
    files: dict[str, Any] = {
        "generation_config.json": {"eos_token_id": [1, 2], "temperature": 0.5},
        "tokenizer_config.json": {"eos_token": "a", "model_max_length": 100},
        "special_tokens_map.json": {"eos_token": {"content": "a"}},
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode": "mean"},
        "config_sentence_transformers.json": {"prompts": {"query": "q: "}},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))


def _change_json(path: Path, rng: random.Random) -> None:
    """Replace, remove or nest a value at any place of a JSON file."""
    value = json.loads(path.read_text())
    places = list[tuple[Any, Any]]()

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(value)
    if not places:
        return
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.2:
        del node[key]
    elif type(node[key]) is int and rng.random() < 0.5:
        node[key] += rng.choice([-1, 1, 2, 16, 32])
    else:
        node[key] = rng.choice(_VALUES)
    path.write_text(json.dumps(value))


def _change_tensor(path: Path, rng: random.Random) -> None:
    """Change the shape, the dtype or the numbers of a tensor, or leave it out."""
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    kind = rng.choice(["cut", "cut", "grown", "flat", "dtype", "noise", "missing"])
    if kind == "cut" and tensor.ndim:
        axis = rng.randrange(tensor.ndim)
        tensor = tensor.narrow(axis, 0, rng.randint(0, tensor.shape[axis]))
    elif kind == "grown" and tensor.ndim:
        tensor = torch.cat([tensor, tensor[: rng.randint(1, 40)]])
    elif kind == "flat":
        tensor = tensor.reshape(1, -1)
    elif kind == "dtype":
        tensor = tensor.float().to(rng.choice([torch.int8, torch.uint8, torch.int32, torch.float16, torch.float64]))
    elif kind == "noise":
        tensor = torch.randint(0, 256, (tensor.nbytes,), dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
    save_file(tensors | ({} if kind == "missing" else {name: tensor.contiguous()}), path)


def _change_header(path: Path, rng: random.Random) -> None:
    """Change a number of the header of a safetensors file: a tensor's shape, its place, which may then overlap others
    or end outside, or the header's length.
    """
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, begin = json.loads(content[8 : 8 + length]), 8 + length
    entry = rng.choice([each for name, each in header.items() if name != "__metadata__"])
    numbers = entry[rng.choice(["shape", "data_offsets", "data_offsets"])]
    if numbers:
        numbers[rng.randrange(len(numbers))] = rng.choice([0, 1, 8, len(content) - begin, len(content), *_LARGE])
    text = json.dumps(header).encode()
    length = len(text) if rng.random() < 0.9 else rng.choice([0, 7, len(content), *_LARGE])
    path.write_bytes(length.to_bytes(8, "little") + text + content[begin:])


def _change_bytes(path: Path, rng: random.Random) -> None:
    """Flip bits, overwrite, insert or cut off bytes, or write a large number, most often in the first 4,000."""
    content = bytearray(path.read_bytes())
    at = rng.randint(0, min(len(content), 4000) if rng.random() < 0.8 else len(content))
    kind = rng.choice(["cut", "flip", "flip", "number", "other", "other"])
    if kind == "cut":
        del content[at:]
    elif kind == "flip":
        for place in range(at, min(at + rng.choice([1, 1, 8]), len(content))):
            content[place] ^= 1 << rng.randrange(8)
    elif kind == "number":
        at -= at % rng.choice([1, 4, 8])
        number = rng.choice([0, 1, len(content), *_LARGE]).to_bytes(8, "little")[: rng.choice([4, 8])]
        content[at : at + len(number)] = number
    else:
        new = rng.choice([rng.randbytes(rng.randint(1, 8)), b"\xff" * 8, b"[" * 100_000, b"\0" * 8])
        content[at : at + rng.choice([0, len(new)])] = new
    path.write_bytes(content)


@torch.inference_mode()
def read_and_run(folder: Path) -> str:
    """Read all of a checkpoint and let its network compute. Return "computes". Raises ModelLoadError."""
    if (folder / "a.gguf").is_file():
        folder = _folder_of_gguf(folder)
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    with contextlib.suppress(UnreadableText):
        tokenizer.decode(tokenizer.encode("a ab\n").ids)
        tokenizer.token_strings(range(min(tokenizer.vocab_size, 100)))
    embedding_defaults(folder, config)
    score_defaults(folder, config)
    model = load_model(folder, config, torch.float32, _CPU)
    if (folder / "adapter").is_dir():
        load_adapter(folder / "adapter", model, max_rank=8)
    ids = torch.randint(config.vocab_size, (min(21, config.max_model_len),)).tolist()
    if config.kind == "encoder":
        model.encode(Batch.unchunked([ids], _BLOCK, _CPU, [config.num_layers]))
        return "computes"
    cache = KVCache(model.cache_config, 8, _BLOCK, model.dtype, _CPU, keys_in_rows=model.keys_in_rows)
    for start, end in ((0, len(ids) - 1), (len(ids) - 1, len(ids))):
        span = Span(ids[start:end], start, [1, 2, 3], config.num_layers)
        if start < end:
            model.logits(model.forward(Batch([span], _BLOCK, _CPU), cache)[: end - start])
    return "computes"


def _folder_of_gguf(folder: Path) -> Path:
    """Make the folder of a GGUF file here, and not in the user's caches."""
    found = _files(folder / "a.gguf", {})
    for name, text in found.items():
        (folder / name).write_text(text)
    (folder / "a.gguf").rename(folder / "model.gguf")
    return folder
