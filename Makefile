# Every command sets itself up: a virtual environment with pinned packages, and etcd and Redis where apt may install them.
SHELL := bash
export PDCORE_VENV ?= .venv
# Processes are started by the hundred: each would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(PDCORE_VENV)/bin
PYTEST := $(BIN)/python -m pytest
ROUNDS ?= 1
PARALLEL ?= -n 3

.DEFAULT_GOAL := help
.PHONY: help setup system mooncake demo up test check shape compiled test-compiled test-cluster test-device soak bench bench-affinity bench-affinity-live bench-engine bench-models bench-registry bench-router

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

setup: ## the virtual environment
	@scripts/setup.sh

system: # the servers that the demo and the tests run
	@scripts/install_system.sh

demo: setup system ## a real model answers through prefill and decode; ends by itself
	@$(BIN)/pdcore demo

up: setup system ## the same, kept running until Ctrl-C
	@$(BIN)/pdcore up

check: setup shape ## format, lint, types, sizes
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

shape: setup
	@$(BIN)/python -m scripts.shape

test: setup system ## everything that needs no accelerator and no hours (ARGS=... for pytest)
	@$(BIN)/pdcore demo-model
	@OMP_NUM_THREADS=1 $(PYTEST) -m "not cluster and not device" $(PARALLEL) $(ARGS)

test-device: setup system ## what needs an NPU or a CUDA device; skips, with the reason, what is not there
	@$(PYTEST) -m device $(ARGS)

mooncake: setup # the transfer engine that is an extra, and what it and its network namespaces need
	@scripts/install_system.sh cluster
	@$(BIN)/python -m pip install -qq --no-input --disable-pip-version-check -c constraints.txt -e '.[mooncake]'

test-cluster: mooncake ## long fault runs and their figures (ROUNDS=10 for ten times the same)
	@for round in $$(seq $(ROUNDS)); do $(PYTEST) -m cluster -o faulthandler_timeout=600 $(ARGS) || exit 1; done

soak: setup system ## registrations and rooms by the ten thousand: does anything grow? (at most 20 minutes)
	@$(BIN)/python -m bench soak $(ARGS)

bench: setup system ## figures of this machine
	@$(BIN)/python -m bench $(ARGS)

bench-engine: mooncake system ## the engine's: hand-offs, first tokens, long prompts, KV writes, the loop beside its model (4 minutes)
	@$(BIN)/python -m bench engine $(ARGS)

bench-models: setup system ## SmolLM2 beside transformers: decode, prompts, a Poisson load, a repeated prompt, memory (10 minutes)
	@$(BIN)/pdcore demo-model
	@$(BIN)/python -m bench models $(ARGS)

bench-registry: setup system ## the registry's: latency, and 1,000 instances of 16 ranks (4 minutes)
	@$(BIN)/python -m bench registry $(ARGS)

bench-affinity: setup ## prefix affinity beside the trees of the Rust routers: a simulation (3 minutes)
	@$(BIN)/python -m bench affinity $(ARGS)

bench-affinity-live: setup ## the same through real router processes, beside the Rust routers' (15 minutes; installs them)
	-@bench/router/setup.sh
	@$(BIN)/python -m bench affinity --live $(ARGS)

compiled: setup ## a copy of the project in build/compiled with the router's request path compiled (3 minutes)
	@scripts/compile.sh

test-compiled: compiled system ## the router's tests on what was compiled
	@cd build/compiled && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m pytest tests/router -m "not cluster" $(PARALLEL) $(ARGS)

bench-router: compiled ## beside the Rust routers: CPU per request and chunk, latency, memory (20 minutes; installs them)
	@bench/router/setup.sh
	@$(BIN)/python -m bench router $(ARGS)
