"""Tries docs/upgrading.md: the last release and this one beside each other, one after the other on one port, and back."""

import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.processes import Server, free_port
from deploy.release.asking import PROMPT, Installed, ask, asked, complete, serving
from deploy.release.versions import CheckFailed
from deploy.release.workplace import Workplace, export

PREVIOUS, COMMIT = "0.1.0", "b852f76c987ba931171914cdb5a0ae5f70f81960"
"""The last release, and where it is in the history."""
MODEL = {"old": (), "new": ("fables",)}
"""How each release is told to serve the built-in model: 0.1.0 knows no name for it."""
FLAGS = ("--dtype", "float32")
CLOSE = 1e-4
"""The bound of docs/parity.md for float32."""

Pythons = dict[str, Path]
"""The Python of the environment with each release, "old" and "new"."""


def check_upgrade(work: Workplace) -> str:
    """Do what docs/upgrading.md says with PREVIOUS and this release. Raises CheckFailed where it is not as it says."""
    pythons = {"old": _install_previous(work), "new": work.server}
    with (
        serving(pythons["old"], work.empty, *MODEL["old"], *FLAGS) as old,
        serving(pythons["new"], work.empty, *MODEL["new"], *FLAGS) as new,
    ):
        versions = [asked(server, "/version")["version"] for server in (old, new)]
        if versions != [PREVIOUS, work.version]:
            raise CheckFailed(f"/version says {versions}")
        difference = _largest_difference(old, new)
        for check in CHANGED:
            check(old, new)
    with serving(pythons["new"], work.empty, *MODEL["new"], *FLAGS, "--generation-config", "vllm") as as_before:
        _check_defaults(as_before)
    for leaving, coming in (("old", "new"), ("new", "old")):
        _hand_over(work, pythons, leaving, coming)
    return f"log-probabilities within {difference:.1e}, {len(CHANGED) + 1} changed answers, there and back on one port"


def _install_previous(work: Workplace) -> Path:
    """Install PREVIOUS from the history, with the versions that it was tested with; return its Python."""
    source = export(COMMIT, work.folder / "previous-source")
    python = work.environment("previous")
    work.pip(python, "install", "--quiet", "--constraint", source / "constraints.txt", source)
    return python


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


def _hand_over(work: Workplace, pythons: Pythons, leaving: str, coming: str) -> None:
    """Stop a server while it writes an answer, and start the other release on its port.

    Raises CheckFailed unless the answer is complete, new requests are refused until then, and the next answers.
    """
    port = free_port()
    with serving(pythons[leaving], work.empty, *MODEL[leaving], *FLAGS, port=port) as server:
        text = complete(server)[0]["text"]
        _stop_while_writing(server)
    with serving(pythons[coming], work.empty, *MODEL[coming], *FLAGS, port=port) as server:
        if complete(server)[0]["text"] != text:
            raise CheckFailed(f"the answer changed from the {leaving} release to the {coming} one")
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
    stopping = threading.Thread(target=server.process.terminate)
    stopping.start()
    stopping.join()
    status = _first_refusal(server)
    reader.join(120)
    server.stop()
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


def _check_defaults(new: Server) -> None:
    """Check that --generation-config vllm gives the defaults of PREVIOUS: temperature 1 and no filters."""
    body = {"prompt": PROMPT, "max_tokens": 24, "seed": 7}
    plain = asked(new, "/v1/completions", body)["choices"][0]["text"]
    said = asked(new, "/v1/completions", {**body, "temperature": 1.0, "top_p": 1.0, "top_k": 0})["choices"][0]["text"]
    if plain != said:
        raise CheckFailed(
            f"with --generation-config vllm the defaults are not temperature 1 without filters: {plain!r}"
        )
