#!/usr/bin/env bash
# Who may depend on whom, licences and origins of all dependencies, by cargo-deny (see deny.toml).
#
# cargo-deny is built once, unoptimised (2 CPU minutes instead of 8; it runs for 3 seconds), and kept in the cache.
# The advisories need a database, which `cargo deny fetch` brings where the network allows it: they are checked where it
# is there, and it is said where it is not.
set -euo pipefail

version=0.20.2
tools=${MILLRACE_CACHE:-$HOME/.cache/millrace}/tools/cargo-deny-$version
if [ ! -x "$tools/bin/cargo-deny" ]; then
    printf 'cargo-deny: building version %s into %s (once, about 2 CPU minutes)\n' "$version" "$tools"
    cargo install cargo-deny --locked --version "$version" --debug --quiet --root "$tools" --target-dir "$tools/build"
    rm -rf "$tools/build"
fi

"$tools/bin/cargo-deny" --locked check bans licenses sources

database=${CARGO_HOME:-$HOME/.cargo}/advisory-dbs
if [ -n "$(find "$database" -mindepth 2 -name crates -print -quit 2>/dev/null)" ]; then
    "$tools/bin/cargo-deny" --locked --offline check advisories
else
    printf 'cargo-deny: advisories NOT checked: no advisory database on this machine (cargo deny fetch brings it)\n'
fi
