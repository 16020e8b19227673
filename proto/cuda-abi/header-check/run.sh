#!/usr/bin/env bash
# Compares our facts of cuda.h with NVIDIA's own file, of the oldest and the newest toolkit that are
# supported: every result code, number, size and offset of vgpu-cuda-abi, and every prototype and
# type of the test guests (tests/guests/api.h and guest.h). The headers come from PyPI, once; where
# they cannot be fetched, the check is skipped and says so.
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
# The functions and types of api.h and guest.h, without those of cudaProfiler.h, which is in another
# package.
guests=(-include tests/guests/api.h -x c /dev/null)
names() { grep -oE '\<(cu[A-Z]|CU)\w+' | grep -vE '^cuProfiler|_st$' | sort -u; }
ours="$(cc -E -dD "${guests[@]}" | names)"
# Enumerations become int and structures become void, because api.h has them so. uint64_t becomes
# unsigned long long, which is the same for a call. The macro lets the header declare every version.
declarations() { # path of cuda.h → its types, and its prototypes of the functions in api.h
    cc -E -P -D__CUDA_API_VERSION_INTERNAL "$1" | tr -s '\n ' ' ' | sed -E '
        :body; s/\{[^{}]*\}//; t body
        s/typedef enum( \w+)? +(\w+) ?;/typedef int \2;/g
        s/typedef (struct|union)( \w+)? +(\w+) ?;/typedef void \3;/g
        s/\buint64_t\b/unsigned long long/g
        s/; */;\n/g' | grep -E "^(typedef .*\b(CU|cu)|CUresult (${ours//$'\n'/|})\()"
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
    declarations "$header" >"$target/$name.h"
    theirs="$(names <"$target/$name.h")"
    newer="$(comm -23 <(echo "$ours") <(echo "$theirs"))"
    if ! cc -fsyntax-only -include stdint.h -include stddef.h -include "$target/$name.h" "${guests[@]}" 2>&1 | head -n 40; then
        echo "header check: tests/guests/api.h differs from the cuda.h of $package; the lines above name the first differences"
        exit 1
    fi
    agree="$(comm -12 <(echo "$ours") <(echo "$theirs") | wc -l)"
    echo "header check: $package: $agree functions and types of tests/guests/api.h agree, $(wc -w <<<"$newer") are newer"
    if [ "$facts" = all ] && [ -n "$newer" ]; then
        echo "header check: tests/guests/api.h has names that are neither function nor type in the newest cuda.h:" $newer
        exit 1
    fi
done
