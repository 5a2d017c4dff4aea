#!/usr/bin/env bash
# Builds llama.cpp's server for this machine, from the source in the llama-cpp-python package on PyPI.
#
#   install_llama.sh FOLDER      makes FOLDER with bin/llama-server and source/, if it does not exist
#
# Needs a C++ compiler; cmake and ninja come from PyPI.
set -euo pipefail

target=${1:?usage: install_llama.sh FOLDER}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
version=0.3.36

[[ -e $target/complete ]] && exit 0
rm -rf "$target"/{venv,build,bin,source} "$target/llama_cpp_python-$version"  # what an interrupted run has left
mkdir -p "$target"
"$python" -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet cmake ninja
export PATH=$target/venv/bin:$PATH
# pip also builds the metadata. A failure of this does not matter, because the file is downloaded before.
pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$target" "llama-cpp-python==$version" || true
tar -xzf "$target/llama_cpp_python-$version.tar.gz" -C "$target"
mv "$target/llama_cpp_python-$version/vendor/llama.cpp" "$target/source"
# GCC 12 assumes that only the first eight bytes of a tile configuration are read, and removes the writes to the others.
# A processor with AMX then rejects the first product of 8-bit weights (SIGILL). The barrier keeps all writes.
sed -i 's|^\( *\)_tile_loadconfig(&tc);|\1asm volatile("" : : "r"(\&tc) : "memory");\n&|' \
  "$target/source/ggml/src/ggml-cpu/amx/mmq.cpp"
cmake -G Ninja -S "$target/source" -B "$target/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF
cmake --build "$target/build" --target llama-server
ln -s build/bin "$target/bin"
"$target/bin/llama-server" --version
touch "$target/complete"
