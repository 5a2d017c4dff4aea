# make serve   set everything up and serve the default model on port 8000   (ARGS="MODEL --flag ...")
# make test    set everything up, then lint, types and tests                (ARGS="-k name"; JOBS=0 in one process)
# make help    the rest
#
# Needs Python 3.11 or later and make; everything else goes into .venv (deploy/install.py).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
ARGS ?=
MINUTES ?= 30
CASES ?= 2000
# The extras of pyproject.toml that the targets need: nothing to serve. CI sets test,test-gpu.
EVERYTHING := install lock tools test-nightly test-all
EXTRAS ?= $(if $(filter $(EVERYTHING),$(MAKECMDGOALS)),dev,$(if $(filter-out serve,$(MAKECMDGOALS)),test))
# Where torch's CPU build is. Without an answer pip's configuration is used, then the default index.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Kernels are compiled for this CPU's highest level, or for every level.
LEVELS := $(if $(LIGHTWELL_KERNEL_LEVEL),--all-levels)
test-nightly test-all mutants fuzz: LEVELS := --all-levels
# One more than the cores that may be used, and at most four: the servers of the tests use the cores, too.
JOBS ?= $(shell $(PYTHON) -c "import os; print(min(4, 1 + len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else 4))")
PYTEST := $(BIN)/python -m pytest -rs --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
NIGHTLY := TEST_TOOLS=1 BUILD_IMAGE='$(BUILD_IMAGE)' $(PYTEST) --hypothesis-profile nightly
SOURCES := src hatch_build.py model server clients tests benchmarks deploy

# Where wheels are for: `TARGETS` of model/kernels/build.py.
WHEELS ?= manylinux_2_17_x86_64 manylinux_2_17_aarch64 macosx_11_0_arm64

# The generator of the documentation site.
ZENSICAL := zensical==0.0.60

# How `make test-all` builds the image and runs a command in it: $(BUILD_IMAGE) TAG, $(BUILD_IMAGE) TAG -- COMMAND.
BUILD_IMAGE ?=

.DEFAULT_GOAL := help
.PHONY: help install serve lint format types test tools test-nightly test-all mutants test-gpu bench faults soak fuzz lock wheels packages docs clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

install: ## make .venv with everything in it, kernels compiled; nothing is done when nothing changed (EXTRAS=test)
	@$(PYTHON) deploy/install.py --venv $(VENV) --extras '$(EXTRAS)' --torch-index '$(TORCH_INDEX)'
	@$(BIN)/python model/kernels/build.py --if-stale $(LEVELS)

lock: ## compile constraints.txt from pyproject.toml (ARGS=--upgrade)
	$(PYTHON) deploy/install.py --venv $(VENV) --lock constraints.txt $(ARGS)

serve: install ## serve the default model on port 8000 (PORT=, ARGS="MODEL --flag ...")
	$(BIN)/lightwell serve --port $(PORT) $(ARGS)

lint: install ## ruff: rules and formatting
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: install ## let ruff rewrite what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

types: install ## mypy --strict
	$(BIN)/mypy

test: lint ## lint, types, and tests of every feature and family; ends with the skipped tests (JOBS=, ARGS="-k name")
	$(PYTEST) -m "not nightly" $(ARGS)

tools: install ## what the nightly tests need beyond pip: Debian's packages, peers' programs
	tests/tools/install.sh

test-nightly: lint tools ## the sweeps: all families, CPU levels, deployment, soak, fuzzing, peers' clients (BUILD_IMAGE=script)
	$(NIGHTLY) -m nightly $(ARGS)

test-all: lint tools ## the tests of both levels
	$(NIGHTLY) $(ARGS)

mutants: install ## plant faults one by one and run the tests; ends with the faults that no test catches (ARGS="--only ID")
	$(BIN)/python -m tests.mutants $(ARGS)

# make says an $(error) in one line and ends with status 2, before anything is installed. What was installed without the
# extra test-gpu, and without the triton that torch for CUDA brings, is installed again.
test-gpu: ## on a machine with a CUDA GPU: install, test and measure, into benchmarks/.cache/gpu (ARGS="--part speed")
	$(if $(wildcard /dev/nvidiactl),,$(error this machine has no CUDA GPU (no /dev/nvidiactl): there is nothing to test))
	$(MAKE) install EXTRAS=$$($(BIN)/python -c 'import triton' 2> /dev/null && echo dev || echo dev,test-gpu)
	env -u TRITON_INTERPRET $(BIN)/python -m benchmarks.gpu --out benchmarks/.cache/gpu $(ARGS)

bench: install ## speed and start-up beside vLLM, llama.cpp and transformers, memory (ARGS="--models 124m --tables closed")
	$(BIN)/python -m benchmarks.generation $(ARGS)

faults: install ## break a server in the ways operators fear; what clients saw, time to ready (ARGS="--only killed")
	$(BIN)/python -m benchmarks.faults $(ARGS)

soak: install ## 64 clients of every kind, workers killed; every request accounted for (MINUTES=30, ARGS="--seed 2")
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(ARGS)

fuzz: install ## kernels and checkpoints with sanitizers, then HTTP over raw sockets (CASES=100000, ARGS="--count 20000")
	$(BIN)/python -m benchmarks.fuzz.memory --count $(CASES)
	$(BIN)/python -m benchmarks.fuzz $(ARGS)

wheels: install ## wheels for Linux and macOS into dist/, kernels compiled by PyPI's ziglang
	for target in $(WHEELS); do \
	  LIGHTWELL_KERNEL_TARGET=$$target $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . || exit 1; \
	done
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist ./clients/python ./deploy/smollm2

packages: wheels ## what is published into dist/: the wheels, the source distributions, the client
	$(BIN)/python -m hatchling build --directory dist --target sdist
	cd clients/python && ../../$(BIN)/python -m hatchling build --directory ../../dist

docs: ## the documentation site into site/; a warning is an error
	test -x .tools/docs/bin/zensical || ($(PYTHON) -m venv .tools/docs && .tools/docs/bin/pip install --quiet $(ZENSICAL))
	.tools/docs/bin/zensical build --clean --strict

clean: ## remove .venv and every cache
	rm -rf $(VENV) model/kernels/kernels.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis dist build site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
