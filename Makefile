# Two commands do all the set-up: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test lint slow bench clean

train: $(VENV)/installed
	$(BIN)/fastbp train

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -m "not slow"

slow: $(VENV)/installed-test
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy fastbp

bench: $(VENV)/installed
	$(BIN)/fastbp bench

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml setup.py $(wildcard fastbp/*.pyx fastbp/*.h fastbp/run/*.pyx)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
