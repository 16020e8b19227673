#!/usr/bin/env bash
# Installs the files for the VM test that a machine may lack: QEMU, a guest kernel, busybox,
# vhost-device-vsock, and Debian 11's C library, for an old guest.
# Nothing is installed into the system: Debian packages are unpacked into a cache, once per machine.
# Prints the cache directory; progress goes to standard error.
set -euo pipefail
cache="${VGPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu}/vm"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
say() { echo "vm-test: $*" >&2; }

# Debian packages, unpacked under one prefix. apt's own simulation names the packages that this
# machine lacks, for any release; nothing of the simulation is carried out.
apt=(apt-get -qq -o APT::Sandbox::User=root)
unpack() { # directory, packages…
    local dir=$1; shift
    local debs; debs=$(mktemp -d "$cache/debs.XXXXXX")
    (cd "$debs" && "${apt[@]}" download "$@" >&2)
    mkdir -p "$dir.new"
    for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$dir.new"; done
    rm -rf "$debs" "$dir"
    mv "$dir.new" "$dir"
}
lists() { # apt's package lists, fetched if this machine has none
    apt-cache show "$1" >/dev/null 2>&1 && return
    say "fetching Debian's package lists"
    apt-get -qq update >&2
    apt-cache show "$1" >/dev/null || { say "Debian has no package $1 here"; exit 1; }
}

if [ ! -x "$cache/qemu/run" ]; then
    if command -v qemu-system-x86_64 >/dev/null; then
        mkdir -p "$cache/qemu"
        printf '#!/bin/sh\nexec qemu-system-x86_64 "$@"\n' > "$cache/qemu/run"
    else
        say "unpacking QEMU"
        lists qemu-system-x86
        mapfile -t packages < <(apt-get install -s --no-install-recommends qemu-system-x86 |
            sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p')
        [ "${#packages[@]}" -gt 0 ] || { say "apt names no packages for QEMU"; exit 1; }
        unpack "$cache/qemu" "${packages[@]}"
        cat > "$cache/qemu/run" <<EOF
#!/bin/sh
q=$cache/qemu
l=x86_64-linux-gnu
export LD_LIBRARY_PATH=\$q/usr/lib/\$l:\$q/lib/\$l:\$q/usr/lib:\$q/lib
exec \$q/usr/bin/qemu-system-x86_64 -L \$q/usr/share/qemu -L \$q/usr/share/seabios "\$@"
EOF
    fi
    chmod +x "$cache/qemu/run"
fi
"$cache/qemu/run" --version | head -1 >&2

if [ ! -d "$cache/kernel/boot" ]; then
    say "unpacking a guest kernel and busybox"
    lists linux-image-cloud-amd64
    image=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/{print $2; exit}')
    unpack "$cache/busybox" busybox-static
    unpack "$cache/kernel" "$image"
fi

# From the source of this machine's own packages, with separate lists and cache.
debian11() (
    set -e
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(CODENAME) $(REPO_URI)' |
        awk '$1 == "Debian" && $2 == "main" && $3 !~ /-/ {print $4; exit}')
    [ -n "$mirror" ] || { say "this machine's packages are not Debian's"; exit 1; }
    lists="$cache/debian11.apt"
    mkdir -p "$lists/lists/partial"
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] $mirror bullseye main" > "$lists/sources.list"
    apt+=(-o "Dir::Etc::SourceList=$lists/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::Cache=$lists"
        -o "Dir::State::Lists=$lists/lists" -o Dir::State::Status=/dev/null -o Acquire::Languages=none)
    "${apt[@]}" update >&2
    unpack "$cache/debian11.unpacked" libc6 libc6-dev linux-libc-dev
    rm -rf "$lists"
    cd "$cache/debian11.unpacked"
    # A compiler resolves links in the directory, not in the system to which it belongs.
    find . -type l -lname '/*' -printf '%P %l\n' | while read -r link to; do
        ln -sfn "$(realpath -ms --relative-to="$(dirname "$link")" "./$to")" "$link"
    done
    mv "$cache/debian11.unpacked" "$cache/debian11"
)
if [ ! -d "$cache/debian11" ]; then
    say "unpacking Debian 11's C library"
    lists busybox-static
    # Not `debian11 || …`: bash would then ignore errors inside the function.
    debian11 &
    wait $! || say "SKIPPED: Debian 11's C library cannot be had; no guest will have an old one"
fi

vsock="$cache/vhost-device-vsock"
if [ ! -x "$vsock/bin/vhost-device-vsock" ]; then
    say "building vhost-device-vsock (about a minute)"
    cargo install -q --locked --root "$vsock" --target-dir "$cache/build" \
        vhost-device-vsock --version 0.3.0 >&2
    rm -rf "$cache/build"
fi
"$vsock/bin/vhost-device-vsock" --version >&2
echo "$cache"
