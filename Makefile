# Each target does the set-up it needs; when nothing is missing that costs a fraction of a second.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format lock clean

DEMO ?= .venv/bin/pilotfish demo
TESTS ?= tests
# In this order, so that what is timed does not run while the other half's attacks on a sandbox load the machine.
HALF = tests/tools tests/tasks tests/agent/tui tests/kernels tests/model
REST = tests $(HALF:%=--ignore=%)

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what is missing: system programs, .venv, pinned packages
	@scripts/setup

demo: setup ## Let the model that ships work on a task, here and now
	$(DEMO)

test: lint ## Run the checks of `make lint`, then all tests (TESTS=tests/tools for some)
ifeq ($(TESTS),tests)
	@# Side by side, as one half computes more and the other mostly waits; the first is shown when it has ended. A
	@# shell has what it starts beside itself ignore Ctrl-C, so it is ended by hand. Where at most three tests of
	@# a half fail, in the time that all have, they run once more: what passes then is told, and to be mended.
	@trap 'kill $$half; exit 130' INT; \
	began=$$(date +%s); \
	once_more() { \
	    failed=.setup/$$1/v/cache/lastfailed; \
	    [ $$2 -eq 1 ] && [ $$(($$(date +%s) - began)) -lt 1600 ] && [ -s $$failed ] || return $$2; \
	    [ $$(grep -c '": true' $$failed) -le 3 ] || return $$2; \
	    grep -o '"[^"]*": true' $$failed | sed 's/^"\(.*\)": true/failed, and runs once more: \1/'; \
	    .venv/bin/pytest -o cache_dir=.setup/$$1 --last-failed --last-failed-no-failures none $$3 || return 1; \
	    echo 'That was FLAKY: it failed, and passed the second time. Mend it.'; \
	}; \
	.venv/bin/pytest -o cache_dir=.setup/half $(HALF) >.setup/half.log 2>&1 & half=$$!; \
	.venv/bin/pytest -o cache_dir=.setup/rest $(REST); rest=$$?; \
	wait $$half; first=$$?; cat .setup/half.log; \
	once_more half $$first '$(HALF)'; first=$$?; \
	once_more rest $$rest '$(REST)'; rest=$$?; \
	[ $$first -eq 0 ] && [ $$rest -eq 0 ]
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
