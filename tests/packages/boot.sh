#!/usr/bin/env bash
# tests/packages/boot.sh ROOT: boots the systemd of the Debian root file system ROOT as process 1 of
# new namespaces, without a network, and becomes the process that waits for its end. Needs root.
set -euo pipefail
root=$1
# A cgroup of its own in the unified hierarchy, where systemd creates the units' cgroups.
unified=/sys/fs/cgroup
[ ! -d "$unified/unified" ] || unified=$unified/unified
cgroup="$unified/vgpu-packages-$$"
mkdir -p "$cgroup"
echo $$ > "$cgroup/cgroup.procs"
# shellcheck disable=SC2016
exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup --propagation private bash -euc '
    mount --bind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    for place in run tmp dev; do mount -t tmpfs tmpfs $place; done
    for node in null zero full random urandom tty; do
        touch dev/$node
        mount --bind /dev/$node dev/$node
    done
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
    mount -t tmpfs tmpfs dev/shm
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    for n in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${n%:*} dev/${n#*:}; done
    pivot_root . mnt
    umount -l /mnt
    exec env -i container=vgpu-test PATH=/usr/sbin:/usr/bin /lib/systemd/systemd </dev/null
' boot "$root"
