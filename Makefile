# Two commands do all the set-up: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test lint slow bench docs clean

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

docs: $(VENV)/installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "site/index.html is written; '$(BIN)/mkdocs serve' shows it with its search"

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

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info
