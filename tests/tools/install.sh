#!/usr/bin/env bash
# What `make test-all` needs beyond pip: prometheus with promtool, and chromium (Debian), `vllm bench` (PyPI).
# `install.sh debian` installs Debian's packages alone: without them `make test` skips the tests that need them.
# RUNLEVEL=1: the service that comes with Debian's package prometheus is not wanted here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

packages=()
only=${1:-}
{ command -v prometheus && command -v promtool; } > /dev/null || packages+=(prometheus)
command -v chromium > /dev/null || packages+=(chromium)
as_root=(); [[ $EUID -eq 0 ]] || as_root=(sudo)
((${#packages[@]} == 0)) || "${as_root[@]}" apt-get update -qq
missing=0
for package in "${packages[@]}"; do  # one by one: what cannot be had must not take the other along
  "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "$package" || missing=1
done
((missing == 0)) || exit 1
[[ $only == debian ]] || benchmarks/peers/install_vllm.sh .tools/vllm
