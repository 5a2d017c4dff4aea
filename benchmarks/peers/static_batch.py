"""Run `transformers.generate` with a static batch: {"prompts": [[1, 2, ...], ...], "max_tokens": 64} -> its seconds."""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.peers.lines import answer_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(options.folder, dtype=getattr(torch, options.dtype))

    def generate(asked: dict[str, Any]) -> None:
        ids, length = torch.tensor(asked["prompts"]), asked["max_tokens"]
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
                pad_token_id=0,
            )
        if out.shape != (len(ids), ids.shape[1] + length):
            raise RuntimeError(f"transformers gave {tuple(out.shape)}")

    answer_all(generate)


if __name__ == "__main__":
    main()
