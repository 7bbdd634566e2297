# Everything a developer does. `make` alone lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-spark41 demo notebooks docs package test test-cluster test-s3 test-profiles test-deep conformance soak
.PHONY: bench-landing bench-quick bench-short bench-tables record lint clean lock

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
STAMP := $(VENV)/.installed
SPARK41 := .cdc_lake/spark41
SPARK41_STAMP := $(SPARK41)/.installed
COMPILE = $(UV) pip compile --no-config --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

export PATH := $(abspath $(BIN)):$(PATH)
unexport VIRTUAL_ENV

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv with everything in it, and fetch the jars (a minute at first, then seconds)
	@cdc-lake jars fetch --quiet

demo: setup ## Run the whole way once: database, change events, tables, proof (TABLE_TYPE=hudi-cow, hudi-mor)
	cdc-lake demo $(if $(TABLE_TYPE),--table-type $(TABLE_TYPE))

notebooks: setup ## Execute the notebooks on the lake that `make demo` left, and draw the pictures of the docs
	python -m notebooks

docs: setup ## Build the documentation in site/ (no network; a broken link is an error)
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "open site/index.html"

package: setup ## Make what a cluster needs in dist/: jobs, Python packages, jars, a plan of what goes where
	cdc-lake package

setup-spark41: setup $(SPARK41_STAMP) ## Make the environment of Spark 4.1 beside it, which `make test` needs
	@$(SPARK41)/bin/cdc-lake jars fetch --quiet --profile spark41

test: setup setup-spark41 ## Run all tests, three files of them at a time
	pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-cluster: setup ## Run the demo from a package, on Spark as it comes and on a cluster that loses a worker (an hour)
	pytest -m deep -s -v tests/servers/test_elsewhere.py -k 'package or cluster'

test-s3: setup ## Run the demo with its lake on S3, as moto's server plays it (half an hour)
	pytest -m deep -s -v tests/servers/test_elsewhere.py -k s3

test-deep: setup ## Run the tests that are too long for every change (hours)
	pytest -m deep

test-profiles: setup setup-spark41 ## Run the suites with the versions of each profile, and write docs/reference/compatibility.md
	python -m tests.profiles

conformance: setup ## Check silver against every log of the conformance kit, in every way of cutting it
	for type in delta hudi-cow hudi-mor; do for deletes in hard soft; do for split in none each all-pairs; do \
		python -m tests.conformance --table-type $$type --deletes $$deletes --split $$split; done; done; done

soak: setup ## Run bronze and silver without end, for ten minutes: what they hold must not grow
	pytest -m deep -s tests/servers/test_soak.py

bench-landing: setup ## Measure what bronze costs beside the least that any landing does (7 minutes)
	python -m benchmarks.landing

bench-tables: setup ## Measure silver in Delta beside Hudi's table types
	python -m benchmarks.tables

bench-short: setup ## Measure runs that have little to do, or nothing (12 minutes)
	python -m benchmarks.short

bench-quick: setup ## Measure a million events beside the textbook way (12 minutes)
	python -m benchmarks.quick

record: setup ## Record anew what real converters send: tests/fixtures/recorded (4 minutes)
	python -m tests.record

lint: setup ## Check format, style and types
	ruff format --check .
	ruff check .
	mypy

clean: ## Remove the environment and all that runs leave here (not the jar cache)
	@! test -x $(BIN)/cdc-lake || $(BIN)/cdc-lake stack down --delete
	rm -rf $(VENV) .cdc_lake site .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: $(STAMP) ## Choose the newest allowed versions anew and write requirements/*.txt
	$(COMPILE) --extra spark35 --extra demo --extra notebooks --extra docs --extra dev pyproject.toml --output-file requirements/local.txt
	$(COMPILE) --extra spark41 --extra demo --extra notebooks --extra dev pyproject.toml --output-file requirements/spark41.txt
	for spark in spark35 spark41; do $(COMPILE) --extra $$spark --extra aws --extra metrics --extra msk --extra reconcile --no-emit-package pyspark --no-emit-package py4j \
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

$(SPARK41_STAMP): $(STAMP) requirements/spark41.txt
	@test -x $(SPARK41)/bin/python || $(UV) venv --no-config --quiet --python $(BIN)/python $(SPARK41)
	$(UV) pip install --no-config --quiet --python $(SPARK41) --require-hashes --requirement requirements/uv.txt
	$(UV) pip sync --no-config --quiet --python $(SPARK41) --require-hashes --no-build-isolation requirements/spark41.txt
	$(UV) pip install --no-config --quiet --python $(SPARK41) --no-deps --no-build-isolation --editable .
	@touch $@
