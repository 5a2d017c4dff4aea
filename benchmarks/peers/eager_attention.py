"""Runs transformers with `output_attentions=True`, in a process of its own that waits for a line and answers with one.

{"prompt": [1, 2, ...], "layer": 6, "head": 3} -> {"seconds": 0.9, "bytes": 4194304, "peak": 700000000}

layer, head: the part of the patterns that is written, as safetensors of `dtype`; null is all of them. peak: most memory
of the process while it answered, beyond what it had before.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def memory(name: str) -> int:
    """Return a line of the kernel's account of this process, in bytes."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    import torch
    from safetensors.torch import save
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, options.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(options.folder, attn_implementation="eager", dtype=dtype)
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = memory("VmRSS")
        started = time.perf_counter()
        with torch.inference_mode():
            patterns = model(torch.tensor([asked["prompt"]]), output_attentions=True).attentions
        wanted = torch.cat(patterns) if asked["layer"] is None else patterns[asked["layer"]][0, asked["head"]]
        content = save({"attention": wanted.to(getattr(torch, asked["dtype"])).contiguous()})
        seconds = time.perf_counter() - started
        peak = memory("VmHWM") - before
        del patterns, wanted
        print(json.dumps({"seconds": seconds, "bytes": len(content), "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
