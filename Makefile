# Everything here works on a fresh machine with Python 3.11+, make and the package registries.
# What the environment is made with. Unless somebody says: the first Python on the path that was built
# with optimizations (those of distributions are), because without them tests take a quarter more of
# the processor; else the first one.
PYTHON ?=
OPTIMIZED := import ensurepip, sys, sysconfig; \
	sys.exit(sys.version_info < (3, 11) or sys.base_prefix != "/usr" and \
		"--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""))
VENV := .venv
BIN := $(VENV)/bin
# What users need, and what developers need besides: test servers, linters, every extra.
INSTALLED := $(VENV)/.installed
DEVELOPED := $(VENV)/.developed
# One line for each package as pip gets it. What goes wrong, pip says on stderr.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-color --progress-bar off --editable
PACKAGES := ui/node_modules/.package-lock.json
# What npm says where there is no network.
UNREACHABLE := ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT
# Debian's packages, for those who may install them; a fresh machine has no list of them yet.
MAY_GET := test "$$(id -u)" = 0 && command -v apt-get >/dev/null
APT := apt-get install --yes --no-install-recommends
GET = { $(APT) $(1) || { apt-get update && $(APT) $(1); }; } >/dev/null 2>&1
SHOW = awk '/^Collecting/ { print "  " $$2; fflush() } /^Installing coll/ { print "  unpacking"; fflush() }'

.PHONY: help install demo ui pictures programs units checked suite suite-long test test-long lint house bench clean

help:
	@echo "make install    put the noetl command into .venv/bin"
	@echo "make demo       install into .venv and run an example playbook"
	@echo "make test       install what developers need, too; everything that must pass"
	@echo "make test-long  the same, longer: more fuzzing, more seeds"
	@echo "make house      what might be simplified: it reports and fails nothing"
	@echo "make ui         build the web UI into the package (needs Node)"
	@echo "make pictures   make the pictures of the documentation (needs Chromium)"
	@echo "make bench      measure this machine"
	@echo "make clean      remove what the others made"

$(BIN)/python:
	@python="$(PYTHON)"; \
	for one in $$(test -n "$$python" || which -a python3); do \
		if $$one -c '$(OPTIMIZED)' 2>/dev/null; then python=$$one; break; fi; done; \
	python=$${python:-python3}; \
	command -v "$$python" >/dev/null || \
		{ echo "There is no $$python here. NoETL needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 …"; exit 1; }; \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "NoETL needs Python 3.11 or newer; $$python is older. Use: make PYTHON=python3.12 …"; exit 1; }; \
	echo "making $(VENV) with $$python" && $$python -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "installing NoETL into $(VENV), about a minute"
	@rm -f $@; { $(INSTALL) . && touch $@; } | $(SHOW); test -e $@

$(DEVELOPED): pyproject.toml | $(BIN)/python
	@echo "installing NoETL and what its developers need into $(VENV), a few minutes"
	@rm -f $@; { $(INSTALL) ".[dev]" && touch $(INSTALLED) $@; } | $(SHOW); test -e $@

install: $(INSTALLED)

demo: $(INSTALLED)
	@rm -rf .demo && mkdir .demo
	@$(BIN)/python examples/demo_server.py $(BIN)/noetl run examples/orders.yaml --db .demo/noetl.db --new \
		--set shop_url={url} --set warehouse=.demo/orders.duckdb --set published=.demo/orders.db
	@echo "See it in the browser: $(BIN)/noetl dev --db .demo/noetl.db"

lint: $(DEVELOPED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Tests of the web UI run in Debian's Chromium, best in the one without windows, which is quicker; those
# of the kind mysql ask Debian's MariaDB. Where one is not there and may not be installed, its tests are
# left out, and say so.
programs:
	@command -v chromium-headless-shell >/dev/null \
		|| { $(MAY_GET) && echo "installing Chromium for the tests of the web UI" \
			&& { $(call GET,chromium-headless-shell fonts-dejavu-core) || $(call GET,chromium fonts-dejavu-core); }; } \
		|| command -v chromium >/dev/null \
		|| echo "Chromium is not installed: the browser tests of the web UI are left out"
	@PATH="$$PATH:/usr/sbin"; { command -v mariadbd && command -v my_print_defaults; } >/dev/null \
		|| { $(MAY_GET) && echo "installing MariaDB for the tests of the kind mysql" \
			&& $(call GET,mariadb-server-core mariadb-client-core); } \
		|| echo "MariaDB is not installed: the tests that ask it are left out"

# Packages of the web UI as its lock file says. `npm ci` never changes that file.
$(PACKAGES): ui/package-lock.json
	@cd ui && npm ci --loglevel=error

# Units of the web UI are tested where Node is and its packages can be had. Only that a registry
# cannot be reached leaves them out, as does a missing or old Node; all else that fails is a failure.
units:
	@leave() { echo "$$1: the unit tests of the web UI are left out"; exit 0; }; \
		command -v npm >/dev/null || leave "Node is not installed"; \
		node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' \
			|| leave "Node $$(node --version) is older than 20.19"; \
		said=$$($(MAKE) --no-print-directory $(PACKAGES) 2>&1) || { \
			code=$$(echo "$$said" | grep -oE '$(UNREACHABLE)' | head -1); \
			test -n "$$code" && leave "No package registry is reached ($$code)"; \
			echo "$$said"; exit 1; }; \
		cd ui && npm run --silent check && npm run --silent test

# What is read and not run: each tool with what it says in one piece.
checked: $(DEVELOPED)
	@$(MAKE) --no-print-directory --output-sync=recurse lint units

# Half of the time tests wait for processes, leases and clocks: five at once keep two cores busy. With
# four, a fifth of the two was idle; six wait for each other, and what judges a time fails sooner.
suite: $(DEVELOPED) programs
	$(BIN)/pytest --processes 5 --durations 15 -m "not long"

suite-long: $(DEVELOPED) programs
	EFFORT=long $(BIN)/pytest --processes 5 --durations 15

test: $(DEVELOPED)
	@$(MAKE) --no-print-directory --jobs 3 suite checked

test-long: $(DEVELOPED)
	@$(MAKE) --no-print-directory --jobs 3 suite-long checked

house: $(DEVELOPED)
	@$(BIN)/python -m tests.house_report

ui: $(DEVELOPED) $(PACKAGES)
	$(BIN)/python ui/api_types.py
	cd ui && npm run --silent check && npm run --silent build

pictures: $(DEVELOPED)
	$(BIN)/python -m tests.ui.pictures

bench: $(DEVELOPED)
	$(BIN)/python bench/workloads.py
	$(BIN)/python bench/over_http.py
	$(BIN)/python bench/hooks.py
	$(BIN)/python bench/store.py
	$(BIN)/python bench/python_tool.py
	$(BIN)/python bench/validate.py
	$(BIN)/python bench/expressions.py

clean:
	rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
