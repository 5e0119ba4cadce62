.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

$(STAMP): pyproject.toml
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP) ## a virtual environment with ppscope and its tests' tools

demo: $(STAMP) ## start the emulated pipeline and attach to it
	@$(BIN)/ppscope demo

test: $(STAMP) ## the whole suite, but for the real SGLang
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS) tests --ignore=tests/sglang --ignore=tests/bench --ignore=tests/firstuse

test-sglang: $(STAMP) ## attach to the real SGLang on CPU
	@timeout 2000 $(BIN)/python -m pytest -q $(PYTEST_ARGS) tests/sglang

test-faults: $(STAMP) ## the tests of docs/faults.md alone, three times in a row
	@$(BIN)/python -m tests.faults --times 3

test-first-use: $(STAMP) ## install from a folder of wheels without network under every Python here, and use it
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS) tests/firstuse

test-pythons: $(STAMP) ## the unit tests under every other supported Python on this machine
	@$(BIN)/python -m tests.pythons

lint: $(STAMP) ## style and import borders
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict, code and tests
	@$(BIN)/mypy -p ppscope && $(BIN)/mypy tests

screenshots: $(STAMP) ## make screenshots/ anew from the demo
	@$(BIN)/python -m tests.screenshots && $(BIN)/python -m tests.browser.screenshots

bench: $(STAMP) ## what ppscope costs on this machine beside its peers, half an hour: docs/bench.md
	@$(BIN)/python -m tests.bench -o docs/bench.md $(BENCH_ARGS)

fuzz: $(STAMP) ## nearly real input for everything that reads foreign input, a minute each
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

docs: $(STAMP) ## what README and manual take from the code
	@$(BIN)/python -m tests.docs

clean: ## remove what was built
	@rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache *.egg-info

.PHONY: help install demo test test-sglang test-faults test-first-use test-pythons lint types screenshots bench fuzz docs clean
