# Everything a developer runs. A target installs into .venv what it needs; later ones find it ready.

PYTHON ?= python3
WORKERS ?= 2
BUDGET ?= 600
# Another torch has an environment of its own: make test TORCH=2.6.0
TORCH ?=
VENV := .venv$(if $(TORCH),-torch-$(TORCH))
BIN := $(VENV)/bin
LEAN := $(VENV)/.lean
READY := $(VENV)/.dev
PATHS := src tests examples docs $(wildcard benchmarks)

# One thread per process: the tests run in parallel already, and small tensors gain nothing from more.
export OMP_NUM_THREADS ?= 1
# Tests start processes, which would compile every module again if Python kept no compiled files.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test fallbacks gallery slow lint types conformance bench detection mutation format clean docs browser audit scale fuzz

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(LEAN) ## check a right and a wrong gradient (examples/) and show what gradvet says
	@$(BIN)/python examples/demo.py

test: $(READY) ## run the tests (WORKERS=2 processes; TORCH=2.6.0 for another torch)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

gallery: $(READY) ## prove without gradvet what the tests assume: which functions are wrong, and what torch's checker says
	$(BIN)/python -m pytest -n $(WORKERS) -m gallery

slow: $(READY) ## run the tests that measure time or memory of a process: only on a machine without other load
	$(BIN)/python -m pytest -m slow

fallbacks: $(READY) ## run the tests of the torch frontend without private names of torch, NumPy and Python
	GRADVET_PUBLIC_ONLY=1 $(BIN)/python -m pytest -n $(WORKERS) tests/frontends tests/compat tests/api/test_check.py

lint: $(VENV)/.lint ## look for unformatted code and doubtful constructs
	$(BIN)/ruff format --check $(PATHS)
	$(BIN)/ruff check $(PATHS)

types: $(READY) ## check the types of src, strictly, and those that users see
	$(BIN)/mypy --strict src
	$(BIN)/python -m pytest -m types tests/test_types.py

conformance: $(READY) ## compare with torch's checker over the operators, or over PyTorch's tests in TESTS=<its source> (long)
	$(BIN)/python -m $(if $(TESTS),tests.differential.torch_tests $(TESTS),tests.differential.run)

bench: $(READY) ## measure gradvet beside torch's checker: sizes, then operators for BUDGET seconds each (long)
	$(BIN)/python -m benchmarks.sizes
	$(BIN)/python -m benchmarks.opdb --time-budget $(BUDGET)
	$(BIN)/python -m benchmarks.opdb build/opdb-gradgrad.jsonl --gradgrad --time-budget $(BUDGET)

detection: $(READY) ## measure how often check is right: operators, planted faults, the gallery (long)
	$(BIN)/python -m benchmarks.detection

# At most so many samples of each operator at order 1 and 2; 0 is all, which takes hours.
SAMPLES ?= 3 2

audit: $(READY) ## check PyTorch's operator database and write docs/audit-torch-2.13.md (long; SAMPLES='0 0' is all of it)
	$(BIN)/python -m benchmarks.audit --jobs $(WORKERS) --samples $(SAMPLES)

scale: $(READY) ## measure what a million cases need, from the stores of the audit, and write docs/scale.md
	$(BIN)/python -m benchmarks.scale build/audit/*.db

# Each fuzzer makes at least so many trials, however long they take, and draws them from SEED.
POINTS ?= 0
SEED ?= 0

fuzz: $(READY) ## interrupt checks at random lines, call them with wrong arguments, read damaged files, for BUDGET seconds each
	$(BIN)/python -m tests.faults.interruptions $(BUDGET) --points $(POINTS) --seed $(SEED)
	$(BIN)/python -m tests.faults.arguments $(BUDGET) --points $(POINTS) --seed $(SEED)
	$(BIN)/python -m tests.faults.files $(BUDGET) --points $(POINTS) --seed $(SEED)

mutation: $(VENV)/.mutation ## change the code of core/ and checks/ here and there, and see whether the tests notice (long)
	$(BIN)/python -m benchmarks.mutation --jobs $(WORKERS)

docs: $(VENV)/.docs ## build the documentation into build/docs; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

browser: $(VENV)/.browser ## open the page in a headless Chromium, named in CHROMIUM or found on the path
	$(BIN)/python -m pytest tests/browser

format: $(VENV)/.lint ## format the code and mend what ruff can mend
	$(BIN)/ruff format $(PATHS)
	$(BIN)/ruff check --fix $(PATHS)

clean: ## remove .venv, caches and build results
	rm -rf .venv .venv-torch-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(PATHS) -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and pinned: left to the resolver it may bring gigabytes of another build. Another torch chooses its
# own sympy: torch 2.6 takes one version only. Python compiles what is imported; to compile all of torch would take
# longer than the rest.
$(LEAN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	grep -vE '^(torch$(if $(TORCH),|sympy))==' constraints.txt > $(VENV)/constraints.txt
	echo "torch==$(or $(TORCH),$(patsubst torch==%,%,$(filter torch==%,$(shell cat constraints.txt))))" >> $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile -c $(VENV)/constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile -c $(VENV)/constraints.txt -e .
	@touch $@

# One stamp for each group of tools in pyproject.toml: test, lint, docs, browser, mutation, and dev, which is all of them.
$(VENV)/.%: $(LEAN)
	$(BIN)/python -m pip install --quiet -c $(VENV)/constraints.txt -e '.[$*]'
	@touch $@
