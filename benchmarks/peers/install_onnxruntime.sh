#!/usr/bin/env bash
# Puts onnxruntime, and what writes models for it, into a folder of their own: PYTHONPATH=FOLDER makes them importable
# beside the development environment, which has torch, transformers and tokenizers.
#
#   install_onnxruntime.sh FOLDER      makes FOLDER; nothing is done when it is there already
set -euo pipefail

target=${1:?usage: install_onnxruntime.sh FOLDER}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}

[[ -e $target/complete ]] && exit 0
rm -rf "$target"  # what an interrupted run has left
# Without dependencies: numpy and typing_extensions are those of the development environment.
"$python" -m pip install --quiet --no-deps --target "$target" \
    onnxruntime==1.32.0 onnx==1.23.2 flatbuffers==25.12.19 protobuf==7.36.2 ml_dtypes==0.6.0
touch "$target/complete"
