# Every target works on a fresh machine with Python ≥ 3.11, make and git. It first builds .venv if that is missing
# or older than pyproject.toml or constraints.txt.

PYTHON ?= python3
PY := .venv/bin/python
STAMP := .venv/installed

.PHONY: help test test-all check demo docs format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@echo "Building .venv with the tested versions: about 5.5 GB and 3 to 5 minutes, most of it torch."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=…"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[all,dev,docs]'
	@touch $(STAMP)

PYTEST := $(PY) -m pytest -n auto --durations=15

test: $(STAMP) ## the tests, except the slow ones
	$(PYTEST) --dist loadfile -m "not slow"

test-all: $(STAMP) ## the slow tests
	$(PYTEST) --dist worksteal -m slow

check: $(STAMP) ## ruff, mypy, the layers of imports, and the tables in README and docs
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-cache
	$(PY) docs/publish/fill.py --check

demo: $(STAMP) ## compare TransNet with a plain network on digits, under two minutes
	.venv/bin/transnet demo

docs: $(STAMP) ## build the documentation in site/; a warning is an error
	$(PY) -m mkdocs build --strict
	@echo "Open site/index.html, or with search: $(PY) -m http.server --directory site"

format: $(STAMP) ## format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean: ## remove the environment, the site and caches
	rm -rf .venv site .mypy_cache .ruff_cache .hypothesis .import_linter_cache
