"""Run llama.cpp's conversion of a checkpoint and set the pre-tokenizer, which it cannot detect for an unknown
tokenizer. GPT-2's is good enough for prompts of token ids.

    python convert_to_gguf.py SOURCE FOLDER --outtype bf16 --outfile FILE
"""

import importlib
import runpy
import sys
from pathlib import Path


def main() -> None:
    source = Path(sys.argv.pop(1))
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    model = importlib.import_module("conversion.llama").LlamaModel
    model.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    model.set_vocab = model._set_vocab_gpt2  # otherwise it needs sentencepiece
    sys.argv[0] = str(source / "convert_hf_to_gguf.py")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
