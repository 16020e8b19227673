#!/usr/bin/env bash
# cargo-deny over the dependency graph; installs the tool into a cache of its own when missing.
# The advisory database lives in a git repository: where that cannot be reached, the advisories part
# is skipped and says so; bans, licences and sources are always checked.
set -euo pipefail
cd "$(dirname "$0")/.."
cache="${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}"
version=0.20.2
deny="$cache/cargo-deny-$version/bin/cargo-deny"
if [ ! -x "$deny" ]; then
    echo "installing cargo-deny $version into $cache (once a machine, a few minutes)"
    cargo install -q --locked --root "$cache/cargo-deny-$version" \
        --target-dir "$cache/build" cargo-deny --version "$version"
fi
"$deny" --log-level error check --hide-inclusion-graph bans licenses sources
if "$deny" --log-level off fetch db >/dev/null 2>&1; then
    "$deny" --log-level error check --hide-inclusion-graph --disable-fetch advisories
else
    echo "SKIPPED: cargo deny check advisories (the advisory database cannot be fetched here)"
fi
