#!/usr/bin/env bash
# Runs all tests, in three parts: those that break brokers and networks, and those on a cluster, need the whole machine.
# Beside others they fail where nothing is wrong: a broker that gets no time is a broker that is gone.
#
#     tests/setup/tests.sh cargo test --workspace
set -uo pipefail

# An error says what was tried, and from where is of no help behind a page of frames.
export RUST_BACKTRACE=0

failed=0
"$@" --no-fail-fast -- --skip faults:: --skip stories:: --skip lifecycle:: || failed=1
"$@" --no-fail-fast --test kafka_faults || failed=1
RUST_TEST_THREADS=2 "$@" --no-fail-fast --test lifecycle --test cluster || failed=1
exit "$failed"
