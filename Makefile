# make test: set up once, then every check and test. make help: the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Workers for the tests; PYTEST_ARGS=... passes anything else.
WORKERS ?= auto
PYTEST_ARGS ?=

DEMO := runs/demo

.PHONY: help demo test check setup format bench-solvers clean
help:
	@echo "make demo           train a small spanning-tree VAE from forward passes alone; a minute or two, then a page"
	@echo "make test           every check and test (sets up a virtual environment in $(VENV) first)"
	@echo "make check          lint, format, types and import contract only"
	@echo "make format         mend what can be mended automatically"
	@echo "make bench-solvers  time the solvers beside their peers"
	@echo "make clean          remove the environment and caches"

demo: $(READY)
	@echo
	@echo "Five particles move by the forces of a hidden spanning tree. A VAE that must draw a tree to explain their paths"
	@echo "is trained by evolution strategies: no gradient, no labels. A minute or two on two cores; Ctrl-C saves, and"
	@echo "make demo continues. (To start over: rm -r $(DEMO))"
	@echo
	@if [ -f $(DEMO)/config.toml ]; then $(BIN)/nestruct train --resume $(DEMO); \
	else $(BIN)/nestruct train graph-layout-demo --run $(DEMO); fi
	@$(BIN)/nestruct report $(DEMO) -o $(DEMO)/page.html
	@echo "True and recovered trees, and F1 over time: file://$(CURDIR)/$(DEMO)/page.html"

test: check
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(READY)

# constraints.txt names the exact versions the tests ran with.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nestruct needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "Setting up $(VENV) (a minute or two, once)."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-solvers: $(READY)
	$(BIN)/python benchmarks/solvers.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
