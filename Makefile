# Two commands for a new user: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-network lint bench wheel clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	touch $(READY)

demo: setup
	$(BIN)/hofl demo --out runs/demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup lint
	$(BIN)/python -m pytest --numprocesses 2

# Real servers and devices on 127.0.0.1, and their faults.
test-network: setup
	$(BIN)/python -m pytest -m network -rs

bench: setup
	$(BIN)/python benchmarks/run.py

wheel: setup
	$(BIN)/python -m build --no-isolation --wheel --outdir dist

clean:
	rm -rf $(VENV) build dist
