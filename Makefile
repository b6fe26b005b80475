# make test: set up once, then every check and test. make help: the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What a useful minute can test: contracts over the registries, golden numbers, the seams.
QUICK := tests/test_bits.py tests/test_layout.py tests/test_noise.py tests/test_objective.py tests/estimators/test_contract.py \
	tests/estimators/test_base.py tests/models/test_contract.py tests/models/test_hooks.py tests/data/test_contract.py \
	tests/structures/test_context.py tests/structures/test_draws.py tests/training/test_fit.py tests/training/test_generic.py
# Workers for the tests; PYTEST_ARGS=... passes anything else.
WORKERS ?= auto
PYTEST_ARGS ?=
# A file's tests share one worker, so that what they train together is trained once; short files, doctests, come last.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# One thread: threads that wait for each other on a busy machine take ten times as long.
DEMO := runs/demo
# A recipe in a run folder: begun, or continued.
train = $(BIN)/nestruct train $(1) --run $(2) --continue

.PHONY: help demo test quick slow check docs notebooks package setup format bench-solvers clean
help:
	@echo "make demo           find the trees of ten particles by StructureNES; two minutes, then a page"
	@echo "make test           every check and test (sets up a virtual environment in $(VENV) first)"
	@echo "make quick          a useful minute: lint, format, types, contracts and golden numbers"
	@echo "make slow           the tests that make test leaves out: variants of others, in real processes"
	@echo "make check          lint, format, types, import contract, documentation and package"
	@echo "make docs           the documentation, build/site/index.html"
	@echo "make notebooks      execute examples/notebooks and write their pages, docs/notebooks"
	@echo "make package        wheel and source distribution, build/dist"
	@echo "make format         mend what can be mended automatically"
	@echo "make bench-solvers  time the solvers beside their peers"
	@echo "make clean          remove the environment and caches"

demo: $(READY)
	@echo
	@echo "Ten particles move by the forces of a hidden spanning tree. A VAE that must draw a tree to explain their paths is"
	@echo "trained without labels, by StructureNES: the tree solver is a black box, encoder and decoder are differentiated."
	@echo "Connecting neighbours by the shortest tree, without learning, finds four edges of five. One to three minutes on"
	@echo "one core; Ctrl-C saves, and make demo continues. (To start over: rm -r $(DEMO))"
	@echo
	@OMP_NUM_THREADS=1 $(call train,graph-layout-10,$(DEMO))
	@$(BIN)/nestruct report $(DEMO) -o $(DEMO)/page.html --title "Trees recovered from ten moving particles"
	@echo "True and recovered trees, and F1 over time: file://$(CURDIR)/$(DEMO)/page.html"

test: check
	$(PYTEST) $(PYTEST_ARGS)

quick: $(READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q $(QUICK) $(PYTEST_ARGS)

slow: $(READY)
	$(PYTEST) -m slow $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory docs package

# build/site/index.html: opens from disk, fetches nothing.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# docs/notebooks: pages, pictures and .ipynb files, which are committed, so that make docs executes nothing.
notebooks: $(READY)
	$(BIN)/python docs/tools/notebooks.py

# build/dist: the wheel is built from the source distribution, offline.
package: $(READY)
	mkdir -p build && rm -rf build/dist
	$(BIN)/python -m build --no-isolation --outdir build/dist . > build/package.log 2>&1 || { cat build/package.log; exit 1; }

setup: $(READY)

# constraints.txt names the exact versions the tests ran with.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nestruct needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
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
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
