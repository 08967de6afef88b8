#!/usr/bin/env bash
# Validates the pipeline of every folder of examples/ and runs its cases, as a user's own CI would.
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
    count=$((count + 1))
done
if [ "$count" -eq 0 ]; then
    printf 'examples: none found\n' >&2
    exit 1
fi
