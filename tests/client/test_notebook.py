"""The notebook of the client's examples runs on a server of the default model, and draws within a few lines."""

from pathlib import Path

import pytest

from tests.support.shared import shared_server

NOTEBOOK = Path(__file__).parents[2] / "clients/python/examples/attention.ipynb"
MOST_LINES = 12

pytestmark = pytest.mark.nightly


def test_the_notebook_runs_and_its_first_lines_draw() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    server = shared_server("smollm2", "--kv-cache-memory", "256MiB", "--kernel-arithmetic", "float32")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.source = cell.source.replace("http://localhost:8000", server.url)
    nbclient.NotebookClient(notebook, timeout=600).execute()
    drawn = [any("image/png" in output.get("data", {}) for output in cell.outputs) for cell in cells]
    assert drawn == [True, True, False]
    assert len(cells[0].source.splitlines()) <= MOST_LINES
    as_it_is, patched = "".join(output["text"] for output in cells[2].outputs).splitlines()
    assert as_it_is.startswith("as it is: [(' Mary', 0.9")
    assert patched.partition(": ")[2] != as_it_is.partition(": ")[2]
