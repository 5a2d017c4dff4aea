"""Run `transformers.generate` with a static batch, padded on the left: {"prompts": [[1, 2, ...], ...], "max_tokens":
64} -> its seconds.

With --attentions, {"prompts": [[1, 2, ...]]} is one forward pass that keeps all attentions and logits.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.peers.lines import answer_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attentions", action="store_true")
    options = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(
        options.folder,
        dtype=getattr(torch, options.dtype),
        attn_implementation="eager" if options.attentions else None,
    )

    @torch.inference_mode()
    def generate(asked: dict[str, Any]) -> None:
        rows, length = asked["prompts"], asked["max_tokens"]
        widest = max(map(len, rows))
        ids = torch.tensor([[0] * (widest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (widest - len(row)) + [1] * len(row) for row in rows])
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
        )
        if out.shape != (len(ids), ids.shape[1] + length):
            raise RuntimeError(f"transformers gave {tuple(out.shape)}")

    @torch.inference_mode()
    def attend(asked: dict[str, Any]) -> None:
        model(torch.tensor(asked["prompts"]), output_attentions=True)

    answer_all(attend if options.attentions else generate)


if __name__ == "__main__":
    main()
