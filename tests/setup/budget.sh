#!/usr/bin/env bash
# Runs a job of many steps (see step.sh), and says at its end what its parts took beside what they may take: together 75
# of the 90 minutes that continuous integration gives a run that compiles everything, or 20 where only our own code is
# compiled. Parts that run side by side take longer than alone, and add up to more than the whole.
#
#     tests/setup/budget.sh make test-parts
set -uo pipefail

MILLRACE_STEPS=$(mktemp)
export MILLRACE_STEPS
trap 'rm -f "$MILLRACE_STEPS"' EXIT
"$@"
code=$?
awk -F '\t' -v whole="$SECONDS" '
function is(part, minutes) { name[++parts] = part; may[parts] = minutes }
BEGIN {
    is("Rust", 35); is("Go", 8); is("images", 4); is("pure and simulators", 6); is("brokers", 8); is("cluster", 14)
    is("the rest", "")
    printf "\n%-20s %8s %8s\n", "minutes", "took", "may take"
}
{ part = 7 }
$2 ~ /^(formatting|build|tests are built|clippy)/ { part = 1 }
$2 ~ /^(Kubernetes|S3)/ { part = 2 }
$2 ~ /^image/ { part = 3 }
$2 ~ /^pure tests/ { part = 4 }
$2 ~ /brokers$/ { part = 5 }
$2 ~ /cluster$/ { part = 6 }
{ took[part] += $1 / 60 }
END {
    for (i = 1; i <= parts; i++) {
        printf "%-20s %8.1f %8s%s\n", name[i], took[i], may[i], (may[i] != "" && took[i] > may[i] ? "  over" : "")
    }
    printf "%-20s %8.1f %8s, or 20 where only our own code was compiled\n", "the whole", whole / 60, 75
}' "$MILLRACE_STEPS"
exit "$code"
