#!/usr/bin/env bash
# cargo-machete: fails when a crate declares a dependency that its code does not name.
set -euo pipefail
cd "$(dirname "$0")/.."
"$(tests/tool.sh cargo-machete 0.9.2)" .
