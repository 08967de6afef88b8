#!/usr/bin/env bash
# Validates the pipeline of every folder of examples/ and runs its cases, as a user's own CI would; and its backfill, where it
# has one, as its README says.
#
#     tests/setup/examples.sh MILLRACE
set -euo pipefail

millrace=$1
count=0
for pipeline in examples/*/pipeline.yaml; do
    folder=$(dirname "$pipeline")
    if [ ! -d "$folder/cases" ]; then
        printf 'examples: %s has no cases\n' "$folder" >&2
        exit 1
    fi
    printf -- '-- %s\n' "$folder"
    "$millrace" validate -f "$pipeline"
    "$millrace" test -f "$pipeline" "$folder/cases"
    if [ -d "$folder/backfill" ]; then
        run=$(mktemp -d)
        local=(run --local --log-level warn --topics "$folder/backfill/topics" --out "$run/out" --state "$run/state")
        "$millrace" "${local[@]}" -f "$folder/backfill/before.yaml"
        "$millrace" "${local[@]}" -f "$pipeline" --backfill "$folder/backfill/backfill.yaml"
        # And what is done is not done again.
        "$millrace" "${local[@]}" -f "$pipeline" --backfill "$folder/backfill/backfill.yaml"
        for expected in "$folder"/backfill/expected/*; do
            diff "$expected" "$run/out/${expected##*/}"
        done
        rm -r "$run"
        printf 'backfill: ok\n'
    fi
    count=$((count + 1))
done
if [ "$count" -eq 0 ]; then
    printf 'examples: none found\n' >&2
    exit 1
fi
