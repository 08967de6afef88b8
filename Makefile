# `make help` lists what there is. Everything that is built or fetched goes to the cache outside of the clone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export MILLRACE_CACHE ?= $(HOME)/.cache/millrace
export CARGO_TARGET_DIR ?= $(MILLRACE_CACHE)/target
MILLRACE := $(CARGO_TARGET_DIR)/release/millrace
STEP := tests/setup/step.sh
# RocksDB and Kafka sync their files at every start, and tests start many: in memory where that is possible.
SCRATCH := $(if $(wildcard /dev/shm/.),/dev/shm,/tmp)
# Tests on a real broker wait most of their time, so more of them run at once than there are cores.
TEST_THREADS := 4
# One profile for everything, so that RocksDB and DataFusion are compiled once.
CARGO_TEST := cargo test --locked --release --workspace

.PHONY: help setup build kubernetes image demo demo-kafka demo-cluster cluster-up cluster-down test test-parts test-long \
	bench fmt

help:
	@echo 'make setup      install what a build needs and this machine lacks'
	@echo 'make demo       the main job on live data, killed and restarted, then the flights of 2013'
	@echo 'make demo-kafka the main job on a real Kafka with live orders, killed with SIGKILL, its output counted'
	@echo 'make demo-cluster the chart on a real Kubernetes with a real Kafka: applied, broken, mended, killed, counted'
	@echo 'make test       everything that must hold before a commit lands'
	@echo 'make test-long  the same with many more kills and random cases'
	@echo 'make cluster-up a Kubernetes with our image and a Kafka that its pods reach; stays until make cluster-down (root)'
	@echo 'make image      our image, as an archive'
	@echo 'make bench      records per CPU second of the main job and of each of its parts, on files and on a real Kafka'
	@echo 'make fmt        format the code'

setup:
	@$(STEP) 'setup' tests/setup/install.sh

# The same packages as the tests build, so that cargo settles on the same features and compiles nothing twice.
build: setup
	@$(STEP) 'build (the first time it compiles RocksDB and DataFusion: about 15 minutes on 2 cores)' \
		cargo build --locked --release --workspace

# Go's build and Rust's go side by side when both are wanted (`make -j`).
kubernetes: setup
	@$(STEP) 'Kubernetes (the first time it is compiled: about 20 CPU minutes)' tests/setup/kubernetes.sh

image: build
	@$(STEP) 'image' tests/setup/image.sh

cluster-up: kubernetes image
	@$(STEP) 'a cluster' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/cluster up
	@echo 'to use it: eval "$$($(CARGO_TARGET_DIR)/release/cluster env)"; $(MILLRACE_CACHE)/kube/bin/kubectl get nodes'

cluster-down:
	@$(CARGO_TARGET_DIR)/release/cluster down

demo: build
	@python3 tests/demo.py --millrace $(MILLRACE)
	@$(STEP) 'the flights of 2013' python3 tests/flights.py --millrace $(MILLRACE)

demo-kafka: build
	@$(STEP) 'the main job on a real Kafka' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/demo_kafka

demo-cluster: kubernetes image
	@$(STEP) 'the main job on a real Kubernetes' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/demo_cluster

test:
	@$(STEP) 'make test' $(MAKE) --no-print-directory test-parts

test-parts: setup
	@$(STEP) 'formatting' cargo fmt --all --check
	@$(MAKE) --no-print-directory -j 2 build kubernetes
	@$(MAKE) --no-print-directory image
	@$(STEP) 'all tests' env TMPDIR=$(SCRATCH) RUST_TEST_THREADS=$(TEST_THREADS) tests/setup/tests.sh $(CARGO_TEST)
	@$(STEP) 'clippy' cargo clippy --locked --release --workspace --all-targets -- -D warnings
	@$(STEP) 'dependencies' tests/setup/cargo-deny.sh
	@$(STEP) 'chart' tests/setup/chart.sh
	@$(STEP) 'examples' tests/setup/examples.sh $(MILLRACE)
	@$(STEP) "examples as kubectl's parser reads them" tests/setup/kubectl-yaml.sh
	@$(STEP) 'live run with a kill' python3 tests/demo.py --millrace $(MILLRACE) --seconds 4 --quiet
	@$(STEP) 'the flights of 2013' python3 tests/flights.py --millrace $(MILLRACE)

# What chance finds, given more time: random interleavings, seeds of the simulator, instants of kills.
test-long: test
	@$(STEP) 'many random cases' env TMPDIR=$(SCRATCH) RUST_TEST_THREADS=$(TEST_THREADS) MILLRACE_SEEDS=100000 PROPTEST_CASES=10000 MILLRACE_KILLS=500 \
		tests/setup/tests.sh $(CARGO_TEST)
	@$(STEP) 'a longer live run with a kill' python3 tests/demo.py --millrace $(MILLRACE) --seconds 60 --quiet
	@$(STEP) 'the main job on a real Kafka' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/demo_kafka
	@$(STEP) 'the flights of 2013 with many kills' python3 tests/flights.py --millrace $(MILLRACE) --kills 40

bench: build
	@$(STEP) 'benchmark' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/bench

fmt:
	cargo fmt --all
