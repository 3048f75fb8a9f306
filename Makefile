# Two commands for a new user: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPUTING := tests/test_algorithm.py tests/test_golden.py tests/contracts tests/core tests/local \
	tests/server tests/evaluation \
	tests/models/test_split.py tests/models/test_streaming.py tests/models/test_quantised.py \
	tests/models/test_generation.py tests/engines \
	tests/experiment/test_engine.py tests/experiment/test_divergence.py

TOOLS := .venv-tools
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup lock demo test test-isa test-network test-trackers fuzz lint bench results site wheel audit clean

setup: $(READY)

# Everything by its hash; torch comes in several builds of one version, so it is pinned by version.
$(READY): pyproject.toml constraints.txt requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps --requirement requirements.lock
	$(PIP) --constraint constraints.txt torch
	$(PIP) --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	touch $(READY)

$(TOOLS): tools/requirements.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tools/requirements.txt
	touch $(TOOLS)

# After a change of constraints.txt: the hashes of every file of every pinned version.
lock: $(TOOLS)
	$(TOOLS)/bin/uv pip compile --quiet --no-deps --generate-hashes --no-emit-package torch --no-annotate \
		--custom-compile-command "make lock" --python-version 3.11 --output-file requirements.lock constraints.txt

demo: setup
	$(BIN)/hofl demo --out runs/demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup lint
	$(BIN)/python -m pytest --numprocesses 2

# The tests that compute, again with other instructions than this processor's best: PyTorch's kernels
# without AVX and oneDNN's with at most AVX2 round differently, and no claim may hang on one rounding.
# On a processor that has nothing better this repeats part of `make test`.
test-isa: setup
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest --numprocesses 2 $(COMPUTING)

# Real servers and devices on 127.0.0.1, and their faults.
test-network: setup
	$(BIN)/python -m pytest -m network -rs

# Weights & Biases and MLflow with their real libraries, which are many: beside the environment, not in it.
test-trackers: setup
	test -d .trackers || $(PIP) --target .trackers --constraint constraints.txt --requirement tools/trackers.txt
	PYTHONPATH=.trackers $(BIN)/python -m pytest -rs tests/tracking

# 100,000 fuzzed plans and uploads, for a nightly run; `make test` tries 5,000.
fuzz: setup
	HOFL_FUZZ=100000 $(BIN)/python -m pytest -q tests/test_fuzz.py

bench: setup
	$(BIN)/python benchmarks/run.py

# The pages of docs/results, from the comparisons in runs/results that are there.
results: setup
	$(BIN)/python tools/make_results.py
	$(BIN)/python tools/demo_table.py
	$(BIN)/python tools/memory_tables.py
	$(BIN)/python tools/options_table.py
	$(BIN)/python tools/sampling_numbers.py

# The documentation as pages in build/site that open from disk; nothing is fetched from a network.
site: setup
	$(BIN)/python tools/write_cli_page.py
	$(BIN)/python tools/draw_concepts.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site: build/site/index.html"

# The wheel, and beside it a software bill of materials (CycloneDX) of what it was built and tested with.
wheel: setup $(TOOLS)
	$(BIN)/python -m build --no-isolation --wheel --outdir dist
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible --output-file dist/hofl-sbom.json $(BIN)/python

# Known vulnerabilities of what requirements.lock pins.
audit: $(TOOLS)
	$(TOOLS)/bin/pip-audit --require-hashes --disable-pip --requirement requirements.lock

clean:
	rm -rf $(VENV) $(TOOLS) .trackers build dist
