#!/usr/bin/env bash
# tests/tool.sh NAME VERSION: prints the path of a cargo tool of exactly this version. A missing
# tool is first built into a separate cache.
set -euo pipefail
name=$1 version=$2
cache="${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}"
root="$cache/$name-$version"
if [ ! -x "$root/bin/$name" ]; then
    echo "installing $name $version into $cache (once a machine, a few minutes)" >&2
    cargo install -q --locked --root "$root" --target-dir "$cache/build" "$name" --version "$version" >&2
fi
echo "$root/bin/$name"
