#!/usr/bin/env bash
# Builds a store that speaks S3 over a folder (Versity's gateway), for the tests of snapshots; see tests/s3. Once for each
# version of its sources: about a CPU minute.
#
# What runs is behind $MILLRACE_CACHE/s3/bin. Removing the folder is always safe.
set -euo pipefail

if ! command -v go >/dev/null; then
    printf 's3: Go 1.25 or newer is missing (https://go.dev/dl): the object store of the tests is built with it\n' >&2
    exit 1
fi
source=$(cd "$(dirname "$0")/../s3" && pwd)
home=${MILLRACE_CACHE:-$HOME/.cache/millrace}/s3
mkdir -p "$home"
exec 9>"$home/lock"
flock 9

cd "$source"
export CGO_ENABLED=0 GOFLAGS=-mod=readonly
inputs=$({ go version; cat go.mod go.sum; } | sha256sum | cut -c 1-16)
if [ ! -d "$home/$inputs" ]; then
    printf 's3: building it into %s (once, about a CPU minute)\n' "$home/$inputs"
    next=$home/$inputs.next
    rm -rf "$next"
    mkdir "$next"
    go build -trimpath -ldflags '-s -w' -o "$next" github.com/versity/versitygw/cmd/versitygw
    mv "$next" "$home/$inputs"
fi
ln -sfn "$inputs" "$home/bin"
"$home/bin/versitygw" --version | sed -n 1p
