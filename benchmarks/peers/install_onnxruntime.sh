#!/usr/bin/env bash
# Installs onnxruntime, and the packages that export models for it, into a separate folder: PYTHONPATH=FOLDER makes them
# importable in addition to the development environment, which has torch, transformers and tokenizers.
#
#   install_onnxruntime.sh FOLDER      makes FOLDER, if it does not exist
set -euo pipefail

target=${1:?usage: install_onnxruntime.sh FOLDER}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}

[[ -e $target/complete ]] && exit 0
rm -rf "$target"  # what an interrupted run has left
# Without dependencies: numpy and typing_extensions come from the development environment.
"$python" -m pip install --quiet --no-deps --target "$target" \
    onnxruntime==1.32.0 onnx==1.23.2 flatbuffers==25.12.19 protobuf==7.36.2 ml_dtypes==0.6.0
touch "$target/complete"
