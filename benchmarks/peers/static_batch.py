"""Run `transformers.generate` with a static batch in a separate process: one line of input, one line of output.

{"prompts": [[1, 2, ...], ...], "max_tokens": 64} -> {"seconds": 1.5}
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any


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
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        ids, length = torch.tensor(asked["prompts"]), asked["max_tokens"]
        started = time.perf_counter()
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
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
