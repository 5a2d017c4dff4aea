"""Checks the image: that it builds, that a fresh container serves, and that NOTICE lists what is installed in it."""

import json
from typing import Any

from deploy.release.notice import check_complete
from deploy.release.versions import ROOT, CheckFailed
from deploy.release.workplace import Skipped, Workplace, run

TAG = "lightwell-release"
METADATA = "import importlib.metadata as m, json; print(json.dumps([d.metadata.json for d in m.distributions()]))"
SERVE_ONCE = ROOT / "tests" / "tools" / "serve_once.py"
EXPECTED = {"model": "smollm2", "status": 0, "health": 0, "user": "lightwell", "capabilities": "0", "written": []}
"""What serve_once.py must find in the image."""


def check_image(work: Workplace) -> str:
    """Build the image, serve in a fresh container, and compare what is installed with NOTICE. Whether that is
    read-only, which is said, and how much memory it may take is the script's affair.

    Raises CheckFailed for an answer that is not as expected, and Skipped without a script that builds images.
    """
    if not work.build_image:
        raise Skipped("BUILD_IMAGE is not set: the script that builds the image (docs/releasing.md has one for Docker)")
    run([work.build_image, TAG], folder=work.source, seconds=3600)
    answer = _serve_once(work)
    root = "read-only" if answer["is_read_only"] else "a root that can be written to, to which nothing was"
    said = f"ready after {answer['ready_s']:.1f} s, {answer['text']!r}, {root}"
    distributions = json.loads(_run_in(work, ["python", "-c", METADATA]).splitlines()[-1])
    return f"{said}; {check_complete(distributions)}"


def _run_in(work: Workplace, command: list[str]) -> str:
    """Run a command in the image; return what it printed."""
    return run([work.build_image or "", TAG, "--", *command], folder=work.source, seconds=600)


def _serve_once(work: Workplace) -> dict[str, Any]:
    """Return what serve_once.py found. Raises CheckFailed where that is not EXPECTED."""
    program = SERVE_ONCE.read_text(encoding="utf-8")
    answer: dict[str, Any] = json.loads(_run_in(work, ["python", "-c", program]).splitlines()[-1])
    wrong = {name: answer[name] for name, expected in EXPECTED.items() if answer[name] != expected}
    # Without a /cache to write to, what the default model's file holds is unpacked into /tmp, and stays.
    left = [path for path in answer["left_in_tmp"] if "/gguf/" not in path]
    if wrong or left or not answer["text"]:
        raise CheckFailed(f"in the image: {wrong or left or 'no text'}, where {EXPECTED} was expected")
    return answer
