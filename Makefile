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
# One profile for everything, so that RocksDB and DataFusion are compiled once. An error says what was tried, and from
# where is of no help behind a page of frames.
CARGO_TEST = env TMPDIR=$(SCRATCH) RUST_TEST_THREADS=$(TEST_THREADS) RUST_BACKTRACE=0 \
	cargo test --locked --release --workspace --no-fail-fast
# Computes in what those leave who wait for brokers.
BESIDE := nice -n 19 $(STEP)

.PHONY: help setup build kubernetes s3 image demo demo-kafka demo-cluster cluster-up cluster-down test test-parts \
	tests-built all-tests tests-brokers checks tests-faults tests-cluster tests-alone test-long bench bench-cluster \
	bench-rescale bench-backfill bench-operator fmt

help:
	@echo 'make setup      install what a build needs and this machine lacks'
	@echo 'make demo       the main job on live data, killed and restarted, then the flights of 2013'
	@echo 'make demo-kafka the main job on a real Kafka with live orders, killed with SIGKILL, its output counted'
	@echo 'make demo-cluster the chart on a real Kubernetes with a real Kafka: applied, broken, mended, killed, counted'
	@echo 'make test       everything that must hold before a commit lands'
	@echo 'make test-long  the same with many more kills and random cases, and stories that need a cluster for themselves'
	@echo 'make cluster-up a Kubernetes with our image and a Kafka that its pods reach; stays until make cluster-down (root)'
	@echo 'make image      our image, as an archive'
	@echo 'make bench      records per CPU second of the main job and of each of its parts, on files and on a real Kafka'
	@echo 'make bench-cluster seconds on a real Kubernetes: from kubectl apply to the first row, from a loss to caught up'
	@echo 'make bench-rescale pauses of tasks that move and that stay, on a real Kubernetes; what a lost disk costs'
	@echo 'make bench-backfill what a backfill costs the pipeline beside it, on a real Kubernetes; ratios of paired rounds'
	@echo 'make bench-operator what 1,000 Pipelines cost the operator, each figure beside its bar (root)'
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

# The object store of the tests.
s3: setup
	@$(STEP) 'S3' tests/setup/s3.sh

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

demo-cluster: kubernetes s3 image
	@$(STEP) 'the main job on a real Kubernetes' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/demo_cluster

test:
	@$(STEP) 'make test' tests/setup/budget.sh $(MAKE) --no-print-directory test-parts

test-parts: setup
	@$(STEP) 'formatting' cargo fmt --all --check
	@$(MAKE) --no-print-directory -j 2 build kubernetes s3
	@$(MAKE) --no-print-directory -j 2 image tests-built
	@$(MAKE) --no-print-directory all-tests

tests-built: build
	@$(STEP) 'tests are built' $(CARGO_TEST) --no-run

# What runs side by side is told a step at a time. Those that break brokers and networks, and those on a cluster, need
# the whole machine: a broker that gets no time is a broker that is gone.
all-tests:
	@failed=0; \
		$(MAKE) --no-print-directory -j 2 --keep-going --output-sync=line tests-brokers checks || failed=1; \
		$(MAKE) --no-print-directory --keep-going tests-faults tests-cluster || failed=1; \
		exit $$failed

tests-brokers:
	@$(STEP) 'tests on brokers' $(CARGO_TEST) --test kafka --test harness -- --skip faults::

# Clippy comes behind the tests: it keeps others from cargo's folder while it compiles.
checks:
	@$(BESIDE) 'pure tests' $(CARGO_TEST) -- \
		--skip brokers:: --skip faults:: --skip stories:: --skip lifecycle:: --skip alone::
	@$(BESIDE) 'clippy' cargo clippy --locked --release --workspace --all-targets -- -D warnings
	@$(BESIDE) 'dependencies' tests/setup/cargo-deny.sh
	@$(BESIDE) 'chart' tests/setup/chart.sh
	@$(BESIDE) 'rules' tests/setup/promtool.sh
	@$(BESIDE) 'examples' tests/setup/examples.sh $(MILLRACE)
	@$(BESIDE) "examples as kubectl's parser reads them" tests/setup/kubectl-yaml.sh
	@$(BESIDE) 'live run with a kill' python3 tests/demo.py --millrace $(MILLRACE) --seconds 4 --quiet
	@$(BESIDE) 'the flights of 2013' python3 tests/flights.py --millrace $(MILLRACE)

tests-faults:
	@$(STEP) 'tests that break brokers' $(CARGO_TEST) --test kafka -- faults::

tests-cluster: TEST_THREADS := 3
tests-cluster:
	@$(STEP) 'tests on a cluster' $(CARGO_TEST) --test lifecycle --test cluster

tests-alone: TEST_THREADS := 1
tests-alone:
	@$(STEP) 'stories that need a cluster for themselves' $(CARGO_TEST) --test cluster_alone

# What chance finds, given more time: random interleavings, seeds of the simulator, instants of kills. Before it what
# takes time by itself: the operator, the chart or etcd is taken away from a cluster that nobody else uses.
test-long: test
	@$(MAKE) --no-print-directory tests-alone
	@$(STEP) 'many random cases' env PROPTEST_CASES=10000 MILLRACE_KILLS=500 $(MAKE) --no-print-directory all-tests
	@$(STEP) 'two thousand worlds of the operator' env MILLRACE_SEEDS=2000 $(CARGO_TEST) --test reconcile --test autoscale
	@$(STEP) 'a million worlds of the protocol' env MILLRACE_SEEDS=1000000 $(CARGO_TEST) --test protocol
	@$(STEP) 'a longer live run with a kill' python3 tests/demo.py --millrace $(MILLRACE) --seconds 60 --quiet
	@$(STEP) 'the main job on a real Kafka' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/demo_kafka
	@$(STEP) 'the flights of 2013 with many kills' python3 tests/flights.py --millrace $(MILLRACE) --kills 40

bench: build
	@$(STEP) 'benchmark' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/bench

bench-cluster: kubernetes s3 image
	@$(STEP) 'seconds on a real Kubernetes' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/bench_cluster

# States are larger than a worker's memory, to which files in memory would count: this one runs on a disk.
bench-rescale: kubernetes s3 image
	@$(STEP) 'pauses on a real Kubernetes' env TMPDIR=/tmp $(CARGO_TARGET_DIR)/release/bench_rescale

bench-backfill: kubernetes image
	@$(STEP) 'a backfill beside its pipeline' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/bench_backfill

bench-operator: build kubernetes
	@$(STEP) 'the operator at scale' env TMPDIR=$(SCRATCH) $(CARGO_TARGET_DIR)/release/operator_scale

fmt:
	cargo fmt --all
