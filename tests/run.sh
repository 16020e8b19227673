#!/usr/bin/env bash
# make test: every test of the workspace. Each whole-system test starts many processes, so fewer
# tests run in parallel than there are cores.
set -euo pipefail
cd "$(dirname "$0")/.."
# Tests start the workspace's binaries and libraries, which must be built from the same source.
cargo build --workspace
if cargo nextest --version >/dev/null 2>&1; then
    exec cargo nextest run --workspace --no-fail-fast "$@"
fi
echo "cargo-nextest is not installed; running cargo test instead" >&2
exec cargo test --workspace --no-fail-fast "$@"
