# Each target does the set-up it needs; when nothing is missing that costs a fraction of a second.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format lock clean

DEMO ?= .venv/bin/pilotfish demo
TESTS ?= tests
# In this order, so that what is timed does not run while the other half's attacks on a sandbox load the machine.
HALF = tests/tools tests/tasks tests/agent/tui tests/kernels tests/model

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what is missing: system programs, .venv, pinned packages
	@scripts/setup

demo: setup ## Let the model that ships work on a task, here and now
	$(DEMO)

test: lint ## Run the checks of `make lint`, then all tests (TESTS=tests/tools for some)
ifeq ($(TESTS),tests)
	@# Side by side, as one half computes more and the other mostly waits; the first is shown when it has ended. A
	@# shell has what it starts beside itself ignore Ctrl-C, so it is ended by hand.
	trap 'kill $$half; exit 130' INT; \
	.venv/bin/pytest $(HALF) >.setup/half.log 2>&1 & half=$$!; \
	.venv/bin/pytest tests $(HALF:%=--ignore=%); status=$$?; \
	wait $$half || status=1; cat .setup/half.log; exit $$status
else
	.venv/bin/pytest $(TESTS)
endif

lint: setup ## Check style, formatting, types and which room imports which
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy -p pilotfish
	.venv/bin/lint-imports --no-logo

format: setup ## Let ruff mend what it can
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

lock: setup ## Pin the dependencies of pyproject.toml (remove requirements.lock first to take the newest of each)
	.venv/bin/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 \
	    --no-annotate --custom-compile-command "make lock" --quiet --output-file requirements.lock

clean: ## Remove .venv, caches and build leftovers (not runs/)
	rm -rf .venv .setup build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
