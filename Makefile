# Everything here works on a fresh machine with Python 3.11+, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install demo test test-long lint bench clean

help:
	@echo "make install    put the noetl command into .venv/bin"
	@echo "make demo       install into .venv and run an example playbook"
	@echo "make test       everything that must pass"
	@echo "make test-long  the same, longer: more fuzzing, more seeds"
	@echo "make bench      measure this machine"
	@echo "make clean      remove what the others made"

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "NoETL needs Python 3.11 or newer; $(PYTHON) is older. Use: make PYTHON=python3.12 …"; exit 1; }
	@echo "installing into $(VENV), which takes a minute or two"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	@rm -rf .demo && mkdir .demo
	@$(BIN)/python examples/demo_server.py $(BIN)/noetl run examples/orders.yaml --db .demo/noetl.db --new \
		--set shop_url={url} --set warehouse=.demo/orders.duckdb --set published=.demo/orders.db

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint
	$(BIN)/pytest -n 2 -m "not long"

test-long: lint
	$(BIN)/pytest -n 2

bench: $(INSTALLED)
	$(BIN)/python bench/workloads.py
	$(BIN)/python bench/over_http.py
	$(BIN)/python bench/store.py
	$(BIN)/python bench/python_tool.py
	$(BIN)/python bench/validate.py
	$(BIN)/python bench/expressions.py

clean:
	rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
