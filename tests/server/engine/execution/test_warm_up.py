"""A warm engine: the same tokens with Lightwell's kernels and with torch."""

import subprocess
import sys

from model.checkpoint.folder import PACKAGED
from tests.server.running import ROOT

STEPS = """
import sys
from pathlib import Path

from server.engine.config import EngineConfig
from server.engine.engine import Engine
from server.engine.request import GenerateTask
from server.engine.sampling_params import SamplingParams
from tests.server.engine.driving import request

folder, kernels = sys.argv[1:]
engine = Engine.from_folder(
    EngineConfig(
        model=Path(folder), dtype="float32", kernels=kernels, kv_cache_bytes=64 << 20, max_num_seqs=8,
        max_num_batched_tokens=96,
    )
)
for uid, prompt in enumerate((1, 3, 17, 33, 70, 95)):  # a few in each step, among tokens of those before
    params = SamplingParams(seed=0, max_tokens=9 - uid, temperature=0)
    task = GenerateTask(sampling=params)
    engine.add_request(request(uid, range(5, 5 + prompt), task))
    print([output.token_id for output in engine.step().outputs])
while engine.has_work:
    print([output.token_id for output in engine.step().outputs])
print(sorted(name for name in sys.modules if name in ("numba", "torch._inductor", "torch._dynamo")))
"""


def printed(kernels: str) -> list[str]:
    """Return the tokens that an engine's process prints, step by step, and the compilers that it loaded."""
    command = [sys.executable, "-c", STEPS, str(PACKAGED), kernels]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_our_kernels_and_torch_choose_the_same_tokens_and_no_compiler_is_loaded() -> None:
    native, plain = printed("native"), printed("torch")
    assert native == plain
    assert native[-1] == "[]"
    assert len(native) > 6
