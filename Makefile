# `make` lists the targets. Everything is kept below this directory: .venv, .cache (jars), out (data, logs, reports).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# The matrices are small: threads only get in each other's way.
export OPENBLAS_NUM_THREADS := 1
# Hundreds of short processes would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= python3.11
# Daemons (mosquitto, dockerd) are in directories that are not on everybody's PATH.
export PATH := $(PATH):/usr/sbin:/sbin
BIN := .venv/bin
COMPOSE = python3 -m deploy.compose $(addprefix --profile ,$(PROFILE)) $(if $(PROJECT),--project '$(PROJECT)') \
	$(if $(OPERATORS),--operators '$(OPERATORS)')
MESSAGES := services/tsunagi/runtime/messages
PROTOC := $(BIN)/python -m grpc_tools.protoc -Iproto proto/tsunagi.proto proto/sparkplug_b.proto
LOCK := --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet
ALL_TESTS := tests/unit tests/simulation tests/spark tests/integration tests/e2e tests/browser
TOGETHER := -n 3 --dist loadscope --durations 20  # what mostly waits beside what computes (tests/conftest.py)

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup:  ## virtual environment, locked dependencies, Java (as root on Debian or Ubuntu), jars; nothing when up to date
	@PYTHON='$(PYTHON)' deploy/setup.sh

.PHONY: ready
ready:
	@PYTHON='$(PYTHON)' deploy/setup.sh --quiet

.PHONY: ready-test
ready-test:
	@PYTHON='$(PYTHON)' deploy/setup.sh --quiet --for test

.PHONY: ready-containers
ready-containers:
	@PYTHON='$(PYTHON)' deploy/setup.sh --quiet --for containers

.PHONY: demo
demo: ready  ## stream real readings, kill an edge, a gateway and its successor, check every row; writes out/demo
	@$(BIN)/tsunagi demo

.PHONY: up
up:  ## build and start everything in containers, wait until results flow (PROFILE=alerts|cluster|elastic|ha|mqtt|official|secure PROJECT=folder OPERATORS=folder)
	@$(COMPOSE) up

.PHONY: status
status:  ## containers, slots, owners and positions (PROJECT=folder, as for stop and down)
	@$(COMPOSE) status

.PHONY: stop
stop:  ## stop the containers and keep their data; `make up` goes on
	@$(COMPOSE) stop

.PHONY: down
down:  ## remove what `make up` made: containers, network, volumes with all data (the images stay)
	@$(COMPOSE) down

.PHONY: chaos
chaos: ready  ## disturb what `make up` started and judge its results (ARGS="--target all --fault all --count 42"; docs/howto/chaos.md)
	@$(BIN)/tsunagi chaos $(or $(ARGS),--target gateway --fault kill --count 10)

.PHONY: images
images:  ## build the images only
	@$(COMPOSE) build

.PHONY: secrets
secrets: images  ## make the keys, certificates and passwords of the profile secure, in ./secrets
	@$(COMPOSE) secrets

.PHONY: base-image
base-image:  ## make the images' base by debootstrap (as root), where none can be pulled
	@deploy/base/make.sh

.PHONY: test
test: ready-test lint proto-check types  ## lint, types and every test that needs neither root nor Docker
	@echo "test: pytest $(ALL_TESTS)"
	@$(BIN)/pytest $(TOGETHER) $(ALL_TESTS)

.PHONY: test-unit
test-unit: ready  ## the quick tests without broker and JVM (half a minute)
	@$(BIN)/pytest -n 2 --dist worksteal -m 'not slow' tests/unit

.PHONY: test-simulation
test-simulation: ready  ## the protocols under seeded faults, in virtual time
	@$(BIN)/pytest tests/simulation

.PHONY: simulation
simulation: ready  ## so many fault schedules in virtual time, on all cores (N=10000 SEED=1; a failing one prints its seed)
	@$(BIN)/python -m tests.simulation.run --count $(or $(N),10000) --seed $(or $(SEED),1)

.PHONY: test-queries
test-queries: ready  ## so many generated queries against DuckDB's answers (N=2000 SEED=1000)
	@$(BIN)/python -m tests.unit.query.many --count $(or $(N),2000) --seed $(or $(SEED),1000)
	@$(BIN)/python -m tests.unit.query.many --count $(or $(N),2000) --seed $(or $(SEED),1000) --tuples

.PHONY: fuzz
fuzz: ready  ## records as nobody would write them, against whoever reads, for an hour (SECONDS=3600 SEED=1)
	@$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),3600) --seed $(or $(SEED),1)

.PHONY: mutation
mutation: ready  ## one token changed in a core module, and whether a unit test notices (N=100 of each module, SEED=1; an hour)
	@$(BIN)/python -m tests.mutation.run --count $(or $(N),100) --seed $(or $(SEED),1) $(ARGS)

.PHONY: figures-standby
figures-standby: ready  ## figures 4 to 13 of the A-SAS paper, measured here (ARGS="--experiments 1 --repeat 3"; hours with none)
	@$(BIN)/python -m tests.bench.standby.figures $(ARGS)

.PHONY: figures-recovery
figures-recovery: ready  ## figures 5 to 7 of the recovery paper, and an ablation, measured here (ARGS="--quick"; half an hour with none)
	@$(BIN)/python -m tests.bench.recovery.figures $(ARGS)

.PHONY: figures-psort
figures-psort: ready  ## figure 11 and table 1 of the P-SORT paper, measured here (ARGS="--quick"; half an hour with none)
	@$(BIN)/python -m tests.bench.psort.figures $(ARGS)

.PHONY: figures-scaler
figures-scaler: ready  ## figures 4 to 6 of the ElasticStream paper, measured here (ARGS="--quick"; 25 minutes with none)
	@$(BIN)/python -m tests.bench.scaler.figures $(ARGS)

.PHONY: figures-fleet
figures-fleet: ready-test  ## curves over the number of sensors: CPU, bytes, latency, silence, start (ARGS="--quick"; 20 minutes with none)
	@$(BIN)/python -m tests.bench.fleet_figures $(ARGS)

.PHONY: test-spark
test-spark: ready  ## the Spark job
	@$(BIN)/pytest tests/spark

.PHONY: test-integration
test-integration: ready-test  ## single services on a real broker
	@$(BIN)/pytest tests/integration

.PHONY: test-e2e
test-e2e: ready  ## the whole system: produce, disturb, validate
	@$(BIN)/pytest tests/e2e

.PHONY: test-browser
test-browser: ready-test  ## the console of a running system in a real Chromium
	@$(BIN)/python -m pytest tests/browser

.PHONY: test-containers
test-containers: ready-containers  ## in containers: start, kill each kind, scrape, attack (needs root and a Docker engine)
	@$(BIN)/pytest --durations 20 tests/containers

.PHONY: lint
lint: ready  ## ruff: rules and format; import-linter: the order of the packages
	@echo "test: lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "lint: run \`make format\`" >&2; exit 1; }
	@said=$$($(BIN)/lint-imports --no-cache) || { echo "$$said" >&2; exit 1; }

.PHONY: format
format: ready  ## rewrite the sources as ruff formats them
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

.PHONY: types
types: ready  ## mypy, strict
	@echo "test: types"
	@$(BIN)/mypy

.PHONY: proto
proto: ready  ## generate services/tsunagi/runtime/messages from proto/*.proto
	@$(PROTOC) --python_out=$(MESSAGES) --pyi_out=$(MESSAGES)

.PHONY: proto-check
proto-check: ready  ## fail if `make proto` would change anything
	@echo "test: generated messages"
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; $(PROTOC) --python_out="$$out" --pyi_out="$$out"; \
	for file in tsunagi_pb2.py tsunagi_pb2.pyi sparkplug_b_pb2.py sparkplug_b_pb2.pyi; do \
		diff -q "$$out/$$file" $(MESSAGES)/$$file || { echo "proto: run \`make proto\` and commit the result" >&2; exit 1; }; \
	done

.PHONY: wheel
wheel: ready  ## the packages as a wheel, out/*.whl; `.ci/wheel-install` and `.ci/wheel` try it elsewhere
	@$(BIN)/python -m pip --quiet wheel --no-deps --no-build-isolation --no-index --wheel-dir out .
	@rm -rf build
	@ls out/*.whl

.PHONY: docs
docs: ready  ## write metrics.md, settings.md and topics.md of docs/reference, and tsunagi.toml.example, from the sources
	@$(BIN)/python -m tsunagi.runtime.metrics docs/reference/metrics.md
	@$(BIN)/python -m tsunagi.runtime.settings_page docs/reference/settings.md
	@$(BIN)/python -m tsunagi.runtime.topics_page docs/reference/topics.md
	@$(BIN)/python -m tsunagi.runtime.example tsunagi.toml.example

.PHONY: npm
npm: ready-test  ## copy from npm, as deploy/console/package-lock.json says, what the console's pages use
	@cp .cache/npm/node_modules/uplot/dist/uPlot.iife.min.js .cache/npm/node_modules/uplot/dist/uPlot.min.css \
		.cache/npm/node_modules/uplot/LICENSE services/tsunagi/console/static/uplot/

.PHONY: lock
lock: ready  ## resolve pyproject.toml anew: requirements.lock, and the images' shares of it (needs uv on the PATH)
	@uv pip compile pyproject.toml --all-extras --group dev --upgrade $(LOCK) -o requirements.lock
	@uv pip compile pyproject.toml --constraint requirements.lock $(LOCK) -o deploy/edge/requirements.lock
	@uv pip compile pyproject.toml --extra system --constraint requirements.lock $(LOCK) -o deploy/services/requirements.lock
	@uv pip compile pyproject.toml --extra spark --extra sinks --constraint requirements.lock $(LOCK) -o deploy/spark/requirements.lock

.PHONY: clean
clean:  ## stop what runs here, remove out and the tools' caches (.venv and .cache stay)
	@if [ -d out/run ] && [ -x $(BIN)/tsunagi ]; then $(BIN)/tsunagi down; fi
	@rm -rf out .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	@find services spark deploy tests -name __pycache__ -type d -prune -exec rm -rf {} +
