"""Files of the page, read once into memory, with the scripts and the style sheet that are bundled from them. Their
addresses contain a digest, so that browsers may cache them forever.

A changed file changes the digest, and the next `GET /` has the new addresses: no browser mixes two versions.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lightwell.server.dialects.ops.script_bundles import FOLDER, bundle
from lightwell.server.dialects.ops.single_file_page import one_file, one_sheet, views_of

FIRST_VIEW = "views/home.js"
"""The view of a page that is opened without an address of another."""
SHEET = "styles.css"
"""The name under which the page gets all its styles."""
SAVED = "saved/"
"""Begins the name of the file with the page and one view; the view's name follows."""
MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}


@dataclass(frozen=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    media_type: str

    @cached_property
    def compressed(self) -> bytes:
        """Return the content in gzip; mtime is 0, so that the same file always gives the same bytes."""
        return gzip.compress(self.content, mtime=0)


class WebAssets:
    """All files under one folder that a browser may have, by their path in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the files again if one was changed since."""
        paths = [path for path in sorted(self._folder.rglob("*")) if path.suffix in MEDIA_TYPES and path.is_file()]
        newest = max((path.stat().st_mtime_ns for path in paths), default=0)
        if newest == self._newest:
            return
        self._newest = newest
        self.files = {
            path.relative_to(self._folder).as_posix(): Asset(path.read_bytes(), MEDIA_TYPES[path.suffix])
            for path in paths
        }
        digest = hashlib.sha256()
        for name, asset in self.files.items():
            digest.update(f"{name}\0{len(asset.content)}\0".encode() + asset.content)
        self.digest = digest.hexdigest()[:12]
        self._made: dict[str, Asset] = {}

    @property
    def contents(self) -> dict[str, bytes]:
        """The bytes of each file, by its path."""
        return {name: asset.content for name, asset in self.files.items()}

    def find(self, digest: str, name: str) -> Asset | None:
        """Return the file or bundle of that version and name, or None. A new bundle takes 10 to 30 ms."""
        if digest != self.digest:
            return None
        return self.files.get(name) or self._made.get(name) or self._make(name)

    def _make(self, name: str) -> Asset | None:
        files = self.contents
        if name == SHEET:
            text: str | None = one_sheet(files)
        elif name.startswith(SAVED):
            own = name.replace("/contributions.", "/moves.")  # the view's name in 0.2, which clients still use
            text = next((one_file(files, view) for view in views_of(files) if own == f"{SAVED}{view}.html"), None)
        else:
            text = bundle(files, name, FIRST_VIEW) if name.startswith(FOLDER) else None
        if text is None:
            return None
        return self._made.setdefault(name, Asset(text.encode(), MEDIA_TYPES[Path(name).suffix]))
