# Every target does its own set-up: a fresh clone needs Python >= 3.11, make and a package index.
# Another interpreter: make clean, then make test PYTHON=python3.12
# No file but those whose digests are in hashes.txt: make venv HASHES=1, in an environment that is made anew

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.$(if $(HASHES),hashed,installed)
EXTRAS := .venv/.extras
PEERS := .venv/.peers
DEMO := inverted-pendulum --seeds 2 --episodes 8

.PHONY: help venv demo test test-slice test-all durations mutants faults lint format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## create .venv with the tested versions

# What builds the package is installed before it, as pip holds isolated builds to no constraints in every version.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
PINNED := -c constraints.txt --no-build-isolation
FIRST := $(if $(HASHES),--require-hashes --only-binary :all: -r hashes.txt,-c constraints.txt hatchling editables)
THEN := $(if $(HASHES),--no-deps --no-build-isolation,$(PINNED)) -e '.[dev]'

$(STAMP): pyproject.toml constraints.txt hashes.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "cdpo needs Python 3.11 or later, which '$(PYTHON)' is not; try: make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12" >&2; exit 1; }
	@echo "installing into .venv (once, about a minute) ..."
	@$(PYTHON) -m venv $(if $(HASHES),--clear) .venv
	@$(PIP) $(FIRST)
	@$(PIP) $(THEN)
	@touch .venv/.installed $@

demo: $(STAMP) ## train CDPO on a small task and show where the report is
	@out=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	  $(BIN)/cdpo train $(DEMO) --out "$$out" && \
	  $(BIN)/cdpo report "$$out"

lint: $(STAMP) ## check style and types
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "some files are not formatted; run: make format" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

# A file's tests share what they compile, so each file goes to one worker.
PYTEST := $(BIN)/pytest -q -n 2 --dist loadfile

test: lint ## lint, and the quick tests (the others are skipped, with their reasons)
	@$(PYTEST)

test-slice: $(EXTRAS) ## the slow tests for which there is time, others at every commit
	@$(PYTEST) --dist load --slice

test-all: lint $(EXTRAS) ## lint, and every test
	@$(PYTEST) --all

durations: $(EXTRAS) ## run every test, and keep what the slow ones take in tests/durations.json
	@$(PYTEST) --all --record

mutants: $(STAMP) ## plant mistakes in a copy of the source and see which the tests catch
	@$(BIN)/python tools/mutants.py --jobs 2

faults: $(STAMP) ## attack run folders for an hour: kills, crashes, errors, damage, strangers, races
	@$(BIN)/python tools/faults.py --keep

format: $(STAMP) ## format the code and apply safe fixes
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

$(EXTRAS): $(STAMP)
	@echo "installing the extras that have tests (once) ..."
	@$(PIP) $(PINNED) -e '.[dev,tensorboard,scale-out]'
	@touch $@

$(PEERS): $(STAMP) constraints-peers.txt
	@echo "installing what ours is held against, with PyTorch (once) ..."
	@$(PIP) $(PINNED) -c constraints-peers.txt -e '.[dev,peers]'
	@touch $@

bench: $(PEERS) ## measure the tabular and the deep part, beside others
	@$(BIN)/python benchmarks/tabular.py
	@$(BIN)/python benchmarks/deep.py
	@$(BIN)/python benchmarks/bptt.py
	@$(BIN)/python benchmarks/mpc.py
	@$(BIN)/python benchmarks/sac.py

clean: ## remove .venv and caches (runs/ stays: it holds results)
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
