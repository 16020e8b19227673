#!/usr/bin/env bash
# make pkg-test: builds the packages and the tarball from the build in BUILT (default: target/debug)
# and checks them on a Debian root file system that systemd boots in new namespaces. Installs the
# Debian packages that the test needs, and keeps the root file system in a cache.
# --ci: only the checks without the root file system (contents, prefixes, the tarball, lintian).
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/packages
export BUILT="${BUILT:-$PWD/${CARGO_TARGET_DIR:-target}/debug}"
# The compression of a release takes minutes.
export DEB_COMPRESSION=gzip XZ_OPT=-0
cache="${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}/packages"
if [ "$(id -u)" != 0 ]; then echo "SKIPPED: make pkg-test needs root"; exit 0; fi

work=$(mktemp -d /var/tmp/vgpu-packages.XXXXXX)
booted=
finish() {
    if [ -n "$booted" ]; then
        # With unshare, the kernel ends systemd, and with systemd everything in its namespaces.
        kill -KILL "$booted" 2>/dev/null || true
        wait "$booted" 2>/dev/null || true
        # The cgroups are busy until the last process has gone.
        local cgroup tries=0
        for cgroup in /sys/fs/cgroup/{,unified/}vgpu-packages-"$booted"; do
            while [ -d "$cgroup" ] && [ $((tries += 1)) -lt 100 ]; do
                find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
            done
        done
    fi
    rm -rf --one-file-system "$work"
}
trap finish EXIT
step() { printf '== %s (%ss)\n' "$1" "$SECONDS"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
has() { # text, expected part
    case "$1" in *"$2"*) ;; *) fail "expected '$2' in: $1" ;; esac
}

install_tools() {
    local missing=() tool
    for tool in mmdebstrap lintian gcc; do command -v $tool >/dev/null || missing+=("$tool"); done
    [ ${#missing[@]} = 0 ] && return
    apt-cache show lintian >/dev/null 2>&1 || apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

base() { # the root file system, as a tarball in the cache
    mkdir -p "$cache"
    if [ ! -e "$cache/bookworm.tar" ]; then
        mmdebstrap --quiet --variant=minbase --skip=check/empty \
            --include=systemd,systemd-sysv,dbus,init-system-helpers,man-db,zsh,fish,bash-completion \
            bookworm "$cache/bookworm.tar.new"
        mv "$cache/bookworm.tar.new" "$cache/bookworm.tar"
    fi
}

# Two further revisions of vgpu-host. The worker of the second is no worker: whoever starts that
# program instead of the copy that vgpud keeps fails.
upgrades() {
    mkdir "$work/broken"
    find "$BUILT" -maxdepth 1 -type f -executable -exec ln -s -t "$work/broken" {} +
    rm "$work/broken/vgpu-worker"
    cp /bin/false "$work/broken/vgpu-worker"
    BUILT="$work/broken" OUT="$work/debs" DEB_REVISION=2 PARTS=host systemd/deb/build.sh
    OUT="$work/debs" DEB_REVISION=3 PARTS=host systemd/deb/build.sh
    # Stands for NVIDIA's package.
    mkdir -p "$work/nvidia/DEBIAN"
    printf 'Package: libcuda1\nVersion: 580\nArchitecture: all\nMaintainer: A <a@b.org>\nDescription: none\n' \
        > "$work/nvidia/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$work/nvidia" "$work/debs/libcuda1.deb" >/dev/null
}

check_files() {
    local files tree="$work/local" tarball
    files=$(for deb in "$work"/debs/vgpu-*-1_*.deb; do dpkg-deb -c "$deb"; done)
    has "$files" "-rw-r----- root/root"
    grep -q '^-rw-r----- .* ./etc/vgpu/vgpud.toml$' <<< "$files" || fail "vgpud.toml has another mode"
    grep -q '^-rwx--x--x .* ./usr/sbin/vgpu-worker$' <<< "$files" || fail "vgpu-worker is readable"
    files=$(dpkg-deb -c "$work"/debs/vgpu-host_*-1_*.deb | grep -o '\./.*lib\(cuda\|nvidia-ml\)\.so.*' | grep -v '^./usr/share/vgpu/guest/') &&
        fail "vgpu-host has a library outside of /usr/share/vgpu/guest: $files"
    # Another prefix, from the build. Below, from the tarball, a prefix that systemd does not read.
    DESTDIR="$tree" PREFIX=/usr/local systemd/install.sh >/dev/null
    grep -q '^ExecStart=/usr/local/sbin/vgpud ' "$tree/usr/local/lib/systemd/system/vgpud.service" || fail "ExecStart ignores PREFIX"
    grep -q '^Documentation=file:///usr/local/share/doc/vgpu/operator.md$' "$tree/usr/local/lib/systemd/system/vgpud.service" ||
        fail "Documentation ignores PREFIX"
    grep -q '/usr/local/lib/vgpu/soft-gpu/libcuda.so.1' "$tree/etc/vgpu/vgpud.toml" || fail "the sample ignores PREFIX"
    [ -e "$tree/usr/local/share/doc/vgpu/operator.md" ] || fail "no operator.md"
    [ -e "$tree/usr/local/share/doc/vgpu/prometheus/vgpud.rules.yml" ] || fail "no alert rules"
    [ ! -e "$tree/usr/sbin" ] || fail "files outside of PREFIX"
    has "$("$tree/usr/local/sbin/vgpud" --check --config /nowhere 2>&1 || true)" "$tree/usr/local/share/doc/vgpu/vgpud.toml"
    tarball=$(OUT="$work/dist" systemd/dist.sh)
    mkdir "$work/unpacked"
    tar -C "$work/unpacked" --strip-components=1 -xJf "$tarball"
    (cd / && BUILT=/nowhere DESTDIR="$work/opt" PREFIX=/opt/vgpu PARTS="host guest soft-gpu" "$work/unpacked/systemd/install.sh") >/dev/null
    grep -q '^ExecStart=/opt/vgpu/sbin/vgpud ' "$work/opt/etc/systemd/system/vgpud.service" || fail "the tarball's unit ignores PREFIX"
    has "$("$work/opt/opt/vgpu/bin/vgpu-admin" --version)" vgpu-admin
    has "$(cat "$work/opt/etc/ld.so.conf.d/00-vgpu-guest.conf")" /opt/vgpu/lib/vgpu
    if PREFIX=usr DESTDIR="$work/wrong" systemd/install.sh >/dev/null 2>&1; then fail "a relative PREFIX is accepted"; fi
}

boot() {
    local root="$work/root"
    mkdir "$root"
    tar -C "$root" -xf "$cache/bookworm.tar"
    mkdir "$root/debs"
    cp "$work"/debs/*.deb "$root/debs/"
    gcc -O1 -o "$root/debs/hold" $here/hold.c
    cp $here/inside.sh "$root/debs/inside.sh"
    setsid $here/boot.sh "$root" > "$work/boot.log" 2>&1 < /dev/null &
    booted=$!
    local deadline=$((SECONDS + 90)) one=
    while [ "$SECONDS" -lt "$deadline" ]; do
        kill -0 "$booted" 2>/dev/null || { cat "$work/boot.log"; return 1; }
        # unshare's only child is systemd.
        one=$(cat "/proc/$booted/task/$booted/children" 2>/dev/null || true); one=${one%% *}
        if [ -n "$one" ] && nsenter -t "$one" -a systemctl is-system-running 2>/dev/null | grep -q 'running\|degraded'; then
            first=$one
            return 0
        fi
        sleep 0.2
    done
    cat "$work/boot.log"
    return 1
}

step "tools";      install_tools
step "packages";   OUT="$work/debs" DEB_REVISION=1 systemd/deb/build.sh
step "files";      check_files
step "lintian";    lintian --fail-on error "$work"/debs/vgpu-*-1_*.deb || fail "lintian found errors"
if [ "${1:-}" = --ci ]; then exit 0; fi
step "upgrades";   upgrades
step "systemd";    base
if ! boot; then
    [ -z "${CI:-}" ] || fail "systemd does not start in namespaces here"
    echo "SKIPPED: install, upgrade and purge (systemd does not start in namespaces here)"
    exit 0
fi
nsenter -t "$first" -a env -i PATH=/usr/sbin:/usr/bin HOME=/root bash /debs/inside.sh
step "done"
