"""A server on a CPU has no need of Triton, which torch for CUDA brings and torch for the CPU does not."""

from pathlib import Path

import httpx

from tests.support.processes import serve


def test_serves_and_shows_attention(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise ModuleNotFoundError(\"No module named 'triton'\", name='triton')\n")
    with (
        serve([], environment={"PYTHONPATH": str(tmp_path)}) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        body = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}
        answer = client.post("/v1/completions", json=body).raise_for_status()
        assert answer.json()["usage"]["completion_tokens"] == 3
        seen = client.post("/v1/attention", json={"input": "Once upon a time"}).raise_for_status()
        assert seen.json()["data"][0]["shape"][-1] == seen.json()["usage"]["prompt_tokens"]
