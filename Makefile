# Everything runs in .venv, which the first target that needs it makes. Stamps make a second call instant.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
PINS := pyproject.toml constraints.txt

# Idle OpenMP threads sleep instead of spinning: numba's and torch's pools share the cores.
export OMP_WAIT_POLICY := passive

# Packages are installed without bytecode and compiled when first imported; without a cache every start would do it again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-full fuzz check docs format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## make .venv and install the package in it

quickstart: $(VENV)/.installed ## install, then train the packaged tiny policy with scheduled sparse rollouts
	$(BIN)/sparrow-train experiment=quickstart

test: $(VENV)/.installed-test ## install what the tests need, run all but the slow and the GPU tests
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not gpu"

test-full: $(VENV)/.installed-test ## run every test; those for a GPU are skipped without one
	$(BIN)/python -m pytest

fuzz: $(VENV)/.installed-test ## compare reference, CPU and Triton paths on 2000 random configurations per operator
	$(BIN)/python -m tests.fuzz --configurations 2000

check: $(VENV)/.installed-check ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-test ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(VENV)/.installed-check ## apply lint fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove caches and build products; .venv and outputs/ stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(PINS) | $(BIN)/python
	@echo "Installing the package into $(VENV) (a minute or two, once)"
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(PINS) | $(BIN)/python
	@echo "Installing the package and what its tests need into $(VENV) (two or three minutes, once)"
	$(PIP_INSTALL) -e '.[test]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-check: $(PINS) | $(BIN)/python
	$(PIP_INSTALL) -e '.[check]'
	@touch $(VENV)/.installed $@
