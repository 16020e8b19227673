#!/usr/bin/env bash
# The GPU kit: everything that a machine with an NVIDIA GPU can say about this system, in one command.
#
#   tests/gpu/run.sh                  builds, then runs the clients' tests on the GPU: directly, and through
#                                     shim and vgpud; and our own guest programs, one of which hangs. Before that
#                                     compares the driver's library with what we take it to be (library.py)
#   tests/gpu/run.sh --dry-run        the same on soft-gpu, briefly: tells whether the kit itself works
#   tests/gpu/run.sh --binaries DIR   with binaries built elsewhere (cargo build --release --workspace)
#   … with options of vgpu-clients    --suite=NAME, --row=remoted, --only=TEXT, --jobs=N, --ci
#   tests/gpu/run.sh --help           this text
#
# Needs: the NVIDIA driver (12.4 or newer), Python 3.11 to 3.13 with venv, a C compiler; cargo unless
# --binaries is given. Where PyPI cannot be reached, VGPU_CLIENTS_PYTHON names an interpreter whose packages (pytest,
# PyTorch, …) serve in place of the pinned ones, whatever their versions.
# Writes target/gpu/report.json, library.json and machine.txt; exits 0 if nothing failed but what tests/clients/expected
# names. Checks that cannot be made here are named with SKIPPED.
set -euo pipefail
kit=$(realpath "$0")
cd "$(dirname "$kit")/../.."
say() { echo "gpu kit: $*" >&2; }

driver=nvidia binaries= options=()
while [ $# -gt 0 ]; do
    case "$1" in
        --dry-run) driver=soft ;;
        --help | -h) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$kit"; exit ;;
        --binaries)
            [ -d "${2-}" ] || { say "--binaries takes the directory with the binaries, as target/release"; exit 2; }
            binaries=$(realpath "$2"); shift
            [ -x "$binaries/vgpu-clients" ] || {
                say "$binaries has no vgpu-clients: build with cargo build --release --workspace"; exit 2
            } ;;
        --ci | --suite=* | --row=* | --only=* | --jobs=*) options+=("$1") ;;
        --suite | --row | --only | --jobs)
            [ $# -gt 1 ] || { say "$1 takes a value"; exit 2; }
            options+=("$1=$2"); shift ;;
        *) say "unknown option $1; --help names those that there are"; exit 2 ;;
    esac
    shift
done

mkdir -p target/gpu
if [ "$driver" = nvidia ]; then
    command -v nvidia-smi >/dev/null || {
        say "there is no nvidia-smi, so no NVIDIA driver; --dry-run tries the kit without one"
        exit 1
    }
    nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv \
        | tee target/gpu/machine.txt
else
    echo "dry run on soft-gpu" | tee target/gpu/machine.txt
    # Enough to check that every part of the kit starts, runs and reports.
    [ "${#options[@]}" -gt 0 ] || options=(--ci --suite=cuda-bindings --suite=triton)
fi
if [ -z "$binaries" ]; then
    cargo build -q --workspace
    binaries=target/debug
fi
compare=(python3 tests/gpu/library.py --binaries "$binaries" --report target/gpu/library.json)
[ "$driver" = nvidia ] || compare+=(--soft --driver "$binaries/libsoft_gpu.so")
failed=0
"${compare[@]}" || failed=1
"$binaries/vgpu-clients" --driver="$driver" --smoke --report=target/gpu/report.json "${options[@]}" || failed=1
exit $failed
