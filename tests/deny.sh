#!/usr/bin/env bash
# cargo-deny over the dependency graph.
# The advisory database is a git repository: if it cannot be reached, the advisories part is skipped
# with a message. Bans, licences and sources are always checked.
set -euo pipefail
cd "$(dirname "$0")/.."
deny=$(tests/tool.sh cargo-deny 0.20.2)
"$deny" --log-level error check --hide-inclusion-graph bans licenses sources
if "$deny" --log-level off fetch db >/dev/null 2>&1; then
    "$deny" --log-level error check --hide-inclusion-graph --disable-fetch advisories
else
    echo "SKIPPED: cargo deny check advisories (the advisory database cannot be fetched here)"
fi
