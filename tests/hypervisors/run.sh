#!/usr/bin/env bash
# make hypervisors: the import of VMs and the hooks, against samples of hypervisors' answers,
# libvirt's own virsh, and CloudStack's Groovy engine. Needs `make build`.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=()
need() { command -v "$1" >/dev/null || [ -e "$1" ] || packages+=("${@:2}"); }
need virsh libvirt-clients
need /usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so libvirt-daemon libvirt-daemon-driver-qemu
need qemu-system-x86_64 qemu-system-x86
need java default-jre-headless
need groovy groovy
need shellcheck shellcheck
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "hypervisors: installing ${packages[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null 2>&1 ||
        { apt-get -qq update && apt-get -qq install -y --no-install-recommends "${packages[@]}"; } >/dev/null ||
        echo "hypervisors: some packages cannot be installed; their tests are skipped" >&2
fi
exec python3 -m unittest discover -s tests/hypervisors -p 'test_*.py' "$@"
