"""The contents of the wheel and the sdist."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.source_tree import MODULES, ROOT

FABLES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
          "chat_template.jinja", "README.md", "recipe.py")  # fmt: skip

DOCS_PAGE = ("start.js", "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png", "LICENSE", "NOTICE")


@pytest.mark.nightly  # a wheel has the kernels of every level
def test_wheel_and_sdist_carry_the_default_model_and_the_pages(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    sources = {str(path.relative_to(ROOT)) for path in MODULES.values()}
    sources |= {f"model/fables/{name}" for name in FABLES}
    sources |= {f"server/web/docs/{name}" for name in DOCS_PAGE}
    sources |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "server" / "web" / "page").rglob("*.*")}
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        assert {f"lightwell/{name}" for name in ("command.py", "__init__.py", *sources)} <= names
        assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"lightwell"}
        licences = {name for name in wheel.namelist() if ".dist-info/licenses/" in name}
        assert {Path(name).name for name in licences} == {"LICENSE", "NOTICE"}
        for name in ("model/fables/model.safetensors", "model/fables/tokenizer.json"):
            assert wheel.read(f"lightwell/{name}") == (ROOT / name).read_bytes()
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        assert {"src/lightwell/command.py", *sources} <= {name.partition("/")[2] for name in sdist.getnames()}
