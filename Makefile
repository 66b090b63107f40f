# Two commands: `make demo` and `make test`. Both set up the environment first, in .venv or where VENV says:
#   make VENV=/some/where demo
VENV ?= .venv
PYTHON ?= python3
OUTPUT ?= demo-output

PACKAGES := models graphs training inference-plugin
STAMP := $(VENV)/.anemoi-plugins-attention
# The hosts' and our command-line tools are looked up by name, as in a shell with the environment active.
export PATH := $(abspath $(VENV))/bin:$(PATH)

.PHONY: help environment demo test compat lint docs clean

help:
	@echo "make demo   train, forecast and score on the shipped data: table and picture in $(OUTPUT)/"
	@echo "make test   all tests that need no GPU"
	@echo "make compat all released pairs of hosts, and their table in the documentation (10 minutes)"
	@echo "make lint   black, isort, ruff and mypy"
	@echo "make docs   the documentation, in docs/_build/html"

environment: $(STAMP)

$(STAMP): pyproject.toml $(PACKAGES:%=%/pyproject.toml) compat/releases.py
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@echo "Installing the Anemoi hosts, torch and these packages (several GB, some minutes) ..."
	$(VENV)/bin/python -m pip install --quiet --group dev $(PACKAGES:%=--editable ./%)
	$(VENV)/bin/python compat/environments.py
	touch $@

demo: $(STAMP)
	$(VENV)/bin/python demo/run.py --output $(OUTPUT)

test: $(STAMP)
	$(VENV)/bin/python -m pytest

compat: $(STAMP)
	$(VENV)/bin/python compat/verify.py --table docs/compatibility.csv

lint: $(STAMP)
	$(VENV)/bin/black --check .
	$(VENV)/bin/isort --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

docs: $(STAMP)
	$(VENV)/bin/sphinx-build -W -b html docs docs/_build/html

clean:
	rm -rf docs/_build .pytest_cache .mypy_cache .ruff_cache
