# Every target makes .venv on first use, and again when pyproject.toml or constraints.txt change.
# ARGS goes to the command:  make test ARGS="-k session"   make bench ARGS="--help"

PYTHON ?= $(shell command -v python3.11 || command -v python3)
JAVA   := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
BIN    := .venv/bin
STAMP  := .venv/.installed
ARGS   ?=
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup java test test-core soak chaos lint bench bench-core bench-spark bench-nodes bench-against flink docs demo clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: java $(STAMP) ## make .venv with all extras, and see that there is a Java for Spark

test: java lint ## lint, then all tests
	$(PYTEST) $(ARGS)

test-core: $(STAMP) ## the core's own tests: no Java, browser, broker, tree, pages or benchmarks; a minute
	$(PYTEST) -m "not spark and not browser and not nodes and not mqtt" \
	  --ignore=tests/test_readme.py --ignore=tests/test_examples.py --ignore=tests/test_bench.py \
	  --ignore=tests/test_cli.py --ignore=tests/test_soak.py $(ARGS)

soak: java $(STAMP) ## what draws at random, with fresh seeds until the time is up; ARGS="--minutes 30"
	$(BIN)/python tests/soak.py $(ARGS)

chaos: $(STAMP) ## trees of processes in storms, compared with DuckDB; ARGS="--minutes 60 --kills 500"
	$(BIN)/python tests/chaos.py $(ARGS)

lint: $(STAMP) ## ruff (rules and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

bench: java $(STAMP) ## the papers' experiments, quickly: ten minutes; ARGS="all" for the full size
	$(BIN)/python -m bench $(or $(ARGS),all --quick)

bench-core: $(STAMP) ## measure the core
	$(BIN)/python bench/core.py $(ARGS)

bench-spark: java $(STAMP) ## measure it on Spark, beside Spark's own windows
	$(BIN)/python bench/spark.py $(ARGS)

bench-nodes: $(STAMP) ## measure a tree of nodes
	$(BIN)/python bench/nodes.py $(ARGS)

bench-against: java $(STAMP) ## measure this tree beside another commit; ARGS="core main --check"
	$(BIN)/python bench/against.py $(ARGS)

flink: java .venv-flink/.installed ## put Flink, beside which bench can measure, into .venv-flink

docs: $(STAMP) ## make docs/api.md from the docstrings, and the table of functions in docs/sql.md
	$(BIN)/python docs/api.py $(ARGS)
	$(BIN)/python docs/sql_functions.py $(ARGS)

demo: java $(STAMP) ## see it work: real flights on Spark, about a minute
	$(BIN)/windrow demo $(ARGS)

clean: ## remove .venv, .venv-flink, caches and build output
	rm -rf .venv .venv-flink build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "windrow needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making .venv, about a minute"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  -e '.[spark,nodes,demo,sketches,bench,dev]' -c constraints.txt
	@touch $@

.venv-flink/.installed:
	@echo "making .venv-flink, some minutes"
	@$(PYTHON) -m venv --clear .venv-flink
	@.venv-flink/bin/python -m pip install -qq --disable-pip-version-check apache-flink==2.3.0
	@touch $@

# Spark 4 runs on Java 17 or newer. Only root on a machine with apt has it installed here; others are told.
java:
	@major() { $(JAVA) -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }; \
	test "$$(major | grep . || echo 0)" -ge 17 && exit 0; \
	if test -z "$(JAVA_HOME)" && test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	  echo "installing openjdk-17-jre-headless for Spark"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null; \
	fi; \
	test "$$(major | grep . || echo 0)" -ge 17 && exit 0; \
	echo "Spark needs Java 17 or newer, and '$(JAVA)' is not: install openjdk-17-jre-headless or set JAVA_HOME" >&2; \
	exit 1
