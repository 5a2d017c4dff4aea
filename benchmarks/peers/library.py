"""Run our `LLM.generate`: {"prompts": [[1, 2, ...], ...], "max_tokens": 64} -> its seconds."""

import argparse
from typing import Any

from benchmarks.peers.lines import answer_all
from lightwell import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    llm = LLM(options.folder, dtype=options.dtype)

    def generate(asked: dict[str, Any]) -> None:
        length = asked["max_tokens"]
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        for answer in llm.generate(asked["prompts"], params, use_tqdm=False):
            if len(answer.outputs[0].token_ids or ()) != length:
                raise RuntimeError(f"an answer has {len(answer.outputs[0].token_ids or ())} tokens, not {length}")

    answer_all(generate)


if __name__ == "__main__":
    main()
