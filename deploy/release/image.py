"""Checks of the image: built and started fresh, read-only, within a limit of memory, with what NOTICE says in it."""

import json
from typing import Any

from deploy.release.notice import check_complete
from deploy.release.versions import ROOT, CheckFailed
from deploy.release.workplace import Skipped, Workplace, run

TAG = "lightwell-release"
METADATA = "import importlib.metadata as m, json; print(json.dumps([d.metadata.json for d in m.distributions()]))"
UNSHARE = ("unshare", "--user", "--map-user=10001", "--map-group=10001", "--keep-caps", "--mount", "--fork")
TOOLS = ROOT / "tests" / "tools"
EXPECTED = {"model": "smollm2", "status": 0, "health": 0, "user": "lightwell", "capabilities": "0", "left_in_tmp": []}
"""What serve_once.py must find in the image."""


def check_image(work: Workplace) -> str:
    """Build the image, serve in it once as it is and once read-only, and compare what is installed with NOTICE.

    Raises CheckFailed for an answer that is not as expected, and Skipped without a script that builds images.
    """
    if not work.build_image:
        raise Skipped("BUILD_IMAGE is not set: the script that builds the image (docs/releasing.md has one for Docker)")
    run([work.build_image, TAG], folder=work.source, seconds=3600)
    serve_once = ["python", "-c", (TOOLS / "serve_once.py").read_text(encoding="utf-8")]
    fresh = _answer(work, serve_once)
    if fresh["written"]:
        raise CheckFailed(f"the server in the image wrote {fresh['written']}")
    said = f"ready after {fresh['ready_s']:.1f} s, {fresh['text']!r}; {_read_only(work, serve_once, fresh)}"
    distributions = json.loads(_run_in(work, ["python", "-c", METADATA]).splitlines()[-1])
    return f"{said}; {check_complete(distributions)}"


def _run_in(work: Workplace, command: list[str]) -> str:
    """Run a command in the image; return what it printed."""
    return run([work.build_image or "", TAG, "--", *command], folder=work.source, seconds=600)


def _answer(work: Workplace, command: list[str]) -> dict[str, Any]:
    """Return what serve_once.py found. Raises CheckFailed where that is not EXPECTED."""
    answer: dict[str, Any] = json.loads(_run_in(work, command).splitlines()[-1])
    wrong = {name: answer[name] for name, expected in EXPECTED.items() if answer[name] != expected}
    if wrong or not answer["text"]:
        raise CheckFailed(f"in the image: {wrong or 'no text'}, where {EXPECTED} was expected")
    return answer


def _read_only(work: Workplace, serve_once: list[str], fresh: dict[str, Any]) -> str:
    """Serve with a root that nothing can be written to, and say whether it was tried: a script that runs containers
    so has done it already, and in others namespaces may do the same.
    """
    if fresh["is_read_only"]:
        return "read-only"
    locked = [*UNSHARE, "bash", "-c", (TOOLS / "read_only.sh").read_text(encoding="utf-8"), "read_only.sh"]
    try:
        _run_in(work, [*UNSHARE, "true"])
    except CheckFailed:
        return "not tried read-only: the script neither runs it so nor allows namespaces"
    if not _answer(work, [*locked, *serve_once])["is_read_only"]:
        raise CheckFailed("the root could be written to in namespaces that forbid it")
    return "read-only in namespaces, too"
