#!/usr/bin/env bash
# Tests what we hand to Prometheus and Alertmanager: that every rule and every expression of a dashboard can be read, what
# the rules do (tests/rules/*.test.yaml), and that Alertmanager keeps quiet what it should with the configuration of
# docs/alerts.md. The files with rules are written by the tests of the operator's core.
set -euo pipefail

tools=${MILLRACE_CACHE:-$HOME/.cache/millrace}/prometheus/usr/bin
if [ ! -x "$tools/promtool" ]; then
    printf 'promtool: %s is missing: run make setup\n' "$tools/promtool" >&2
    exit 1
fi
scratch=$(mktemp -d)
alertmanager=
trap '[ -z "$alertmanager" ] || kill "$alertmanager"; rm -rf "$scratch"' EXIT

"$tools/promtool" check rules tests/rules/*.json charts/millrace/files/operator-rules.json
"$tools/promtool" test rules tests/rules/*.test.yaml

sed -n '/^```yaml alertmanager.yml$/,/^```$/{/^```/d;p}' docs/alerts.md >"$scratch/alertmanager.yml"
"$tools/amtool" check-config "$scratch/alertmanager.yml"

# It is looked at before the one that writes it may have begun.
: >"$scratch/log"
# Debian's Alertmanager reads a template from where its package would be installed. It takes a port that is free.
# shellcheck disable=SC2016
unshare --map-root-user --mount sh -c 'mount --bind "$1/share" /usr/share && shift && exec "$@"' - "${tools%/bin}" \
    "$tools/prometheus-alertmanager" --config.file="$scratch/alertmanager.yml" --storage.path="$scratch" \
    --web.listen-address=127.0.0.1:0 --cluster.listen-address= 2>"$scratch/log" &
alertmanager=$!
deadline=$((SECONDS + 20))
port=
while [ -z "$port" ]; do
    if [ "$SECONDS" -gt "$deadline" ] || ! kill -0 "$alertmanager"; then
        cat "$scratch/log" >&2
        exit 1
    fi
    port=$(sed -n 's/.*msg="Listening on" address=127.0.0.1:\([0-9]*\).*/\1/p' "$scratch/log")
done
python3 tests/rules/inhibition.py "http://127.0.0.1:$port"
