#!/usr/bin/env bash
# Installs a release build, the build in BUILT, or the programs of an unpacked tarball (make dist):
#   PARTS="host soft-gpu" DESTDIR=/ PREFIX=/usr systemd/install.sh
# Parts: host, soft-gpu, and guest (for a VM). make install, make deb and make dist use this script.
# Never overwrites an existing configuration file.
set -euo pipefail
cd "$(dirname "$0")/.."
destdir="${DESTDIR:-/}"
prefix="${PREFIX:-/usr}"
read -ra parts <<< "${PARTS:-host soft-gpu}"
built=programs
[ -d "$built" ] || built="${BUILT:-${CARGO_TARGET_DIR:-target}/release}"
root="${destdir%/}"
case "$prefix" in
    /usr | /usr/local) units=$prefix/lib/systemd/system sysusers=$prefix/lib/sysusers.d tmpfiles=$prefix/lib/tmpfiles.d ;;
    # systemd reads nothing below other prefixes.
    /*) units=/etc/systemd/system sysusers=/etc/sysusers.d tmpfiles=/etc/tmpfiles.d ;;
    *) echo "PREFIX is '$prefix', which is not an absolute path: use for example PREFIX=/usr/local" >&2; exit 2 ;;
esac
case "$prefix" in *[!A-Za-z0-9/._+-]*)
    echo "PREFIX is '$prefix': use only letters, digits and / . _ + -" >&2; exit 2 ;;
esac

put() { install -D -m "$1" "$2" "$root$3"; }
# Programs and libraries lose their symbols, of which the build keeps a copy.
program() { put "$1" "$built/$2" "$3"; strip --strip-unneeded "$root$3"; }
# A file of ours with the paths of this prefix.
adapted() {
    put 0644 "$1" "$2"
    sed -i "s#/usr/\(sbin/vgpud\|share/doc/vgpu\|lib/vgpu\)#$prefix/\1#g" "$root$2"
}
documents() { # directory, files
    local to=$1; shift
    local file; for file in "$@"; do put 0644 "$file" "$to/$(basename "$file")"; done
}
pages() { # programs: their manual pages, and the completions of their commands
    local name page share=$prefix/share
    for name in "$@"; do
        for page in "$built/pages/man/$name"[.-]*; do
            put 0644 "$page" "$share/man/man${page##*.}/$(basename "$page")"
            gzip -9nf "$root$share/man/man${page##*.}/$(basename "$page")"
        done
        put 0644 "$built/pages/bash/$name.bash" "$share/bash-completion/completions/$name"
        put 0644 "$built/pages/zsh/_$name" "$share/zsh/${ZSH_FOLDER:-site-functions}/_$name"
        put 0644 "$built/pages/fish/$name.fish" "$share/fish/vendor_completions.d/$name.fish"
    done
}
libraries() { # directory: what programs of a VM load
    program 0644 libcuda.so "$1/libcuda.so.1"
    program 0644 libnvidia_ml.so "$1/libnvidia-ml.so.1"
    # For programs that look for these names first.
    ln -sf libcuda.so.1 "$root$1/libcuda.so"
    ln -sf libnvidia-ml.so.1 "$root$1/libnvidia-ml.so"
}

part_host() {
    local name
    for name in vgpud vgpu-probe; do program 0755 $name "$prefix/sbin/$name"; done
    # Not readable, because the kernel lets a user inspect its processes only of readable programs.
    program 0711 vgpu-worker "$prefix/sbin/vgpu-worker"
    for name in vgpu-admin vgpu-sim; do program 0755 $name "$prefix/bin/$name"; done
    pages vgpu-admin vgpud vgpu-sim
    # The guests' files are separate from the host's own libcuda. Copy them from here into VMs.
    libraries "$prefix/share/vgpu/guest"
    program 0755 vgpu-guest "$prefix/share/vgpu/guest/vgpu-guest"

    adapted systemd/vgpud.service "$units/vgpud.service"
    put 0644 systemd/vgpu.sysusers.conf "$sysusers/vgpu.conf"
    put 0644 systemd/vgpu.tmpfiles.conf "$tmpfiles/vgpu.conf"
    documents "$prefix/share/doc/vgpu" docs/*.md docs/openapi.json
    documents "$prefix/share/doc/vgpu/prometheus" systemd/prometheus/*.yml
    adapted systemd/vgpud.toml "$prefix/share/doc/vgpu/vgpud.toml"
    # Hooks of hypervisors. docs/libvirt.md, proxmox.md and cloudstack.md say where each is copied
    # to.
    for name in vgpu-hook gpudiscovery.sh; do
        put 0755 "systemd/hypervisors/$name" "$prefix/share/vgpu/hypervisors/$name"
    done
    for name in libvirt-vm-xml-transformer.groovy cloudstack.toml; do
        put 0644 "systemd/hypervisors/$name" "$prefix/share/vgpu/hypervisors/$name"
    done
    [ -e "$root/etc/vgpu/hypervisors.conf" ] || put 0644 systemd/hypervisors/hypervisors.conf /etc/vgpu/hypervisors.conf
    if [ -e "$root/etc/vgpu/vgpud.toml" ]; then
        echo "/etc/vgpu/vgpud.toml is unchanged; the new sample is $prefix/share/doc/vgpu/vgpud.toml"
    else
        put 0640 "$root$prefix/share/doc/vgpu/vgpud.toml" /etc/vgpu/vgpud.toml
    fi
}

part_soft-gpu() {
    # The software device is never in a default library path.
    program 0644 libsoft_gpu.so "$prefix/lib/vgpu/soft-gpu/libcuda.so.1"
    ln -sf libcuda.so.1 "$root$prefix/lib/vgpu/soft-gpu/libcuda.so"
    documents "$prefix/share/doc/vgpu-soft-gpu" docs/soft-gpu.md
}

part_guest() {
    libraries "$prefix/lib/vgpu"
    program 0755 vgpu-guest "$prefix/bin/vgpu-guest"
    pages vgpu-guest
    install -d "$root/etc/ld.so.conf.d"
    printf '# The libraries of vGPU, which CUDA programs of this VM load.\n%s\n' "$prefix/lib/vgpu" \
        > "$root/etc/ld.so.conf.d/00-vgpu-guest.conf"
    documents "$prefix/share/doc/vgpu-guest" docs/guest.md docs/coverage.md docs/interoperability.md
}

if [ -x "$built/vgpu-pages" ]; then "$built/vgpu-pages" "$built/pages"; fi
for part in "${parts[@]}"; do
    case "$part" in
        host | guest | soft-gpu) "part_$part" ;;
        *) echo "PARTS names '$part': the parts are host, guest and soft-gpu" >&2; exit 2 ;;
    esac
done
case " ${parts[*]} " in
    *" host "*)
        echo "installed under $root$prefix; next: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload &&"
        echo "systemctl enable --now vgpud (an upgrade: systemctl restart vgpud; docs/operator.md lists the changes)" ;;
    *" guest "*) echo "installed under $root$prefix; next: ldconfig && vgpu-guest doctor" ;;
esac
