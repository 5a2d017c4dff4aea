"""Finds Debian's Chromium."""

import shutil


def find_chromium() -> str | None:
    """Return the path of Debian's Chromium, of the headless shell if there is one: it takes an eighth less CPU time."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")
