# Each target sets up the virtual environment it needs, once, and prints a line about it.
#
# PYTHON=python3.12   the interpreter to use (3.11 or newer; default: the first found)
# VENV=.venv          the folder of the virtual environment

VENV ?= .venv
export VENV PYTHON
python := $(VENV)/bin/python

# Without bytecode, each process of the tests and benchmarks would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-unit test-c fuzz test-all test-lowest coverage package screenshots docs lint format bench lock clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS='	' read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

demo: ## Run an agent over a folder, kill it, resume it: DIR=path MODEL=provider:name TURNS=200
	@scripts/setup demo
	@$(python) -m demo $(if $(DIR),--dir '$(DIR)') $(if $(MODEL),--model '$(MODEL)') \
		$(if $(TURNS),--turns '$(TURNS)')

test: ## Run the tests, in six minutes: ARGS='-k name' passes options to pytest
	@scripts/setup test
	@scripts/chromium >/dev/null
	@scripts/services --quick $(python) -m pytest -n 3 --dist worksteal $(ARGS)

test-unit: ## Run the unit tests alone, in a minute, without servers: ARGS as above
	@scripts/setup test
	@$(python) -m pytest -n 2 --dist worksteal tests/unit $(ARGS)

test-c: ## Test and fuzz the C modules under AddressSanitizer and UBSan: RUNS=200000 ARGS as above
	@scripts/setup test
	@scripts/test_c $(ARGS)

fuzz: ## Read mutated bytes with every decoder, for a minute or two: RUNS=1000000 reads more, ARGS='--only value'
	@scripts/setup test
	@PYTHONPATH=tests:tests/golden:. $(python) -m fuzz $(if $(RUNS),--runs $(RUNS)) $(ARGS)

coverage: TESTS ?= tests/unit tests/integration tests/contract
coverage: ## Measure which lines and branches of src the tests reach: TESTS=tests/unit measures some
	@scripts/setup test
	@scripts/chromium >/dev/null
	@mkdir -p build/coverage
	@$(python) -m coverage erase
	-@scripts/services --quick $(python) -m coverage run -m pytest -n 3 --dist worksteal $(TESTS) $(ARGS)
	@$(python) -m coverage combine --quiet
	@$(python) -m coverage report --skip-covered

test-lowest: ## Run a part of the tests on the lowest versions that pyproject.toml allows
	@scripts/lowest $(ARGS)

package: ## Build the packages of a release in dist, check them, and run the README's examples on them
	@scripts/package

test-all: export THREADKEEP_TESTS := full
test-all: test ## Run every case, LangGraph's own tests on every store, and `langgraph dev`
	@scripts/upstream
	@scripts/dev_server

screenshots: ## Take the pictures of the page in docs/images again
	@scripts/setup test
	@scripts/chromium >/dev/null
	@THREADKEEP_TESTS=full THREADKEEP_SCREENSHOTS=1 $(python) -m pytest -q tests/ui/test_screenshots.py

docs: ## Build the documentation as a site in build/docs; a dead link fails
	@scripts/setup docs
	@$(python) -m sphinx -q -W --keep-going -j 2 -d build/docs-cache docs build/docs
	@echo build/docs/index.html

lint: ## Check style (ruff, mdformat), spelling (codespell) and types (mypy --strict)
	@scripts/setup lint
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mdformat --check CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md docs
	@$(python) -m codespell_lib
	@$(python) -m mypy

format: ## Put the code into the house style
	@scripts/setup lint
	@$(python) -m ruff check --fix --quiet . ; $(python) -m ruff format . ; $(python) -m mdformat CHANGELOG.md CONTRIBUTING.md README.md SECURITY.md docs

# The servers of each comparison: threadkeep on Redis is compared with LangGraph on PostgreSQL.
servers_postgres := postgres
servers_redis := redis,postgres
servers_mysql := mysql,postgres

bench: ## Measure against LangGraph's own savers: DATA=conversations.jsonl.gz BACKEND=postgres|redis|mysql SUITE=threads|short ARGS='--quick'
	@scripts/setup bench
	@$(if $(servers_$(BACKEND)),scripts/services --only $(servers_$(BACKEND))) $(python) -m bench \
		$(if $(BACKEND),--backend '$(BACKEND)') $(if $(SUITE),--suite '$(SUITE)') $(if $(DATA),--data '$(DATA)') $(ARGS)

lock: ## Write requirements/ again: UPGRADE=1 takes the newest versions
	@scripts/lock

clean: ## Remove all files that make created
	rm -rf $(VENV) build dist .demo bench/results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests demo bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
