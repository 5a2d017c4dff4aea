"""Tries docs/upgrading.md: the last release and this one side by side, one after the other on one port, and back."""

import json
import shutil
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.release.asking import PROMPT, Installed, ask, asked, complete, serving
from deploy.release.versions import CheckFailed
from deploy.release.workplace import Workplace, export
from tests.support.processes import Server, free_port

PREVIOUS, COMMIT = "0.1.0", "b852f76c987ba931171914cdb5a0ae5f70f81960"
"""The last release, and where it is in the history."""
FLAGS = ("--dtype", "float32")
DEFAULTS = {"do_sample": True, "temperature": 0.1, "eos_token_id": 0}
"""What the model's generation_config.json says, which PREVIOUS did not read."""
CLOSE = 1e-4
"""The bound of docs/parity.md for float32."""


def check_upgrade(work: Workplace) -> str:
    """Do what docs/upgrading.md says with PREVIOUS and this release. Raises CheckFailed where it is not as it says."""
    previous, this = _install_previous(work), work.server
    arguments = (_model(work), *FLAGS)
    with (
        serving(previous, work.empty, *arguments) as old,
        serving(this, work.empty, *arguments) as new,
        serving(this, work.empty, *arguments, "--generation-config", "vllm") as as_before,
    ):
        versions = [asked(server, "/version")["version"] for server in (old, new)]
        if versions != [PREVIOUS, work.version]:
            raise CheckFailed(f"/version says {versions}")
        difference = _largest_difference(old, new)
        for check in CHANGED:
            check(old, new)
        _check_defaults(old, new, as_before)
    _hand_over(work, previous, this, arguments)
    _hand_over(work, this, previous, arguments)
    return f"log-probabilities within {difference:.1e}, {len(CHANGED) + 1} changed answers, there and back on one port"


def _install_previous(work: Workplace) -> Path:
    """Install PREVIOUS from the history, with the versions that it was tested with; return its Python."""
    source = export(COMMIT, work.folder / "previous-source")
    python = work.environment("previous")
    work.pip(python, "install", "--quiet", "--constraint", source / "constraints.txt", source)
    return python


def _model(work: Workplace) -> str:
    """Return a copy of the built-in model with DEFAULTS; 0.1.0 knows no name for it, so that both take a folder."""
    folder = work.folder / "model"
    shutil.copytree(work.source / "model" / "fables", folder)
    (folder / "generation_config.json").write_text(json.dumps(DEFAULTS))
    return str(folder)


def _largest_difference(old: Server, new: Server) -> float:
    """Return the largest difference of the log-probabilities of a greedy completion.

    Raises CheckFailed where the text is another, or they are further apart than CLOSE.
    """
    asked(new, "/v1/capabilities")
    (before,), (after,) = (complete(server, logprobs=1) for server in (old, new))
    if before["text"] != after["text"]:
        raise CheckFailed(f"{PREVIOUS} answered {before['text']!r}, this {after['text']!r}")
    pairs = zip(before["logprobs"]["token_logprobs"], after["logprobs"]["token_logprobs"], strict=True)
    difference: float = max(abs(one - other) for one, other in pairs)
    if difference > CLOSE:
        raise CheckFailed(f"log-probabilities differ by up to {difference}, more than {CLOSE}")
    return difference


def _hand_over(work: Workplace, leaving: Path, coming: Path, arguments: tuple[str, ...]) -> None:
    """Stop a server while it writes an answer, and start the other release on its port.

    Raises CheckFailed unless the answer is complete, new requests are refused until then, and the next answers.
    """
    port = free_port()
    with serving(leaving, work.empty, *arguments, port=port) as server:
        text = complete(server)[0]["text"]
        _stop_while_writing(server)
    with serving(coming, work.empty, *arguments, port=port) as server:
        if complete(server)[0]["text"] != text:
            raise CheckFailed(f"on its port {coming} does not answer {text!r}, as {leaving} did")
        server.stop()


def _stop_while_writing(server: Installed) -> None:
    """End a server while streams run. Raises CheckFailed unless they are complete, and new requests get a 503."""
    body = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "n": 8, "stream": True}
    events: list[Any] = []
    begun = threading.Event()

    def read() -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                events.append(line)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    if not begun.wait(60):
        raise CheckFailed("no event of a stream came within 60 s")
    server.process.terminate()
    status = _first_refusal(server)
    reader.join(120)
    server.wait_for_end()
    finished = sum(b'"finish_reason":"length"' in line for line in events)
    if finished != body["n"] or b"data: [DONE]\n" not in events:
        raise CheckFailed(f"{finished} of {body['n']} running streams were complete after SIGTERM")
    if status != 503:
        raise CheckFailed(f"a new request after SIGTERM was answered {status}, not 503")


def _first_refusal(server: Server) -> int:
    """Ask until a request is refused; return its status."""
    for _ in range(50):
        status, _ = ask(server, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
        if status != 200:
            return status
    return 200


# ---- docs/upgrading.md, "Answers that change after 0.1.0"


def _check_seeds(old: Server, new: Server) -> None:
    """Check that choice k was what seed + k gives, and draws its own numbers now; the first is as before."""
    sampled = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    several = [[each["text"] for each in complete(server, **sampled, seed=7, n=2)] for server in (old, new)]
    neighbours = [complete(server, **sampled, seed=8)[0]["text"] for server in (old, new)]
    if several[0][1] != neighbours[0] or several[1][1] == neighbours[1]:
        raise CheckFailed(f"seed 7 with n 2 gives {several}, seed 8 {neighbours}")
    if several[0][0] != several[1][0]:
        raise CheckFailed(f"the first choice is {several[0][0]!r} in {PREVIOUS}, {several[1][0]!r} now")


def _check_norms(old: Server, new: Server) -> None:
    """Check that the former hook_normalized is hook_out."""
    body = {"input": "The old king", "layers": [0]}
    points = asked(new, "/v1/trace", {**body, "points": ["ln1.hook_normalized", "ln1.hook_out"]})["data"][0]["points"]
    before = asked(old, "/v1/trace", {**body, "points": ["ln1.hook_normalized"]})["data"][0]["points"]
    former = before["blocks.0.ln1.hook_normalized"]["data"]
    if _apart(former, points["blocks.0.ln1.hook_out"]["data"]) > CLOSE:
        raise CheckFailed(f"hook_out is not what hook_normalized was in {PREVIOUS}")
    if _apart(former, points["blocks.0.ln1.hook_normalized"]["data"]) < CLOSE:
        raise CheckFailed(f"hook_normalized is what it was in {PREVIOUS}: docs/upgrading.md says that it changed")


def _apart(one: list[list[float]], other: list[list[float]]) -> float:
    return max(abs(a - b) for rows in zip(one, other, strict=True) for a, b in zip(*rows, strict=True))


def _check_large_bodies(old: Server, new: Server) -> None:
    """Check that a body of 16,385 lists was read, and is answered 413 now."""
    body = b'{"prompt": "a", "max_tokens": 1, "logit_bias": [' + b",".join([b"[]"] * 16_385) + b"]}"
    statuses = ask(old, "/v1/completions", body)[0], ask(new, "/v1/completions", body)[0]
    if statuses[0] == 413 or statuses[1] != 413:
        raise CheckFailed(f"a body of 16,385 lists was answered {statuses[0]}, and now {statuses[1]}")


CHANGED: tuple[Callable[[Server, Server], None], ...] = (_check_seeds, _check_norms, _check_large_bodies)


def _check_defaults(old: Server, new: Server, as_before: Server) -> None:
    """Check that the model's temperature counts now where a request has none, and with the named flag does not."""
    body = {"prompt": PROMPT, "max_tokens": 24, "seed": 7}
    texts = [asked(server, "/v1/completions", body)["choices"][0]["text"] for server in (old, new, as_before)]
    if texts[2] != texts[0] or texts[1] == texts[0]:
        raise CheckFailed(f"{PREVIOUS}, this release, and it with --generation-config vllm answer {texts}")
