"""`transformers.generate` with a static batch, timed: the last line printed is {batch size: output tokens a second}."""

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.serve_vs_transformers import OUTPUT_TOKENS, prompts


def tokens_per_second(model: torch.nn.Module, batch: int, rounds: int) -> float:
    """Of `rounds` batches one after the other, after one to warm up."""
    rows = torch.tensor(prompts((rounds + 1) * batch, seed=batch)).view(rounds + 1, batch, -1)
    seconds = 0.0
    for index, ids in enumerate(rows):
        started = time.perf_counter()
        out = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=OUTPUT_TOKENS,
            max_new_tokens=OUTPUT_TOKENS,
            pad_token_id=0,
        )
        if index:
            seconds += time.perf_counter() - started
        if out.shape != (batch, ids.shape[1] + OUTPUT_TOKENS):
            raise RuntimeError(f"transformers gave {tuple(out.shape)}")
    return rounds * batch * OUTPUT_TOKENS / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        options.folder, dtype=getattr(torch, options.dtype), attn_implementation=options.attention
    )
    with torch.inference_mode():
        print(json.dumps({batch: tokens_per_second(model, batch, options.rounds) for batch in options.batch}))


if __name__ == "__main__":
    main()
