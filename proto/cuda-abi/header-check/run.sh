#!/usr/bin/env bash
# Compares vgpu-cuda-abi with NVIDIA's own cuda.h of the oldest and the newest toolkit that are
# supported: every result code, number, size and offset. The headers come from PyPI, once; where they
# cannot be fetched, the check is skipped and says so.
set -euo pipefail
cd "$(dirname "$0")/../../.."
target="${CARGO_TARGET_DIR:-target}/cuda-headers"
# Name of the folder, package, and whether every fact must be in the header.
toolkits=(
    "oldest nvidia-cuda-runtime-cu12==12.4.* some"
    "newest nvidia-cuda-runtime all"
)
fetch() { # folder, package → the path of cuda.h
    local folder="$target/$1"
    if ! find "$folder" -name cuda.h 2>/dev/null | grep -q .; then
        mkdir -p "$folder"
        python3 -m pip download -q --disable-pip-version-check --no-deps -d "$folder" "$2" >&2 || return 1
        python3 -m zipfile -e "$folder"/*.whl "$folder" || return 1
    fi
    find "$folder" -name cuda.h -print -quit
}
for toolkit in "${toolkits[@]}"; do
    read -r name package facts <<<"$toolkit"
    if ! header="$(fetch "$name" "$package")" || [ -z "$header" ]; then
        echo "SKIPPED, NOTHING WAS COMPARED: $package, with NVIDIA's cuda.h, cannot be fetched here"
        continue
    fi
    cargo run -q -p vgpu-cuda-abi --example header_check -- "$header" >"$target/$name.c"
    cc -I "$(dirname "$header")" -o "$target/$name.check" "$target/$name.c"
    said="$("$target/$name.check")" || { echo "$said"; echo "header check: $package differs"; exit 1; }
    echo "header check: $package: $said"
    if [ "$facts" = all ] && [[ "$said" != *", 0 are newer" ]]; then
        echo "header check: the newest cuda.h lacks names that vgpu-cuda-abi has"
        exit 1
    fi
done
