# Two commands for a new user: `make demo` and `make test`. Both set everything up first.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
BENCH_STAMP := $(VENV)/.bench-ready

.PHONY: help setup demo quick test check lint types contracts bench campaign chaos docs lock clean

help:           ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*##/\t/' | expand -t 14

$(STAMP): requirements/dev.lock pyproject.toml scripts/setup
	@scripts/setup $(VENV)
	@touch $(STAMP)

setup: $(STAMP) ## create .venv, install the pinned set and what the system lacks

demo: setup     ## run a network on three sites, break it, see that nothing is lost
	@$(BIN)/tidings demo

unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: compiled, each starts in half a second less
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadgroup
PURE := tests/core tests/scenarios/file tests/scenarios/trace
quick: setup    ## within a minute: the pure core, scenario files and traces, with few examples, to the first failure
	@TIDINGS_TESTS=quick $(PYTEST) -n 2 -q -x -m "not spark and not slow and not campaign" $(PURE)

test: setup     ## every test; more seeds and examples of them are in `campaign`
	@$(PYTEST)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

contracts: setup
	@$(BIN)/lint-imports --no-cache

check: setup    ## what CI runs
	@$(MAKE) --no-print-directory --output-sync -j3 lint types contracts
	@$(MAKE) --no-print-directory test

$(BENCH_STAMP): $(STAMP) benchmarks/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r benchmarks/requirements.txt
	@touch $(BENCH_STAMP)

bench: $(BENCH_STAMP) ## the benchmarks behind benchmarks/README.md
	@for b in matching simulator live requests work sleeper overlay_graph overlay coding recovery ordering ordering_live archive spark audit; do $(BIN)/python benchmarks/$$b.py || exit 1; done

SEEDS ?= 0:1000000
campaign: setup ## the breadth that `test` leaves out, then durable subscriptions and the guaranteed overlay on Spark: SEEDS=A:B, a million by default
	@TIDINGS_TESTS=campaign $(PYTEST) -m "campaign or hypothesis"
	@TIDINGS_PAPER_SCALE=4 LIVE_SEEDS="1 2 3 4" TIDINGS_KILLS=4 $(PYTEST) \
		tests/papers/test_polarized.py tests/papers/test_partitions_live.py tests/spark/test_exactly_once.py
	@$(BIN)/python -m tidings.lab.spark_campaign --kind shares --seeds $(SEEDS) --out out/shares
	@$(BIN)/python -m tidings.lab.start_campaign --seeds 0:10000
	@$(BIN)/python -m tidings.lab.peers_campaign --seeds 0:10000
	@$(BIN)/python -m tidings.lab.share_campaign --starts --seeds 0:5000
	@$(BIN)/python -m tidings.lab.share_campaign --starts --moves --seeds 0:5000
	@$(BIN)/python -m tidings.lab.spark_campaign --seeds $(SEEDS) --out out/campaign

SECONDS_OF_CHAOS ?= 600
chaos: setup    ## kill workers and brokers at random under load, for ten minutes: SECONDS_OF_CHAOS=N
	@$(BIN)/python -m tidings.lab.chaos --seconds $(SECONDS_OF_CHAOS)

docs: setup     ## the manual, into site/
	@$(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

COMPILE := uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11
lock:           ## renew requirements/dev.lock and benchmarks/requirements.txt (needs uv)
	$(COMPILE) --extra dev --extra all -o requirements/dev.lock pyproject.toml
	$(COMPILE) --constraint requirements/dev.lock -o benchmarks/requirements.txt benchmarks/requirements.in

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
