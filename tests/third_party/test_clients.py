"""Other projects' clients, unmodified, each in an environment of its own (tests/tools/install.sh), over the loopback.

What they return is compared with the same requests by plain HTTP, or with the client's own way of computing it.
"""

import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sentence_transformers import CrossEncoder

from tests.readme import minilm
from tests.server.engine.captures.test_cross_encoders import save
from tests.support.processes import Server, serve

pytestmark = [
    pytest.mark.tool,
    pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="clients are tried by `make test-nightly`"),
]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FABLES = ROOT / "model" / "fables"
MODEL = "fables"
TURNS = ("A lion was asleep in the forest.", "The mouse ran over his nose.")
CHATS = {
    "openai": "openai_turns.py",
    "litellm": "litellm_turns.py",
    "langchain-openai": "langchain_turns.py",
    "llama-index": "llama_index_turns.py",
    "ollama": "ollama_turns.py",
    "anthropic": "anthropic_turns.py",
}
VLLM_BENCH = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions", "openai-embeddings": "/v1/embeddings"}
LM_EVAL_TASKS = ("fables_continued", "fables_endings", "fables_perplexity")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default model in float32, so that lm-eval's own numbers can be compared closely."""
    batches = str(tmp_path_factory.mktemp("batches"))
    with serve(["--served-model-name", MODEL, "--dtype", "float32", "--batch-dir", batches]) as running:
        yield running


def run(client: str, program: str, *arguments: str, cwd: Path = HERE) -> str:
    """Return what a program of a client's environment prints; it sees no network beyond the loopback's."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONSAFEPATH": "1"}
    if client in ("huggingface-hub", "haystack"):  # offline they refuse the loopback too
        environment |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [str(ROOT / ".tools" / client / "bin" / program), *arguments]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def ask(server: Server, path: str, **fields: Any) -> Any:
    answer = httpx.post(f"{server.url}{path}", json={"model": MODEL, **fields}, timeout=60)
    return answer.raise_for_status().json()


@pytest.mark.parametrize("client", CHATS)
def test_two_turns_a_stream_and_an_embedding_or_a_count_of_tokens(client: str, server: Server) -> None:
    """Send the first answer back in the second turn as the client gave it."""
    told = json.loads(run(client, "python", str(HERE / CHATS[client]), server.url, MODEL, *TURNS))
    expected = answers_to_turns(server)
    assert told["turns"] == expected
    assert told["streamed"] == expected[-1]
    if client == "anthropic":
        assert told["counted"] == told["read"]
        return
    embedding = ask(server, "/v1/embeddings", input=TURNS[0])["data"][0]["embedding"]
    assert told["embedding"] == pytest.approx(embedding, abs=1e-6)


def answers_to_turns(server: Server) -> list[str]:
    """Return what the turns are answered by plain HTTP, each with those before it."""
    messages: list[dict[str, str]] = []
    for text in TURNS:
        messages.append({"role": "user", "content": text})
        answer = ask(server, "/v1/chat/completions", messages=messages, temperature=0, max_tokens=12)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return [message["content"] for message in messages[1::2]]


def test_two_turns_of_responses_with_the_helpers_of_the_openai_package(server: Server) -> None:
    """Send the first answer's items back in the second turn as the package gave them."""
    program = str(HERE / "openai_responses_turns.py")
    told = json.loads(run("openai", "python", program, server.url, MODEL, *TURNS))
    expected = answers_to_turns(server)
    said = (TURNS[0], expected[0], TURNS[1])
    messages = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), said, strict=True)]
    sentence = ask(server, "/v1/chat/completions", messages=messages, temperature=0, stop=".")["choices"][0]
    assert (told["turns"], told["streamed"]) == (expected, expected[-1])
    assert told["sentences"] == [sentence["message"]["content"]] * 3
    assert told["statuses"] == ["incomplete", "completed"]


def test_a_batch_of_the_openai_package_for_javascript(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = ROOT / ".tools" / "openai-javascript" / "lib" / "node_modules"
    node = shutil.which("node")
    if node is None or not packages.exists():
        pytest.skip("no openai-javascript here: tests/tools/install.sh needs npm for it")
    monkeypatch.setenv("NODE_PATH", str(packages))
    told = json.loads(run("openai-javascript", node, str(HERE / "openai_batch.cjs"), server.url, MODEL, *TURNS))
    answers = told.pop("answers")
    assert told == {
        "status": "completed",
        "counts": {"total": 2, "completed": 2, "failed": 0},
        "metadata": {"of": "a test"},
        "is_listed": True,
        "is_deleted": True,
    }
    for i, text in enumerate(TURNS):
        wanted = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12}
        answer = ask(server, "/v1/chat/completions", **wanted)["choices"][0]["message"]["content"]
        assert answers[f"row-{i}"] == answer


def test_rerankers_of_five_projects_get_the_scores_of_the_library(tmp_path: Path) -> None:
    folder = save("bert", tmp_path)
    query, documents = "Who lives in the wood?", ["The Wolf said: Little Pig", "a", "A girl lived beside the wood."]
    scores = CrossEncoder(str(folder), device="cpu", local_files_only=True).predict([(query, x) for x in documents])
    with serve([str(folder), "--served-model-name", "tiny", "--dtype", "float32"]) as reranking:
        told = json.loads(
            run("rerankers", "python", str(HERE / "reranked.py"), reranking.url, "tiny", query, *documents)
        )
    best = [int(i) for i in (-scores).argsort()]
    assert told.pop("documents") == [documents[i] for i in best]
    assert told.pop("refusals") == ["The model 'another' does not exist here; 'tiny' is served."] * 2
    assert told.pop("tokens") > len(documents)
    assert len(told) == 8
    for client, ranked in told.items():
        assert [i for i, _ in ranked] == best, client
        assert [score for _, score in ranked] == pytest.approx(scores[best], abs=1e-5), client


def test_haystack_embeds_ranks_and_chats(server: Server) -> None:
    """Use its components for TEI and TGI: they send POST / and the model name `dummy`."""
    chats = json.loads(run("haystack", "python", str(HERE / "haystack_turns.py"), "chat", server.url, *TURNS))
    for text, found in zip(TURNS, chats, strict=True):
        asked = {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "seed": 1}
        assert found == ask(server, "/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    with serve([*minilm(), "--dtype", "float32"]) as embedding:
        told = json.loads(run("haystack", "python", str(HERE / "haystack_turns.py"), "tei", embedding.url, *TURNS))
        body = {"inputs": [TURNS[0], *TURNS], "normalize": False}
        expected = httpx.post(f"{embedding.url}/embed", json=body, timeout=60).json()
    assert told["best"] == TURNS[0]
    for vector, other in zip(told["vectors"], expected, strict=True):
        assert vector == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_guidellm_ends_without_an_error(path: str, server: Server, tmp_path: Path) -> None:
    arguments = ["run", "--backend", f"kind=openai_http,target={server.url},model={MODEL},request_format={path}"]
    arguments += ["--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=16"]
    arguments += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16"]
    arguments += ["--tokenizer", f"kind=huggingface_auto,model={FABLES}", "--disable-console-interactive"]
    arguments += ["--output", f"kind=json,path={tmp_path / 'found.json'}"]
    run("guidellm", "guidellm", *arguments)
    (found,) = json.loads((tmp_path / "found.json").read_text())["benchmarks"]
    assert found["metrics"]["request_totals"] == {"successful": 16, "errored": 0, "incomplete": 0, "total": 16}
    assert found["metrics"]["output_token_count"]["successful"]["total_sum"] == 16 * 16


@pytest.mark.parametrize("backend", VLLM_BENCH)
def test_vllm_bench_serve_ends_without_an_error(backend: str, server: Server, tmp_path: Path) -> None:
    arguments = ["bench", "serve", "--backend", backend, "--endpoint", VLLM_BENCH[backend], "--base-url", server.url]
    arguments += ["--model", MODEL, "--tokenizer", str(FABLES), "--dataset-name", "random", "--ignore-eos"]
    arguments += ["--random-input-len", "64", "--random-output-len", "32", "--num-prompts", "32"]
    arguments += ["--max-concurrency", "8", "--save-result", "--result-dir", str(tmp_path)]
    run("vllm", "vllm", *arguments, "--result-filename", "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["completed"], found.get("failed", 0)) == (32, 0)
    if backend != "openai-embeddings":
        assert found["total_output_tokens"] == 32 * 32


def test_lm_eval_finds_what_it_computes_itself(server: Server, tmp_path: Path) -> None:
    """Compare endings, whole texts and continuations over HTTP with lm-eval's own run of the same weights."""
    served = f"model={MODEL},base_url={server.url}/v1/completions,tokenizer={FABLES},num_concurrent=4,max_length=512"
    over_http = lm_eval(tmp_path / "served", "--model", "local-completions", "--model_args", served)
    own = f"pretrained={FABLES},dtype=float32"
    expected = lm_eval(tmp_path / "own", "--model", "hf", "--model_args", own, "--device", "cpu")
    assert [len(over_http[task]) for task in LM_EVAL_TASKS] == [6, 12, 6]
    assert over_http["fables_continued"] == expected["fables_continued"]
    for task in ("fables_endings", "fables_perplexity"):
        assert [float(x) for x in over_http[task]] == pytest.approx([float(x) for x in expected[task]], rel=1e-4)
        assert all(math.isfinite(float(x)) for x in over_http[task])


def lm_eval(folder: Path, *arguments: str) -> dict[str, list[str]]:
    """Return the answers that lm-eval got, by task in the order of the documents: texts, or log probabilities."""
    where = ["--tasks", ",".join(LM_EVAL_TASKS), "--include_path", ".", "--output_path", str(folder), "--log_samples"]
    run("lm-eval", "lm_eval", "run", *arguments, *where, cwd=HERE / "lm_eval_tasks")
    found = {}
    for task in LM_EVAL_TASKS:
        (file,) = folder.glob(f"*/samples_{task}_*.jsonl")
        samples = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        answers = [answer for sample in samples for answer in sample["filtered_resps"]]
        found[task] = [answer if isinstance(answer, str) else answer[0] for answer in answers]
    return found
