"""A warm engine: the same tokens with Lightwell's kernels and with torch."""

import subprocess
import sys

from lightwell.model.checkpoint.folder import PACKAGED
from tests.server.running import ROOT

STEPS = """
import sys
from pathlib import Path

from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.messages.request import GenerateTask
from lightwell.server.engine.messages.sampling_params import SamplingParams
from tests.server.engine.driving import request

def tokens_of(kernels):
    config = EngineConfig(
        model=Path(sys.argv[1]), dtype="float32", kernels=kernels, kv_cache_bytes=64 << 20, max_num_seqs=8,
        max_num_batched_tokens=96,
    )
    engine, steps = Engine.from_folder(config), []
    for uid, prompt in enumerate((1, 3, 17, 33, 70, 95)):  # a few in each step, among tokens of those before
        task = GenerateTask(sampling=SamplingParams(seed=0, max_tokens=9 - uid, temperature=0))
        engine.add_request(request(uid, range(5, 5 + prompt), task))
        steps.append([output.token_id for output in engine.step().outputs])
    while engine.has_work:
        steps.append([output.token_id for output in engine.step().outputs])
    return steps

native, plain = tokens_of("native"), tokens_of("torch")
assert native == plain, (native, plain)
assert len(native) > 6
print(sorted(name for name in sys.modules if name in ("numba", "torch._inductor", "torch._dynamo")))
"""


def test_our_kernels_and_torch_choose_the_same_tokens_and_no_compiler_is_loaded() -> None:
    command = [sys.executable, "-c", STEPS, str(PACKAGED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]"]
