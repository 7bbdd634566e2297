# Developer commands. `make` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-spark41 setup-browser archive demo demo-full notebooks docs wheel package test test-rest test-all test-cluster test-s3 test-profiles test-deep conformance soak
.PHONY: bench-fresh bench-growth bench-landing bench-profile bench-quick bench-short bench-tables record lint clean lock

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
STAMP := $(VENV)/.installed
ARCHIVE_STAMP := $(VENV)/.archived
SPARK41 := .cdc_lake/spark41
SPARK41_STAMP := $(SPARK41)/.installed
BROWSER := .cdc_lake/browser
BROWSER_STAMP := $(BROWSER)/.installed
COMPILE = $(UV) pip compile --no-config --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
PYTEST = pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder $(if $(TEST_RESULTS),--results=$(TEST_RESULTS))

PROCESSES := 3

export PATH := $(abspath $(BIN)):$(PATH)
unexport VIRTUAL_ENV
# Like pip, uv trusts the certificate authorities of the system, for example a company's own.
export UV_SYSTEM_CERTS := true
# Without bytecode, each process compiles its 900 modules again, which takes more than a CPU second.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Create .venv with all packages, and fetch the jars
	@cdc-lake jars fetch --quiet

archive: setup $(ARCHIVE_STAMP) ## Archive Spark's classes for faster starts (a minute)

demo: setup ## Run the demo, for example with TABLE_TYPE=iceberg-mor
	cdc-lake demo $(if $(TABLE_TYPE),--table-type $(TABLE_TYPE))

demo-full: setup ## Run the demo with 14 tables that change all the time
	cdc-lake demo --full $(if $(TABLE_TYPE),--table-type $(TABLE_TYPE))

notebooks: setup ## Execute the notebooks on the full demo's lake
	python -m notebooks $(if $(PICTURES),--pictures)

docs: setup ## Build the documentation in site/
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "open site/index.html"

wheel: setup ## Build a wheel in dist/, to install without the clone
	$(UV) build --no-config --quiet --wheel --no-build-isolation --out-dir dist
	@echo "pip install '$$(ls $(CURDIR)/dist/*.whl)[demo]'"

package: setup ## Build a package for clusters in dist/
	cdc-lake package

setup-spark41: setup $(SPARK41_STAMP) ## Create the Spark 4.1 environment for tests
	@$(SPARK41)/bin/cdc-lake jars fetch --quiet --profile spark41

setup-browser: $(BROWSER_STAMP) ## Install Chromium for tests, by npm (200 MB)

test: PROCESSES := 2
test: archive ## Run the core tests (8 minutes)
	$(PYTEST) -m core

test-rest: archive setup-spark41 setup-browser ## Run the tests that `make test` leaves out (25 minutes)
	$(PYTEST) -m 'not deep and not core'

test-all: archive setup-spark41 setup-browser ## Run both in one go (30 minutes)
	$(PYTEST)

test-cluster: setup ## Run the demo from a package and on a cluster (an hour)
	pytest -m deep -s -v tests/servers/test_packages.py -k 'package or cluster'

test-s3: setup ## Run the demo with its lake on S3, by moto (30 minutes)
	pytest -m deep -s -v tests/servers/test_packages.py -k s3

test-deep: setup ## Run the tests that are too slow for every change (hours)
	pytest -m deep

test-profiles: setup setup-spark41 ## Run the Spark suites with each profile (90 minutes)
	python -m tests.profiles

conformance: setup ## Run every log of the conformance kit in every cut (hours)
	for type in delta hudi-cow hudi-mor iceberg-cow iceberg-mor; do for deletes in hard soft; do for split in none each all-pairs; do \
		python -m tests.conformance --table-type $$type --deletes $$deletes --split $$split; done; done; done

soak: setup ## Run bronze and silver for ten minutes; check for leaks
	pytest -m deep -s tests/servers/test_soak.py

bench-landing: setup ## Compare bronze with a minimal landing job (7 minutes)
	python -m benchmarks.landing

bench-tables: setup ## Compare silver in Delta, Hudi and Iceberg
	python -m benchmarks.tables

bench-short: setup ## Measure runs with few or no new records (13 minutes)
	python -m benchmarks.short

bench-profile: setup ## Show where CPU time goes: stages, threads, phases
	python -m benchmarks.profile

bench-growth: setup ## Merge into tables of a million rows, and of ten (15 minutes)
	python -m benchmarks.growth

bench-fresh: setup ## Measure seconds from an insert to its row in silver (5 minutes)
	python -m benchmarks.fresh

bench-quick: setup ## Compare cdc_lake with a textbook pipeline (8 minutes)
	python -m benchmarks.quick

record: setup ## Record what converters send, for the tests (4 minutes)
	python -m tests.record

lint: setup ## Check format, style and types
	ruff format --check .
	ruff check .
	mypy

clean: ## Delete the environment and all output; keep the jar cache
	@! test -x $(BIN)/cdc-lake || $(BIN)/cdc-lake stack down --delete
	rm -rf $(VENV) .cdc_lake site notebooks/executed .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: $(STAMP) ## Update requirements/*.txt to the newest allowed versions
	$(COMPILE) --extra spark35 --extra demo --extra notebooks --extra report --extra docs --extra dev pyproject.toml --output-file requirements/local.txt
	$(COMPILE) --extra spark41 --extra servers --extra notebooks --extra report --extra dev pyproject.toml --output-file requirements/spark41.txt
	for spark in spark35 spark41; do $(COMPILE) --extra $$spark --extra aws --extra lineage --extra metrics --extra msk --extra reconcile --no-emit-package pyspark --no-emit-package py4j \
		--constraint requirements/$${spark/spark35/local}.txt pyproject.toml --output-file requirements/cluster-$$spark.txt; done
	printf 'setuptools\nuv\n' | $(COMPILE) --constraint requirements/local.txt - --output-file requirements/uv.txt

$(STAMP): pyproject.toml requirements/uv.txt requirements/local.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make setup: python3 is $$(python3 -V 2>&1 || true); install Python 3.11 or newer and put it first on PATH" >&2; exit 1; }
	@test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/uv.txt
	$(UV) pip sync --no-config --quiet --require-hashes --no-build-isolation requirements/local.txt
	$(UV) pip install --no-config --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(ARCHIVE_STAMP): $(STAMP) $(wildcard conf/jars/*.lock) | setup
	@cdc-lake jars archive
	@touch $@

$(SPARK41_STAMP): $(STAMP) requirements/spark41.txt
	@test -x $(SPARK41)/bin/python || $(UV) venv --no-config --quiet --python $(BIN)/python $(SPARK41)
	$(UV) pip install --no-config --quiet --python $(SPARK41) --require-hashes --requirement requirements/uv.txt
	$(UV) pip sync --no-config --quiet --python $(SPARK41) --require-hashes --no-build-isolation requirements/spark41.txt
	$(UV) pip install --no-config --quiet --python $(SPARK41) --no-deps --no-build-isolation --editable .
	@touch $@

$(BROWSER_STAMP): tests/browser/package-lock.json
	rm -rf $(BROWSER) && mkdir -p $(BROWSER) && cp tests/browser/package*.json $(BROWSER)
	cd $(BROWSER) && npm ci --ignore-scripts --no-audit --no-fund --loglevel error
	cd $(BROWSER) && TMPDIR=$$PWD node --input-type=module -e 'import { inflate } from "@sparticuz/chromium";for (const file of process.argv.slice(1)) await inflate(file)' node_modules/@sparticuz/chromium/bin/{chromium,al2023.tar}.br
	@touch $@
