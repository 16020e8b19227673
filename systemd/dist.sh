#!/usr/bin/env bash
# make dist: a tarball for distributions without packages of ours. It holds the built programs, and
# what systemd/install.sh installs of them. Writes vgpu-<version>-<machine>-linux.tar.xz into
# target/dist (or OUT).
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}"
built="${BUILT:-$target/release}"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name="vgpu-$version-$(uname -m)-linux"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree="$work/$name"
mkdir -p "$tree/programs" "$tree/systemd"
"$built/vgpu-pages" "$tree/programs/pages"
for file in vgpud vgpu-worker vgpu-probe vgpu-admin vgpu-sim vgpu-guest libcuda.so libnvidia_ml.so libsoft_gpu.so; do
    install -m 0755 "$built/$file" "$tree/programs/$file"
    strip --strip-unneeded "$tree/programs/$file"
done
cp systemd/install.sh systemd/vgpud.service systemd/vgpud.toml systemd/*.conf "$tree/systemd/"
cp -r systemd/hypervisors systemd/prometheus "$tree/systemd/"
cp -r docs "$tree/"
cp README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT "$tree/"
out="${OUT:-$target/dist}"
mkdir -p "$out"
tar -C "$work" --sort=name --owner=root:0 --group=root:0 --mtime="@${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}" \
    -cJf "$out/$name.tar.xz" "$name"
echo "$out/$name.tar.xz"
