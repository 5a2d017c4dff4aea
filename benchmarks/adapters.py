"""Measure the cost of LoRA adapters: tokens per second of streams with adapters and of the same streams without.

One server serves the 124M checkpoint in bfloat16 with random adapters of every matrix; both kinds of traffic alternate.
"""

import argparse
import json
import os
import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from benchmarks.checkpoint import make_checkpoint, random_prompts
from benchmarks.comparison import table
from benchmarks.load import closed_loop, run
from benchmarks.models import add_cache
from benchmarks.subjects import OUTPUT_TOKENS, PROMPT_TOKENS, vocabulary_of
from lightwell.model.checkpoint.registry import read_config
from tests.support.processes import Server, serve


def make_adapter(folder: Path, base: Path, rank: int) -> None:
    """Write an adapter of a Llama-shaped checkpoint in peft's format, with small random weights."""
    config = read_config(base)
    d, ff = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, q)}
    shapes = {f"self_attn.{name}": shape for name, shape in attention.items()}
    shapes |= {"mlp.gate_proj": (ff, d), "mlp.up_proj": (ff, d), "mlp.down_proj": (d, ff)}
    tensors = {}
    for layer in range(config.num_layers):
        for name, (num_outputs, num_inputs) in shapes.items():
            own = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{own}.lora_A.weight"] = torch.randn(rank, num_inputs) * 0.01
            tensors[f"{own}.lora_B.weight"] = torch.randn(num_outputs, rank) * 0.01
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = sorted(name.split(".")[1] for name in shapes)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(fields), encoding="utf-8")


def rate(server: Server, models: list[str], streams: int, requests: int, seed: int, vocabulary: int) -> float:
    """Return the tokens per second of `streams` streams; their requests use the models in turn."""
    prompts = random_prompts(streams * requests, seed, PROMPT_TOKENS, vocabulary)
    asked = {"max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    bodies = [{**asked, "model": models[i % len(models)], "prompt": prompt} for i, prompt in enumerate(prompts)]
    return run(closed_loop(server.host, server.port, bodies, streams)).tokens_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests", type=int, default=3, help="of each stream in a turn")
    parser.add_argument("--turns", type=int, default=5)
    add_cache(parser)
    options = parser.parse_args()
    base = make_checkpoint(options.cache)
    vocabulary = vocabulary_of(base)
    names = [f"adapter-{i}" for i in range(options.adapters)]
    print(f"{os.cpu_count()} cores; 124M in bfloat16, {options.adapters} adapters of rank {options.rank}\n")
    with TemporaryDirectory(prefix="lightwell-adapters-") as folder:
        for name in names:
            make_adapter(Path(folder) / name, base, options.rank)
        chosen = [part for name in names for part in ("--lora", f"{name}={folder}/{name}")]
        arguments = [str(base), "--dtype", "bfloat16", "--served-model-name", "model", *chosen]
        rows = [["streams", "without, tokens/s", "with", "ratio of each turn", "median"]]
        with serve(arguments) as server:
            for streams in options.streams:
                measured = partial(rate, server, streams=streams, requests=options.requests, vocabulary=vocabulary)
                turns = range(-1, options.turns)  # the first one warms up
                pairs = [(measured(["model"], seed=turn), measured(names, seed=turn)) for turn in turns][1:]
                ratios = [with_adapters / without for without, with_adapters in pairs]
                medians = (statistics.median(each) for each in zip(*pairs, strict=True))
                each_turn = ", ".join(f"{each:.2f}" for each in ratios)
                shown = (f"{each:.0f}" for each in medians)
                rows.append([str(streams), *shown, each_turn, f"{statistics.median(ratios):.2f}"])
    print(table(rows))


if __name__ == "__main__":
    main()
