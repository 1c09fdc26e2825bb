# `make demo` runs a whole swarm on this machine; `make test` runs every check and test. Both install into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast check lint types tests fuzz docs figures floor-plan clean
demo: $(VENV)/.installed
	$(BIN)/p2prl demo $(DEMO_ARGS)

# The type checker uses one core for a minute: the tests begin beside it.
test: lint
	$(MAKE) --no-print-directory --jobs=2 types tests

# Three workers on two cores: swarms of processes wait much of their time (tests/conftest.py).
tests: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 --durations=20 $(PYTEST_ARGS)

# Linters, and the tests without processes, sockets and training runs: under two minutes on two cores.
test-fast: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --durations=20 -m "not slow" $(PYTEST_ARGS)

# Linters, types and layers.
check: lint types

types: $(VENV)/.installed-dev
	$(BIN)/mypy

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vulture

# A million seeded inputs for every decoder of strangers' bytes. FUZZ_ARGS="--seed 1 --inputs 50000 --json"
fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m scripts.fuzz $(FUZZ_ARGS)

# Draw docs/floor_plan.md again from the code.
floor-plan: $(VENV)/.installed-dev
	$(BIN)/python -m scripts.floor_plan

# Draw the figures of docs/benchmarks/trust.md and staleness.md again from the rows beside them.
figures: $(VENV)/.installed-dev
	$(BIN)/python -m scripts.trust_figures
	$(BIN)/python -m scripts.staleness_experiment --report

# The documentation site, in build/site; any warning is an error.
docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict --site-dir build/site

$(VENV)/bin/python:
	$(PYTHON) scripts/check_python.py
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
