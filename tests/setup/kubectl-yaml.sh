#!/usr/bin/env bash
# Reads every example and every generated CustomResourceDefinition with kubectl's own YAML parser; see
# tests/kubectl-yaml.
set -euo pipefail

if ! command -v go >/dev/null; then
    printf 'kubectl-yaml: Go is missing: kubectl reads YAML with a Go library, and this check runs that library\n' >&2
    exit 1
fi
files=()
for file in examples/*/pipeline.yaml examples/*/backfill/*.yaml crds/*.yaml; do
    files+=("$PWD/$file")
done
cd tests/kubectl-yaml
export GOFLAGS=-mod=readonly
go vet ./...
go test ./...
go run . "${files[@]}"
