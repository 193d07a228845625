# On a fresh Debian or Ubuntu machine two commands are enough:  make demo   make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SUDO   := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
NAME   ?= all
RUNS   ?= 1000000
# What does not wait for each other is installed and checked side by side.
MAKEFLAGS += -j3
# With it each of a thousand programs of the tests would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test drawing test-all test-deps bench drill fuzz bpf lint lint-types lint-rest setup schema clean help
help:
	@echo "make demo                        run the main job on the emulated lab (about a minute)"
	@echo "make test                        all tests except the long ones, linters and type checks included"
	@echo "make test-all                    all tests"
	@echo "make lint                        ruff, mypy, ansible-lint and the import contracts"
	@echo "make bench [NAME=...]            measure what docs/reference/benchmarks.md says"
	@echo "make drill [NAME=...]            crashes and faults, in full (hours)"
	@echo "make fuzz [NAME=...] [RUNS=...]  hostile input"
	@echo "make bpf                         compile the BPF programs of hosts again (clang, llvm-strip, libbpf-dev)"
	@echo "make setup                       the virtual environment; make clean removes it and all caches"

setup: $(VENV)/.ready

# Jobs run as a user of their own, who reads the packages too: whatever the umask is. All processors compile them, without their tests.
$(VENV)/.ready: pyproject.toml constraints.txt scripts/install-deps
	@PYTHON=$(PYTHON) scripts/install-deps
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	umask 022 && $(PYTHON) -m venv $(VENV)
	umask 022 && $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@umask 022 && $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(abspath $(VENV))/lib || true
	@touch $@

demo: setup
	@$(SUDO) $(BIN)/python examples/demo.py

test: setup test-deps lint frontend
	@$(SUDO) $(BIN)/python -m pytest -n $$(($$(nproc) + 2)) || { [ $$? = 1 ] && echo "what failed beside other tests is repeated alone" && \
		$(SUDO) $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures=none; }

# curl is a referee of HTTP; a C compiler makes a stand-in for NVML; libatomic1 is linked by the Node that drives Chromium.
test-deps:
	@scripts/install-deps curl gcc influxdb libatomic1 libc6-dev
	@scripts/install-deps victoria-metrics || echo "no VictoriaMetrics: the InfluxDB 2 write API will not be tested"
	@scripts/install-deps chromium || echo "no Chromium: the page of testbed ui will not be tested"

# Includes the long end-to-end tests (half an hour on two cores).
test-all: setup test-deps lint frontend drawing
	@$(SUDO) $(BIN)/python -m pytest -n 2 -m "long or not long"

# Grafana's own data library, for the dashboards' tests. npm is silent, and would make input and output non-blocking for all jobs of make
# at once, which Ansible refuses. Node is a development package, because the library needs a newer one than Debian 12 has.
FRONTEND := tests/dashboards/node
frontend: $(FRONTEND)/node_modules/.ready

$(FRONTEND)/node_modules/.ready: $(FRONTEND)/package-lock.json $(FRONTEND)/.npmrc | setup
	@cd $(FRONTEND) && NODE_OPTIONS=--use-system-ca $(abspath $(BIN))/npm ci --silent --fetch-retries=1 </dev/null >/dev/null 2>&1 && touch node_modules/.ready || echo "npm ci failed: Grafana's data library will not be tested"

# Grafana's drawing: 420 MB, for the long tests and for `python -m benchmarks.dashboard_pictures`.
DRAWING := tests/dashboards/draw
drawing: $(DRAWING)/node_modules/.ready

$(DRAWING)/node_modules/.ready: $(DRAWING)/package-lock.json $(DRAWING)/.npmrc | setup
	@cd $(DRAWING) && NODE_OPTIONS=--use-system-ca $(abspath $(BIN))/npm ci --silent --fetch-retries=1 </dev/null >/dev/null 2>&1 && touch node_modules/.ready || echo "npm ci failed: no panel will be drawn by Grafana's library"

lint: lint-types lint-rest

lint-types: setup
	@$(BIN)/mypy -n auto
	@$(BIN)/mypy --python-version 3.10 $(addprefix -p ,agent $(subst /,.,$(wildcard extensions/*/host)))

lint-rest: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/ansible-lint -q playbooks/provision.yml playbooks/collections

bench: setup
	@scripts/install-deps mininet
	@scripts/install-deps python3-simgrid || echo "no SimGrid: second_opinion will be skipped"
	@$(SUDO) $(BIN)/python -m benchmarks $(NAME)

drill: setup
	@$(SUDO) $(BIN)/python -m tests.drills $(NAME)

# The object is in the repository: nothing else needs a compiler. Debian 12: apt-get install clang-14 llvm-14 libbpf-dev
CLANG ?= clang-14
STRIP ?= llvm-strip-14
bpf:
	for code in extensions/*/host/bpf/*.bpf.c; do (cd $${code%/*} && name=$$(basename $$code .c) && \
	  $(CLANG) -target bpf -mcpu=v3 -O2 -g -Wall -Werror -ffile-prefix-map="$$PWD/"= -c $$name.c -o $$name.o && $(STRIP) -g $$name.o) || exit 1; done

fuzz: setup
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@$(BIN)/python -m tests.fuzz $(NAME) --runs $(RUNS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
