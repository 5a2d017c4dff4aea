"""Run OpenVINO GenAI on a GGUF file, with its continuous batching: {"prompts": [[1, 2, ...], ...], "max_tokens": 64} ->
its seconds. Prompts have one length.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.lines import answer_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    import openvino as ov  # installed in a separate folder, like openvino_genai
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(options.file), "CPU", scheduler_config=genai.SchedulerConfig())

    def generate(asked: dict[str, Any]) -> None:
        ids = np.array(asked["prompts"], np.int64)
        config = genai.GenerationConfig(max_new_tokens=asked["max_tokens"], ignore_eos=True, do_sample=False)
        answer = pipeline.generate(genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids))), config)
        if any(len(tokens) != asked["max_tokens"] for tokens in answer.tokens):
            raise RuntimeError(f"answers have {[*map(len, answer.tokens)]} tokens, not {asked['max_tokens']}")

    answer_all(generate)


if __name__ == "__main__":
    main()
