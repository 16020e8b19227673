#!/usr/bin/env bash
# Installs a release build: make install DESTDIR=/ PREFIX=/usr
# Never overwrites an existing configuration file.
set -euo pipefail
cd "$(dirname "$0")/.."
destdir="${DESTDIR:-/}"
prefix="${PREFIX:-/usr}"
target="${CARGO_TARGET_DIR:-target}/release"
root="${destdir%/}"
put() { install -D -m "$1" "$2" "$root$3"; }

for binary in vgpud vgpu-probe; do put 0755 "$target/$binary" "$prefix/sbin/$binary"; done
# Not readable, because the kernel lets a user inspect its processes only of readable programs.
put 0711 "$target/vgpu-worker" "$prefix/sbin/vgpu-worker"
put 0755 "$target/vgpu-admin" "$prefix/bin/vgpu-admin"

# The guests' files are separate from the host's own libcuda. Copy them from here into VMs.
put 0755 "$target/libcuda.so" "$prefix/share/vgpu/guest/libcuda.so.1"
put 0755 "$target/libnvidia_ml.so" "$prefix/share/vgpu/guest/libnvidia-ml.so.1"
put 0755 "$target/vgpu-guest" "$prefix/share/vgpu/guest/vgpu-guest"
# Without debugging information, because these files are copied into every VM.
for file in libcuda.so.1 libnvidia-ml.so.1 vgpu-guest; do
    strip --strip-unneeded "$root$prefix/share/vgpu/guest/$file"
done
# The software device is never in a default library path.
put 0755 "$target/libsoft_gpu.so" "$prefix/lib/vgpu/soft-gpu/libcuda.so.1"
ln -sf libcuda.so.1 "$root$prefix/lib/vgpu/soft-gpu/libcuda.so"

for unit in systemd/*.service; do put 0644 "$unit" "$prefix/lib/systemd/system/$(basename "$unit")"; done
for file in systemd/*sysusers*.conf; do
    [ -e "$file" ] && put 0644 "$file" "$prefix/lib/sysusers.d/vgpu.conf"
done
for file in systemd/*tmpfiles*.conf; do
    [ -e "$file" ] && put 0644 "$file" "$prefix/lib/tmpfiles.d/vgpu.conf"
done
for page in docs/*.md; do put 0644 "$page" "$prefix/share/doc/vgpu/$(basename "$page")"; done
# Hooks of hypervisors; docs/libvirt.md, proxmox.md and cloudstack.md say where each is linked to.
for file in vgpu-hook gpudiscovery.sh; do put 0755 "systemd/hypervisors/$file" "$prefix/share/vgpu/hypervisors/$file"; done
for file in libvirt-vm-xml-transformer.groovy cloudstack.toml; do
    put 0644 "systemd/hypervisors/$file" "$prefix/share/vgpu/hypervisors/$file"
done
[ -e "$root/etc/vgpu/hypervisors.conf" ] || put 0644 systemd/hypervisors/hypervisors.conf /etc/vgpu/hypervisors.conf
put 0644 systemd/vgpud.toml "$prefix/share/doc/vgpu/vgpud.toml"
if [ -e "$root/etc/vgpu/vgpud.toml" ]; then
    echo "/etc/vgpu/vgpud.toml is unchanged; the new sample is $prefix/share/doc/vgpu/vgpud.toml"
else
    put 0640 systemd/vgpud.toml /etc/vgpu/vgpud.toml
fi
echo "installed under $root$prefix; next: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload &&"
echo "systemctl enable --now vgpud (an upgrade: systemctl restart vgpud; docs/operator.md lists the changes)"
