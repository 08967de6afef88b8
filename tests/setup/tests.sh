#!/usr/bin/env bash
# Runs all tests. Those that break brokers and networks wait for minutes, so they run beside the others; what they say
# comes at the end. Those on a cluster need the whole machine, and come last.
#
#     tests/setup/tests.sh cargo test --workspace
set -uo pipefail

# An error says what was tried, and from where is of no help behind a page of frames.
export RUST_BACKTRACE=0
said=$(mktemp)
trap 'rm -f "$said"' EXIT

"$@" --no-run || exit
"$@" --test kafka_faults >"$said" 2>&1 &
faults=$!
"$@" --no-fail-fast -- --skip faults:: --skip stories:: --skip lifecycle::
others=$?
wait "$faults"
broken=$?
cat "$said"
RUST_TEST_THREADS=2 "$@" --no-fail-fast --test lifecycle --test cluster
cluster=$?
[ "$others" -eq 0 ] && [ "$broken" -eq 0 ] && [ "$cluster" -eq 0 ]
