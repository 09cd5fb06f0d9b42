# Everything a developer runs. The first target that needs it sets up .venv; later ones find it ready.

PYTHON ?= python3
WORKERS ?= 2
BUDGET ?= 600
BIN := .venv/bin
READY := .venv/.installed
PATHS := src tests examples docs $(wildcard benchmarks)

# One thread per process: the tests run in parallel already, and small tensors gain nothing from more.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test fallbacks gallery slow lint types conformance bench detection mutation format clean docs browser audit scale

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## check a right and a wrong gradient (examples/) and show what gradvet says
	@$(BIN)/python examples/demo.py

test: $(READY) ## run the tests (WORKERS=2 processes)
	$(BIN)/python -m pytest -n $(WORKERS)

gallery: $(READY) ## prove without gradvet that the functions of tests/gallery are right or wrong as they say
	$(BIN)/python -m pytest -n $(WORKERS) -m gallery tests/gallery

slow: $(READY) ## run the tests that measure time or memory of a process: only on a machine without other load
	$(BIN)/python -m pytest -m slow

fallbacks: $(READY) ## run the tests of the torch frontend without private names of torch, NumPy and Python
	GRADVET_PUBLIC_ONLY=1 $(BIN)/python -m pytest -n $(WORKERS) tests/frontends tests/compat tests/api/test_check.py

lint: $(READY) ## look for unformatted code and doubtful constructs
	$(BIN)/ruff format --check $(PATHS)
	$(BIN)/ruff check $(PATHS)

types: $(READY) ## check the types of src, strictly
	$(BIN)/mypy --strict src

conformance: $(READY) ## compare the verdicts with torch's own checker over the operator database (long)
	$(BIN)/python -m tests.differential.run

bench: $(READY) ## measure gradvet beside torch's checker: sizes, then operators for BUDGET seconds each (long)
	$(BIN)/python -m benchmarks.sizes
	$(BIN)/python -m benchmarks.opdb --time-budget $(BUDGET)
	$(BIN)/python -m benchmarks.opdb --gradgrad --time-budget $(BUDGET)

detection: $(READY) ## measure how often check is right: operators, planted faults, the gallery (long)
	$(BIN)/python -m benchmarks.detection

# At most so many samples of each operator at order 1 and 2; 0 is all, which takes hours.
SAMPLES ?= 3 2

audit: $(READY) ## check PyTorch's operator database and write docs/audit-torch-2.13.md (long; SAMPLES='0 0' is all of it)
	$(BIN)/python -m benchmarks.audit --jobs $(WORKERS) --samples $(SAMPLES)

scale: $(READY) ## measure what a million cases need, from the stores of the audit, and write docs/scale.md
	$(BIN)/python -m benchmarks.scale build/audit/*.db

mutation: $(READY) ## change the code of core/ and checks/ here and there, and see whether the tests notice (long)
	$(BIN)/python -m benchmarks.mutation --jobs $(WORKERS)

docs: $(READY) ## build the documentation into build/docs; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

browser: $(READY) ## open the page in a headless Chromium, named in CHROMIUM or found on the path
	$(BIN)/python -m pytest tests/browser

format: $(READY) ## format the code and mend what ruff can mend
	$(BIN)/ruff format $(PATHS)
	$(BIN)/ruff check --fix $(PATHS)

clean: ## remove .venv, caches and build results
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(PATHS) -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and pinned: left to the resolver it may bring gigabytes of another build.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
