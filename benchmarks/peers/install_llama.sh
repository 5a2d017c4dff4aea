#!/usr/bin/env bash
# Builds llama.cpp's server for this machine, from the source in the llama-cpp-python package on PyPI, or that of its
# fork ik_llama.cpp, from the source in ik-llama-cpp-python.
#
#   install_llama.sh FOLDER [ik]      makes FOLDER with bin/llama-server and source/, if it does not exist
#
# Needs a C++ compiler; cmake and ninja come from PyPI.
set -euo pipefail

target=${1:?usage: install_llama.sh FOLDER [ik]}
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
package=llama-cpp-python version=0.3.36 vendor=llama.cpp
# Attention kernels for a cache in float16 and q8_0: those of other formats take most of the compilation.
[[ ${2:-} == ik ]] && package=ik-llama-cpp-python version=0.1.5 vendor=ik_llama.cpp options=-DGGML_IQK_FA_ALL_QUANTS=OFF
folder=${package//-/_}-$version

[[ -e $target/complete ]] && exit 0
rm -rf "$target"/{venv,build,bin,source} "$target/$folder"  # what an interrupted run has left
mkdir -p "$target"
"$python" -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet cmake ninja
export PATH=$target/venv/bin:$PATH
# pip also builds the metadata. A failure of this does not matter, because the file is downloaded before.
pip download --quiet --no-deps --no-binary "$package" --dest "$target" "$package==$version" || true
tar -xzf "$target/$folder.tar.gz" -C "$target"
mv "$target/$folder/vendor/$vendor" "$target/source"
if [[ ${2:-} == ik ]]; then  # its package lacks the script that fills in the version
  mkdir -p "$target/source/common/cmake"
  printf 'set(BUILD_NUMBER 0)\nconfigure_file(common/build-info.cpp.in common/build-info.cpp)\n' > \
    "$target/source/common/cmake/build-info-gen-cpp.cmake"
fi
# GCC 12 assumes that only the first eight bytes of a tile configuration are read, and removes the writes to the others.
# A processor with AMX then rejects the first product of 8-bit weights (SIGILL). The barrier keeps all writes.
[[ ${2:-} == ik ]] || sed -i 's|^\( *\)_tile_loadconfig(&tc);|\1asm volatile("" : : "r"(\&tc) : "memory");\n&|' \
  "$target/source/ggml/src/ggml-cpu/amx/mmq.cpp"
cmake -G Ninja -S "$target/source" -B "$target/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
  ${options:-}
cmake --build "$target/build" --target llama-server
ln -s build/bin "$target/bin"
"$target/bin/llama-server" --version
touch "$target/complete"
