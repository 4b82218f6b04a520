# Every target sets up .venv by itself, with nothing but Python 3.11 or newer and pip.
#   make demo    train, audit and explain a model on the bundled credit data
#   make test    the tests but for the slow ones and most guide pages (TESTS=tests/cli for some)

# The first interpreter on this machine that is new enough; override with `make PYTHON=python3.13 ...`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TESTS ?= tests paper/tests
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup setup-browser demo test test-all coverage lint format types bench docs clean

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.installed-dev  ## everything a developer needs, and the paper's study, in .venv

setup-browser:  ## Debian's chromium and its driver, for the tests of the review workbench (where apt is present)
	@command -v apt-get >/dev/null || { echo "no apt-get here; install chromium and chromedriver yourself" >&2; exit 1; }
	$(if $(filter 0,$(shell id -u)),,sudo) apt-get install --yes --no-install-recommends chromium chromium-driver

demo: $(VENV)/.installed  ## train, audit, explain; writes demo-audit/
	$(BIN)/fragility demo

test: $(VENV)/.installed-dev  ## the tests, but for the slow ones and most pages of the guide
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not docs" $(TESTS)

test-all: $(VENV)/.installed-dev  ## the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(COVER) $(TESTS)

coverage:  ## the whole test suite, and which lines of the package it runs; fails under 95%
	$(MAKE) test-all COVER="--cov --cov-report=term"

lint: $(VENV)/.installed-dev  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev  ## put every file in ruff's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev  ## mypy, strict
	$(BIN)/mypy

bench: $(VENV)/.installed-dev  ## what certificates cost (needs FRAGILITY_DATA); the other scripts say what they need
	$(BIN)/python benchmarks/blackbox.py
	$(BIN)/python benchmarks/engines.py

docs: $(VENV)/.installed-dev  ## build the site into docs/_build/html, and run the guide's pages that `make test` leaves out
	rm -rf docs/_build docs/api/generated
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m docs tests/test_docs.py

clean:  ## remove the environment, the site and what the demo wrote
	rm -rf $(VENV) demo-audit build dist docs/_build docs/auto_examples docs/more docs/api/generated docs/api/backreferences

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "fragility needs Python 3.11 or newer, and none was found; install one or run 'make PYTHON=/path/to/python ...'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps are older than their prerequisites when pyproject or the constraints change, so the install runs again.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml paper/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable ".[dev]" --editable paper
	@touch $@ $(VENV)/.installed
