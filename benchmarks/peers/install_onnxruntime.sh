#!/usr/bin/env bash
# Installs onnxruntime or OpenVINO, and the packages that export and quantise models for it, into a separate folder:
# PYTHONPATH=FOLDER makes them importable in addition to the development environment, which has torch, transformers and
# tokenizers.
#
#   install_onnxruntime.sh FOLDER [openvino]      makes FOLDER, if it does not exist
set -euo pipefail

target=${1:?usage: install_onnxruntime.sh FOLDER [openvino]}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
packages=(onnxruntime==1.32.0 onnx==1.23.2 flatbuffers==25.12.19 protobuf==7.36.2 ml_dtypes==0.6.0)
[[ ${2:-} == openvino ]] && packages=(openvino==2026.4.1 openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 \
    openvino-telemetry==2025.2.0 nncf==3.4.0 tabulate==0.10.0 pydot==4.0.1 pyparsing==3.3.3)

[[ -e $target/complete ]] && exit 0
rm -rf "$target"  # what an interrupted run has left
# Without dependencies: numpy, scipy and others come from the development environment.
"$python" -m pip install --quiet --no-deps --target "$target" "${packages[@]}"
touch "$target/complete"
