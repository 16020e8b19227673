#!/usr/bin/env bash
# make vm-test: guests in real VMs; installs missing files into a cache.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec cargo run -q --bin vgpu-vm-test
