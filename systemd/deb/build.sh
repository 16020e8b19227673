#!/usr/bin/env bash
# make deb: the Debian packages vgpu-host, vgpu-guest and vgpu-soft-gpu of a release build, in
# target/deb (or OUT). Needs dpkg-deb and binutils, and no network. DEB_REVISION (default 1) is the
# last part of the version; DEB_COMPRESSION (default xz) is dpkg-deb's.
set -euo pipefail
cd "$(dirname "$0")/../.."
target="${CARGO_TARGET_DIR:-target}"
upstream=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
version="$upstream-${DEB_REVISION:-1}"
maintainer="${DEB_MAINTAINER:-The vGPU authors <vgpu@vgpu.invalid>}"
architecture=$(dpkg --print-architecture)
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}"
out="${OUT:-$target/deb}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
umask 022

# The newest version of glibc whose symbols the package's files use.
libc() {
    find "$1" -type f \( -perm /111 -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
        grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1
}

documents() { # package, its tree
    local doc="$2/usr/share/doc/$1"
    mkdir -p "$doc"
    { cat systemd/deb/copyright; sed 's/^$/./; s/^/ /' LICENSE-MIT; } > "$doc/copyright"
    gzip -9nc CHANGELOG.md > "$doc/changelog.gz"
    printf '%s (%s) unstable; urgency=medium\n\n  * vGPU %s: changelog.gz lists the changes.\n\n -- %s  %s\n' \
        "$1" "$version" "$upstream" "$maintainer" "$(date -uRd "@$SOURCE_DATE_EPOCH")" | gzip -9n > "$doc/changelog.Debian.gz"
    [ ! -e "systemd/deb/$1/lintian-overrides" ] ||
        install -D -m 0644 "systemd/deb/$1/lintian-overrides" "$2/usr/share/lintian/overrides/$1"
}

package() { # name, part of install.sh
    local name=$1 tree="$work/$1" from="systemd/deb/$1" script
    mkdir -p "$tree/DEBIAN"
    DESTDIR=$tree PREFIX=/usr PARTS=$2 ZSH_FOLDER=vendor-completions systemd/install.sh > /dev/null
    documents "$name" "$tree"
    if [ -d "$tree/etc" ]; then
        (cd "$tree" && find etc -type f -printf '/%p\n' | sort) > "$tree/DEBIAN/conffiles"
    fi
    for script in preinst postinst prerm postrm; do
        [ ! -e "$from/$script" ] || install -m 0755 "$from/$script" "$tree/DEBIAN/$script"
    done
    [ ! -e "$from/triggers" ] || install -m 0644 "$from/triggers" "$tree/DEBIAN/triggers"
    (cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | sort | xargs -d '\n' md5sum) > "$tree/DEBIAN/md5sums"
    sed "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@MAINTAINER@/$maintainer/
        s/@LIBC@/$(libc "$tree")/; s/@SIZE@/$(du -sk --exclude=DEBIAN "$tree" | cut -f1)/" "$from/control" > "$tree/DEBIAN/control"
    dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$tree" "$out/${name}_${version}_$architecture.deb" > /dev/null
    echo "$out/${name}_${version}_$architecture.deb"
}

mkdir -p "$out"
for part in ${PARTS:-host guest soft-gpu}; do package "vgpu-$part" "$part"; done
