# Two commands do everything on a fresh Debian or Ubuntu machine:  make demo   make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
NAME   ?= all
RUNS   ?= 1000000

.PHONY: demo test test-all bench drill fuzz lint setup schema clean help
help:
	@echo "make demo    the main job on the emulated lab    make test    all tests but the long ones (make test-all)    make bench [NAME=...]    measured claims    make drill [NAME=...]    crashes and faults, all of them    make fuzz [NAME=...] [RUNS=...]    hostile input"

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt scripts/install-deps
	@PYTHON=$(PYTHON) scripts/install-deps
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	@touch $@

demo: setup
	@$(SUDO) $(BIN)/python examples/demo.py

test: setup lint frontend
	@scripts/install-deps influxdb
	@scripts/install-deps victoria-metrics || echo "no VictoriaMetrics here: writing by the API of InfluxDB 2 will not be tried"
	@scripts/install-deps chromium || echo "no Chromium here: the page of testbed ui will not be opened"
	@$(SUDO) $(BIN)/python -m pytest -n 2

# The long end-to-end tests, too (half an hour on two cores).
test-all: setup lint frontend
	@scripts/install-deps influxdb
	@scripts/install-deps victoria-metrics || echo "no VictoriaMetrics here: writing by the API of InfluxDB 2 will not be tried"
	@scripts/install-deps chromium || echo "no Chromium here: the page of testbed ui will not be opened"
	@$(SUDO) $(BIN)/python -m pytest -n 2 -m "long or not long"

# Grafana's own data library, for the dashboards' tests. Node is one of the development packages: the library wants a newer one than Debian 12 has.
FRONTEND := tests/dashboards/node
frontend: $(FRONTEND)/node_modules/.ready

$(FRONTEND)/node_modules/.ready: $(FRONTEND)/package-lock.json $(FRONTEND)/.npmrc | setup
	@cd $(FRONTEND) && NODE_OPTIONS=--use-system-ca $(abspath $(BIN))/npm ci --silent --fetch-retries=1 && touch node_modules/.ready || echo "npm ci failed: nothing will go through Grafana's data library"

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy --python-version 3.10 -p agent
	@$(BIN)/lint-imports

bench: setup
	@scripts/install-deps mininet
	@$(SUDO) $(BIN)/python -m benchmarks $(NAME)

drill: setup
	@$(SUDO) $(BIN)/python -m tests.drills $(NAME)

fuzz: setup
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@$(BIN)/python -m tests.fuzz $(NAME) --runs $(RUNS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
