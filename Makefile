# One command each: set up, tune, test, lint. Everything lives in ./.venv; PYTHON and TORCH can be overridden.
PYTHON ?= python3
# Development is on this release; pyproject.toml states the range that deployments may use.
TORCH ?= torch==2.13.0
BIN := .venv/bin
RECIPE ?= recipes/ag_gemm/llama-3-70b.toml
# Two cores are enough for the tests; more are used where there are more.
JOBS ?= 2

.PHONY: help setup tune test lint format clean bench-proof bench-perfdb bench-regress bench-bodies

help:
	@echo "make tune   set up and run the main job: search, prove, emulate, export (RECIPE=$(RECIPE))"
	@echo "make test   set up and run the tests"
	@echo "make lint   ruff, mypy --strict, import-linter"
	@echo "make bench-proof | bench-perfdb | bench-regress | bench-bodies   figures without a GPU; the last line is JSON"
	@echo "make format let ruff mend what it can"

setup: .venv/.ready-tune

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "tilescale needs Python 3.11 or newer; got: $$($(PYTHON) --version); set PYTHON=python3.11 or newer"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.ready-tune: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[tune]'
	@touch $@

.venv/.ready-test: .venv/.ready-tune
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test,lint]'
	@touch $@

tune: .venv/.ready-tune
	$(BIN)/tilescale tune $(RECIPE)

test: .venv/.ready-test
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

lint: .venv/.ready-test
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Figures that need no GPU; the last line of each is one JSON object.
bench-proof: .venv/.ready-test
	$(BIN)/python benchmarks/proof/bench_proof.py --list benchmarks/proof/equivalent.txt -o benchmarks/results/proof.json

bench-perfdb: .venv/.ready-test
	$(BIN)/python benchmarks/database/bench_perfdb.py -o benchmarks/results/perfdb.json

bench-regress: .venv/.ready-test
	$(BIN)/python benchmarks/database/bench_regress.py -o benchmarks/results/regress.json

bench-bodies: .venv/.ready-test
	$(BIN)/python benchmarks/bodies.py

format: .venv/.ready-test
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist bundle *.egg-info
