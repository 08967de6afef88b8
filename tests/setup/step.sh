#!/usr/bin/env bash
# Runs one part of a longer job and says what it is, how it ended and how long it took; to the file $MILLRACE_STEPS too,
# where there is one.
#
#     tests/setup/step.sh "formatting" cargo fmt --check
set -uo pipefail

name=$1
shift
printf '\n== %s\n' "$name"
start=$(date +%s.%N)
"$@"
code=$?
seconds=$(printf '%.1f' "$(echo "$(date +%s.%N) $start" | awk '{print $1 - $2}')")
[ -z "${MILLRACE_STEPS:-}" ] || printf '%s\t%s\n' "$seconds" "$name" >>"$MILLRACE_STEPS"
if [ "$code" -eq 0 ]; then
    printf '== %s: ok, %s s\n' "$name" "$seconds"
else
    printf '== %s: FAILED with exit code %s after %s s\n' "$name" "$code" "$seconds" >&2
fi
exit "$code"
