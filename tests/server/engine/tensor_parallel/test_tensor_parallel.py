"""An engine with a model in two processes gives the answers of one process, and its server fails and recovers as well.

The second rank is a real process. In the first half of the file it starts once and loads one checkpoint after another.
"""

import contextlib
import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from msgspec.structs import replace

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.analysis.weight_names import list_weights
from lightwell.model.checkpoint.folder import PACKAGED, ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import WeightFiles
from lightwell.model.checkpoint.weight_maps import weights_of
from lightwell.model.hooks.points import Stack
from lightwell.model.kernels.choice import AUTO, KernelConfig
from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.network.transformer import Transformer
from lightwell.model.ranks.commands import Forward
from lightwell.model.ranks.leader import LeadingTransformer, load_leading
from lightwell.server.config.settings import Settings, SettingsError
from lightwell.server.engine.config import EngineConfig
from lightwell.server.engine.engine import Engine
from lightwell.server.engine.execution import cuda_graphs
from lightwell.server.engine.messages.request import (
    AttentionCapture,
    AttentionTask,
    EmbedTask,
    EngineRequest,
    HeadScoresTask,
    Intervention,
    LensTask,
    Task,
)  # fmt: skip
from lightwell.server.engine.tensor_parallel.device_steps import RunOnDevice
from lightwell.server.engine.tensor_parallel.ranks import Ranks
from tests import tiny
from tests.invariance import num_threads
from tests.server.engine.driving import (
    CPU,
    alone,
    assert_near,
    assert_same,
    build,
    everything,
    generate,
    load,
    request,
    run,
)
from tests.server.running import RunningServer, group_members, running_server, stream_lines, wait_for

PAIRS = ((0, 3), (1, 0))


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    lost: list[str] = []
    with num_threads(1):
        found = Ranks.start(2, CPU, on_loss=lost.append)
        yield found
        found.close()
    assert not lost


def load_shared(
    folder: Path, ranks: Ranks, dtype: torch.dtype = torch.float32, kernels: KernelConfig = AUTO
) -> LeadingTransformer:
    config, ended = read_config(folder), ranks.wait_for_loss
    model = load_leading(folder, config, dtype, CPU, ranks.group, ranks.send, kernels=kernels, before_apart=ended)
    ranks.wait_loaded()
    return model


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "modernbert", "bert", "t5", "bart"])
def test_a_crowd_is_answered_as_by_one_process(name: str, ranks: Ranks, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path)
    one, shared = load(folder), load_shared(folder, ranks)
    crowd = crowd_of(one)
    expected = alone(one, crowd)
    engine = build(shared, num_blocks=60, max_num_seqs=5, max_num_batched_tokens=40)
    found = run(engine, [replace(each) for each in crowd], arrivals=sorted(random.randrange(9) for _ in crowd))
    assert_near(found, expected)
    some = random.sample(crowd, 4)
    alike = alone(shared, some)
    assert_same({uid: found[uid] for uid in alike}, alike)


@pytest.mark.skipif(not IS_INTERPRETED, reason="Triton interprets nothing here: there is a GPU")
def test_ranks_with_a_cards_kernels_run_the_same_steps(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run graphs, steps kernel by kernel and steps block by block, with sampled tokens and penalties."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")
    monkeypatch.setattr(cuda_graphs, "PATTERN_BYTES", 1 << 16)
    monkeypatch.setattr(cuda_graphs, "MIXED_ROWS", (8,))  # the first two prompts together have more
    told: list[object] = []
    folder = tiny.make_variant("llama-gqa", tmp_path)
    options: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_p": 0.9, "logprobs": 2},
        {"frequency_penalty": 0.5, "logit_bias": {7: 2.0}},
        {},
    ]
    looking = AttentionCapture(pairs=PAIRS)
    crowd = [
        request(uid, list(range(5 + uid, 9 + 3 * uid)), generate(4, ignore_eos=True, **({"seed": uid} | each)))
        for uid, each in enumerate(options)
    ]
    crowd.append(request(9, list(range(20, 30)), generate(2, attention=looking, ignore_eos=True)))
    sizes: dict[str, Any] = {"block_size": 16, "num_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 40}
    expected = run(build(load(folder, kernels=KernelConfig("torch")), **sizes), [replace(each) for each in crowd])
    shared = load_shared(folder, ranks, kernels=KernelConfig("triton"))

    def send(command: object) -> None:
        told.append(command)
        ranks.send(command)

    monkeypatch.setattr(shared, "_send", send)
    found = run(build(shared, **sizes), crowd, arrivals=[0, 2, 0, 3])
    assert_near(found, expected)
    steps = [command.step for command in told if isinstance(command, RunOnDevice)]
    # A graph has no spans, and one of decodes no tiles of several rows.
    assert {(bool(step.spans), step.shape.long > 0) for step in steps} == {(True, True), (False, True), (False, False)}
    assert any(isinstance(command, Forward) for command in told)


def crowd_of(model: Transformer) -> list[EngineRequest]:
    """Return requests of each kind, some with interventions."""
    config = model.config
    looking = AttentionCapture(pairs=PAIRS, part="encoder" if config.kind == "encoder" else "decoder")
    tasks: list[Task] = [everything(config), AttentionTask(capture=looking)]
    if config.kind != "encoder-decoder":
        tasks += [EmbedTask(pooling="mean"), EmbedTask(pooling="none", layer=1)]
    if config.kind != "encoder":
        tasks += [
            generate(12, ignore_eos=True, logprobs=1, prompt_logprobs=1),
            generate(9, attention=looking, attention_prompt=True, ignore_eos=True),
            HeadScoresTask(pairs=PAIRS, offsets=(1,)),
        ]
    if config.has_head:
        tasks.append(LensTask(layers=(0, 1, 2), positions=(0, 5), top_k=1))
    stack: Stack = "encoder" if config.kind == "encoder" else "decoder"
    patches = [
        Intervention(stack=stack, layer=1, point="attn.hook_z", op="scale", value=0.0, heads=(2,)),
        Intervention(stack=stack, layer=0, point="attn.hook_pattern", op="scale", value=0.5, heads=(1,)),
        Intervention(stack=stack, layer=1, point="mlp.hook_post", op="add", value=0.5, positions=(2, 4)),
        Intervention(stack=stack, layer=0, point="hook_resid_mid", op="add", value=0.25),
    ]
    begin, *ends = ([random.randrange(5, tiny.VOCAB_SIZE) for _ in range(count)] for count in (25, *[40] * len(tasks)))
    requests = [
        request(
            uid, (begin + end)[: random.randrange(12, 60)], task, encoded=(begin + end)[:30] if config.encoder else ()
        )
        for uid, (task, end) in enumerate(zip(tasks, ends, strict=True))
    ]
    changed = [replace(each, uid=each.uid + 100, interventions=tuple(patches)) for each in requests[::2]]
    return requests + changed


@pytest.mark.parametrize("name", ["llama-gqa", "llama-mqa-untied", "gpt2", "mpnet", "t5-gated-untied", "olmo2"])
def test_questions_about_weights_see_them_whole(name: str, ranks: Ranks, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path)
    one, whole = LiveWeights(load(folder)), load_shared(folder, ranks).whole_weights
    names = {weight.name for weight in weights_of(read_config(folder))}
    names |= {each.replace("gate_up", gate) for each in names for gate in ("gate", "up")}
    names |= {each.replace("norm.weight", "norm.gain") for each in names}
    names |= {"head.weight", "head.bias", "pos_embed.weight", "position_bias.by_distance"}
    names |= {"layers.0.down.bias", "nonsense.weight"}
    names |= {each.weight for each in list_weights(read_config(folder)).weights}
    names |= {"encoder.position_bias.by_distance"} if name.startswith("t5") else set()
    for each in names:
        if "gate_up" in each or each.endswith("position_bias.weight"):
            continue  # not a name of theirs
        found, expected = whole(each), one(each)
        assert (found is None) == (expected is None), each
        if found is not None and expected is not None:
            assert torch.equal(found, expected), each


def test_a_question_about_weights_fails_when_the_files_are_others_now(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.make_variant("llama-gqa", tmp_path)
    whole = load_shared(folder, ranks).whole_weights
    assert whole("layers.0.attn_out.weight") is not None
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes())
    monkeypatch.setattr(WeightFiles, "read", lambda *_: pytest.fail("where it were shorter now, reading would kill"))
    with pytest.raises(RuntimeError, match=r"model_changed: the weight files in .* are not the files"):
        whole("layers.0.attn_out.weight")
    assert whole("final_norm.gain") is not None, "every rank has it, as it was loaded"


def test_settings_that_do_not_go_with_it_are_refused(tmp_path: Path) -> None:
    for name, value, accepted in (
        ("devices", "2", "--devices 1 is accepted"),
        ("quantize", "int8", "--quantize none is"),
        ("activations", "int8", "--activations dtype is"),
    ):
        with pytest.raises(SettingsError, match=f"excludes --{name} {value}; {accepted}"):
            Settings.from_sources({"tensor_parallel": "2", name: value}, {})
    config = Settings.from_sources({"tensor_parallel": "2", "worker_memory": "2GiB"}, {}).engine_config(tmp_path)
    assert (config.tensor_parallel, config.worker_memory) == (2, 1 << 30)
    folder = tiny.make("llama", tmp_path, num_attention_heads=3, num_key_value_heads=3)
    with pytest.raises(ModelLoadError, match="--tensor-parallel 2: LlamaForCausalLM has 3 attention heads"):
        Engine.from_folder(EngineConfig(model=folder, tensor_parallel=2))


FLAGS = ("--tensor-parallel", "2", "--dtype", "float32", "--kv-cache-memory", "64MiB")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(*FLAGS, module="tests.server.lightwell_command") as running:
        running.wait_ready()
        yield running


PROMPT = [3065, 658, 259, 534, 454, 309, 259]
BODY = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def ranks_of(server: RunningServer) -> list[int]:
    """Return the processes that hold the model in addition to the worker."""
    found = []
    for pid in group_members(server.process.pid):
        with contextlib.suppress(OSError):  # it has ended since
            if b"lightwell.server.engine.tensor_parallel.rank\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def worker_of(rank: int) -> int:
    return int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])


def text_of(server: RunningServer) -> str:
    text: str = server.post("/v1/completions", BODY).json()["choices"][0]["text"]
    return text


def expected_text(server: RunningServer) -> str:
    answer = run(build(load(PACKAGED)), [request(1, PROMPT, generate(24, ignore_eos=True))])[1]
    text: str = server.post("/detokenize", {"tokens": answer.tokens}).json()["prompt"]
    return text


def test_a_server_tells_what_one_process_would_and_outlives_its_ranks(server: RunningServer) -> None:
    expected = expected_text(server)
    assert text_of(server) == expected
    (lost,) = ranks_of(server)
    assert "worker-0-rank-1 lightwell.server.engine.memory.process_memory: the worker has taken" in server.output
    limits = [resource.prlimit(pid, resource.RLIMIT_DATA)[0] for pid in (worker_of(lost), lost)]
    assert 0 < max(limits) < 1.5 * min(limits), "what is free is shared out"
    long = {**BODY, "max_tokens": 480, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=long, timeout=60) as answer:
        lines = stream_lines(answer)
        next(lines)
        os.kill(lost, signal.SIGKILL)
        rest = list(lines)
    assert rest[-1]["error"]["code"] == "worker_lost"
    assert server.post("/v1/completions", BODY).status_code == 503
    server.wait_ready()
    assert f"rank 1 of the model (process {lost}) ended with status -9" in server.output
    assert text_of(server) == expected
    assert len(ranks_of(server)) == 1


def test_no_rank_outlives_its_worker(server: RunningServer) -> None:
    """End the server while it replaces the worker."""
    kill_worker(server)
    end(server)


@pytest.mark.nightly
def test_ranks_end_with_a_server_that_has_replaced_its_worker() -> None:
    with running_server(*FLAGS, module="tests.server.lightwell_command") as server:
        kill_worker(server)
        wait_for(lambda: len(ranks_of(server)) == 1, "the next worker has a rank", patience=60)
        server.wait_ready()
        end(server)


def kill_worker(server: RunningServer) -> None:
    """Kill the worker of a ready server, and wait until its rank has ended."""
    server.wait_ready()
    (rank,) = ranks_of(server)
    os.kill(worker_of(rank), signal.SIGKILL)
    wait_for(lambda: rank not in ranks_of(server), "the rank ends with the worker", patience=60)


def end(server: RunningServer) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    server.wait_all_gone()
    assert not list(server.tmp.glob("lightwell-*"))
