# The whole developer interface; `make` alone lists the targets.
# Extra arguments for a target go in ARGS:  make test ARGS="-k claim -x"

VENV := .venv
BIN  := $(VENV)/bin
CORE := $(VENV)/.core-installed
DEV  := $(VENV)/.dev-installed
PEERS := $(VENV)/.peers-installed
PIP  := -m pip --disable-pip-version-check -qq
ARGS ?=
# The tests start hundreds of Python programs; without stored bytecode each compiles all modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-long test-all test-cluster test-api mutants matrix faults age check bench bench-peers bench-postgres bench-jetstream bench-flow load format docs constraints release-check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(CORE) ## Watch jobs run, fail, retry and survive a crash (ARGS=--keep keeps the files)
	@$(BIN)/trellis demo $(ARGS)

test: $(DEV) ## Run the tests, PostgreSQL 18 only, about 4 minutes (ARGS="-k word" for some)
	@$(BIN)/python -m pytest -n 3 --dist worksteal -q --durations=15 -m "not long" tests $(ARGS)

test-long: $(DEV) ## Run all other tests: random lives, crashes, campaigns, PostgreSQL 16
	@$(BIN)/python -m pytest -n 3 --dist worksteal -q --durations=15 -m long --hypothesis-profile=ci tests $(ARGS)

test-cluster: $(DEV) ## Run the conformance suite and outages on three NATS nodes, about 13 minutes
	@TRELLIS_TEST_NATS_NODES=3 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/engines/jetstream/test_conformance.py tests/engines/jetstream/test_cluster_loss.py $(ARGS)

test-api: $(DEV) ## Send 5,000 requests made from the OpenAPI document, 7 minutes (ARGS="--seed 2")
	@$(BIN)/python -m tests.server.fuzzing $(ARGS)

mutants: $(DEV) ## Run the whole suite on each mutant, hours (ARGS="--engine sqlite --only audit")
	@$(BIN)/python -m tests.conformance.whole_suite $(ARGS)

matrix: ## Run all tests on every Python from 3.11 to 3.14 that is installed
	@failed=; for version in 3.11 3.12 3.13 3.14; do \
	  if ! python$$version -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    echo "Python $$version: skipped, python$$version is not installed or has no venv module"; \
	    continue; \
	  fi; \
	  echo "Python $$version: all tests"; \
	  $(MAKE) --no-print-directory test-all PYTHON=python$$version VENV=.matrix/$$version || \
	    failed="$$failed $$version"; \
	done; \
	if test -n "$$failed"; then echo "Failed on Python$$failed" >&2; exit 1; fi

test-all: $(DEV)
	@$(BIN)/python -m pytest -n 3 --dist worksteal -q --durations=15 --hypothesis-profile=ci tests $(ARGS)

faults: $(DEV) ## Kill, stop and end workers for ten minutes and check what is left (ARGS="--on jetstream")
	@$(BIN)/python -m tests.harness.faults $(ARGS)

age: $(DEV) ## See that claims stay flat on a large, old PostgreSQL, 30 minutes (ARGS="--hold 60")
	@$(BIN)/python -m tests.harness.age $(ARGS)

check: $(DEV) ## Check layout, lint, types, layers, generated docs, sizes and words
	@echo "layout: ruff format"
	@$(BIN)/ruff format --check .
	@echo "lint: ruff check"
	@$(BIN)/ruff check .
	@echo "types: mypy"
	@$(BIN)/mypy
	@echo "layers: import-linter"
	@$(BIN)/lint-imports --no-logo
	@echo "docs: generated pages are current"
	@$(BIN)/python -m tools.generate_docs --check
	@echo "sizes: files and functions stay small"
	@$(BIN)/python -m tools.check_sizes
	@echo "words: the prose stays plain"
	@$(BIN)/python -m tools.check_words
	@$(BIN)/python -m tools.files_per_job

bench: $(PEERS) ## Measure it beside bare statements and Huey, 4 minutes (ARGS=--quick tries it)
	@$(BIN)/python -m bench $(ARGS)

bench-peers: $(DEV) ## Measure it on PostgreSQL beside its peers, 40 minutes (ARGS=--quick tries it)
	@$(BIN)/python -m bench.peers.install
	@$(BIN)/python -m bench.peers $(ARGS)

bench-postgres: $(DEV) ## Measure what each guarantee and growing cost, 8 minutes (ARGS=--quick)
	@$(BIN)/python -m bench.postgres $(ARGS)

bench-jetstream: $(DEV) ## Measure it on NATS beside bare nats-py and taskiq-nats, 6 minutes (ARGS=--quick, --growth)
	@$(BIN)/python -m bench.jetstream $(ARGS)

bench-flow: $(DEV) ## Measure what limits, tenants and one large batch cost, 4 minutes (ARGS=--quick)
	@$(BIN)/python -m bench.flow $(ARGS)

load: $(DEV) ## Run 200 remote workers and 200 streams on one server, 2 minutes (ARGS="--jobs 500")
	@$(BIN)/python -m bench.load $(ARGS)

format: $(DEV) ## Format the code and apply the safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(DEV) ## Regenerate the generated documentation
	@$(BIN)/python -m tools.generate_docs

constraints: ## Pin the newest versions of everything in constraints.txt
	@$(find_python); \
	echo "Resolving the newest versions"; \
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	"$$python" -m venv "$$scratch" && \
	"$$scratch/bin/python" $(PIP) install -e '.[dev]' && \
	"$$scratch/bin/python" $(PIP) freeze --exclude-editable > "$$scratch/frozen" && \
	{ echo '# Every version of the development install, made by `make constraints`; do not edit.'; \
	  LC_ALL=C sort -f "$$scratch/frozen"; } > "$$scratch/constraints.txt" && \
	cp "$$scratch/constraints.txt" constraints.txt

release-check: $(DEV) ## Build the distributions, install the wheel elsewhere, run hello and the demo
	@$(BIN)/python tools/check_release.py

clean: ## Remove the virtual environment, caches and build results
	@rm -rf $(VENV) .matrix .peers build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the virtual environment -----------------------------------------------------------------
# The stamps say what is installed; $(CORE) also says where. Without a stamp that names this very
# folder (a moved checkout, an interrupted set-up, a removed interpreter) the set-up starts over.
$(shell test -x $(BIN)/python && grep -qsxF '$(CURDIR)' $(CORE) || rm -f $(CORE) $(DEV) $(PEERS))

# Sets $python to the first interpreter that will do, or says in one sentence what to install.
define find_python
python=; bare=; \
for name in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11 python3 python; do \
  test -n "$$name" || continue; \
  "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
  if "$$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then python=$$name; break; fi; \
  bare=$${bare:-$$name}; \
done; \
if test -z "$$python" && test -n "$$bare"; then \
  version=$$("$$bare" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
  echo "$$bare comes without its venv module: install it (on Debian and Ubuntu: apt install python$$version-venv), then run make again." >&2; \
  exit 1; \
elif test -z "$$python"; then \
  echo "Trellis needs Python 3.11 or later and found none: install one, or name yours with make PYTHON=/path/to/python3." >&2; \
  exit 1; \
fi
endef

$(CORE): pyproject.toml constraints.txt
	@set -e; if ! test -f $@; then \
	  $(find_python); \
	  echo "Creating $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV); \
	fi; \
	echo "Installing Trellis"; \
	$(BIN)/python $(PIP) install -c constraints.txt -e .; \
	echo '$(CURDIR)' > $@

$(DEV): $(CORE)
	@echo "Installing the development tools"
	@$(BIN)/python $(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

# Without its peers the benchmark still runs, and says in their rows that they are not installed.
$(PEERS): $(CORE)
	@echo "Installing what the benchmark compares with"
	@if $(BIN)/python $(PIP) install -c constraints.txt -e '.[bench]'; then touch $@; fi
