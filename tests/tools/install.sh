#!/usr/bin/env bash
# What `make test-all` needs beyond pip: promtool and chromium (Debian), `vllm bench` (PyPI). `install.sh chromium`
# installs the browser alone.
# RUNLEVEL=1: the service that comes with Debian's package prometheus is not wanted here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

packages=()
only=${1:-}
[[ $only == chromium ]] || command -v promtool > /dev/null || packages+=(prometheus)
command -v chromium > /dev/null || packages+=(chromium)
if ((${#packages[@]})); then
  as_root=(); [[ $EUID -eq 0 ]] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${packages[@]}"
fi
[[ $only == chromium ]] || benchmarks/peers/install_vllm.sh .tools/vllm
