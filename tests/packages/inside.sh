#!/bin/bash
# tests/packages/inside.sh: the checks inside the root file system, whose systemd runs. /debs has
# the packages and the program `hold`.
set -euo pipefail
export DEBIAN_FRONTEND=
step() { printf '== inside: %s (%ss)\n' "$1" "$SECONDS"; }
fail() {
    echo "FAILED: $*" >&2
    journalctl -q -u vgpud -n 20 --no-pager >&2 || true
    exit 1
}
has() { case "$1" in *"$2"*) ;; *) fail "expected '$2' in: $1" ;; esac }
until_true() { # what, command…
    local what=$1 deadline=$((SECONDS + 60)); shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "waited in vain: $what"
        sleep 0.1
    done
}
deb() { echo /debs/"$1"_*-"$2"_*.deb; }
# Without a terminal, as unattended upgrades do.
install_quietly() { dpkg -i "$@" < /dev/null 2>&1 | cat; }
# At a terminal, where the administrator types this answer.
install_answering() { local answer=$1; shift; script -qec "dpkg -i $*" /dev/null <<< "$answer" 2>&1; }
pid() { systemctl show -p MainPID --value vgpud; }
serves() { vgpu-admin status >/dev/null; }
library=/usr/share/vgpu/guest/libcuda.so.1
compute() { VGPU_ADDRESS=unix:/run/vgpu/vm/1/vgpu.sock /debs/hold "$library" "$@"; }
holder() { # starts a program that computes until `stop_holder`
    rm -f /tmp/ready /tmp/stop
    compute /tmp/ready /tmp/stop &
    holding=$!
    until_true "a program computes" test -e /tmp/ready
}
stop_holder() { touch /tmp/stop; wait "$holding" || fail "the running program failed"; }

first_installation() {
    install_quietly "$(deb vgpu-host 1)" "$(deb vgpu-soft-gpu 1)"
    until_true "vgpud serves" serves
    systemctl is-enabled -q vgpud || fail "vgpud is not enabled"
    getent group vgpu vgpu-admin >/dev/null || fail "the groups are missing"
    vgpu-admin scan-gpus >/dev/null
    vgpu-admin assign-gpu --gpu-id=0 --pool=A >/dev/null
    vgpu-admin register-vm --vm-id=1 --pool=A >/dev/null
    until_true "the VM's socket" test -S /run/vgpu/vm/1/vgpu.sock
    has "$(vgpu-admin doctor)" "can run /usr/sbin/vgpu-worker"
    [ "$(stat -c '%a %U' /etc/vgpu/vgpud.toml)" = "640 root" ] || fail "mode of vgpud.toml"
    sed -i 's/^drain_s = .*/drain_s = 1/' /etc/vgpu/vgpud.toml
    echo '# changed here' >> /etc/vgpu/vgpud.toml
    systemctl reload vgpud
}

upgrade() {
    local before said
    before=$(pid)
    # vgpud has not started a worker yet, and the worker of revision 2 is unusable. Without running
    # programs only a policy of the host keeps vgpud from being restarted.
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    has "$(install_quietly "$(deb vgpu-host 2)")" "policy-rc.d forbids it"
    rm /usr/sbin/policy-rc.d
    [ "$(pid)" = "$before" ] || fail "vgpud was restarted against the policy"
    compute || fail "a program of before the restart gets the new worker"

    holder
    said=$(install_quietly "$(deb vgpu-host 3)")
    has "$said" "while 1 program of VMs run"
    has "$said" "systemctl restart vgpud"
    [ "$(pid)" = "$before" ] || fail "vgpud was restarted without a question"
    compute || fail "a new program beside the running one"
    said=$(install_answering n "$(deb vgpu-host 3)")
    has "$said" "Restart vgpud now?"
    [ "$(pid)" = "$before" ] || fail "vgpud was restarted against the answer"
    kill -0 "$holding" || fail "the running program ended"
    stop_holder

    holder
    said=$(install_answering y "$(deb vgpu-host 3)")
    has "$said" "vgpud was restarted"
    [ "$(pid)" != "$before" ] || fail "vgpud was not restarted"
    wait "$holding" && fail "the program outlived the restart"
    until_true "vgpud serves" serves
    until_true "a program of the new vgpud computes" compute

    before=$(pid)
    said=$(install_quietly "$(deb vgpu-host 3)")
    has "$said" "vgpud was restarted"
    [ "$(pid)" != "$before" ] || fail "vgpud was not restarted although no program runs"
    grep -q '^# changed here$' /etc/vgpu/vgpud.toml || fail "the upgrade lost a change of vgpud.toml"
    [ "$(stat -c %a /etc/vgpu/vgpud.toml)" = 640 ] || fail "the upgrade changed the mode of vgpud.toml"

    before=$(pid)
    echo 'nonsense = 1' >> /etc/vgpu/vgpud.toml
    has "$(install_quietly "$(deb vgpu-host 3)")" "refuses /etc/vgpu/vgpud.toml"
    [ "$(pid)" = "$before" ] || fail "vgpud was restarted with a wrong configuration"
    sed -i '/^nonsense/d' /etc/vgpu/vgpud.toml
}

options() { grep -oE '^ +(-[a-zA-Z], )?--[a-z-]+' | grep -oE -- '--[a-z-]+' | sort -u; }
# The pages of a command and of its commands have the options that --help lists.
pages_of() { # page, command…
    local page=$1 text help option; shift
    text=$(man -P cat "$page" 2>/dev/null | col -b) || fail "no manual page $page"
    help=$("$@" --help)
    for option in $(options <<< "$help"); do has "$text" "$option"; done
    pages=$((pages + 1))
    local each
    for each in $(sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\).*/\1/p' <<< "$help"); do
        [ "$each" = help ] || pages_of "$page-$each" "$@" "$each"
    done
}

documents() {
    local name unit=/usr/lib/systemd/system/vgpud.service
    pages=0
    for name in vgpu-admin vgpud vgpu-sim vgpu-guest; do pages_of "$name" "$name"; done
    [ "$pages" -gt 40 ] || fail "only $pages manual pages"
    for name in vgpu-admin vgpud vgpu-sim vgpu-guest; do
        bash -c "source /usr/share/bash-completion/completions/$name; complete -p $name" >/dev/null || fail "bash: $name"
        zsh -c "autoload -U compinit; compinit -D -u; [ -n \"\$_comps[$name]\" ]" || fail "zsh: $name"
        [ -n "$(fish -c "complete -C '$name --'")" ] || fail "fish: $name"
    done
    # As bash does when the administrator types `vgpu-admin pool s` and the tabulator key.
    has "$(bash -c 'source /usr/share/bash-completion/completions/vgpu-admin
        COMP_WORDS=(vgpu-admin pool s) COMP_CWORD=2
        _vgpu__admin vgpu-admin s pool; echo "${COMPREPLY[@]}"')" set
    name=$(sed -n 's#^Documentation=file://##p' $unit)
    [ -e "$name" ] || fail "the unit's Documentation= names $name, which does not exist"
    has "$(vgpud --check --config /nowhere 2>&1 || true)" /usr/share/doc/vgpu/vgpud.toml
    [ -e /usr/share/doc/vgpu/vgpud.toml ] || fail "no sample configuration"
}

guest() {
    local said
    has "$(ldconfig -p)" "libcuda.so.1 (libc6,x86-64) => /usr/lib/vgpu/libcuda.so.1"
    has "$(ldconfig -p)" "libnvidia-ml.so (libc6,x86-64) => /usr/lib/vgpu/libnvidia-ml.so"
    library=libcuda.so compute || fail "a program with the guest's library"
    said=$(VGPU_ADDRESS=unix:/run/vgpu/vm/1/vgpu.sock vgpu-guest status) || fail "vgpu-guest: $said"
    said=$(dpkg -i /debs/libcuda1.deb 2>&1 || true)
    has "$said" "conflicts with"
    dpkg-query -W -f '${db:Status-Abbrev}' libcuda1 2>/dev/null | grep -q '^ii' && fail "NVIDIA's package was installed beside vgpu-guest"
    dpkg --purge vgpu-guest >/dev/null
    has "$(ldconfig -p)" "ld.so.cache"
    ldconfig -p | grep -q libcuda && fail "the linker still finds libcuda"
    [ ! -e /etc/ld.so.conf.d/00-vgpu-guest.conf ] || fail "a line for the linker is left"
    return 0
}

# Files in the state directory that are not vgpud's.
foreign() {
    local images=/var/lib/vgpu/images
    mkdir -p /srv/linked /srv/mounted $images/vm{2-1,3-1,4-1,other}
    touch /srv/linked/kept /srv/mounted/kept /var/lib/vgpu/state.db.bak $images/vm2-1/notes $images/vm3-1/kept $images/vmother/kept
    hash=$(printf 'a%.0s' {1..64})
    touch $images/vm2-1/"$hash" $images/vm3-1/"$hash" /srv/linked/"$hash" /srv/mounted/"$hash"
    ln -s /srv/linked $images/vm5-1
    ln -s /srv/linked/kept $images/vm2-1/.new
    chown 1000 $images/vm3-1
    mount --bind /srv/mounted $images/vm4-1
}

purge() {
    local images=/var/lib/vgpu/images said path
    holder
    foreign
    said=$(dpkg --purge vgpu-host < /dev/null 2>&1)
    has "$said" "running and end by that: 1."
    has "$said" "/var/lib/vgpu stays"
    wait "$holding" && fail "the program outlived vgpud"
    for path in /srv/linked/{kept,$hash} /srv/mounted/{kept,$hash} /var/lib/vgpu/state.db.bak $images/vm2-1/notes \
        $images/vm3-1/{kept,$hash} $images/vmother/kept $images/vm4-1/kept; do
        [ -e "$path" ] || fail "the purge deleted $path"
    done
    [ -L $images/vm5-1 ] || fail "the purge deleted a link"
    mountpoint -q $images/vm4-1 || fail "the purge unmounted a directory"
    for path in /var/lib/vgpu/{state.db,state.db.lock,next-session,last-change} $images/vm1-* $images/vm2-1/"$hash" /etc/vgpu/vgpud.toml; do
        [ ! -e "$path" ] || fail "the purge left $path"
    done
    umount $images/vm4-1
    rm -r /var/lib/vgpu
}

# Nothing of a state directory that is a link, or whose images are, is deleted.
purge_of_links() {
    local link
    for link in /var/lib/vgpu /var/lib/vgpu/images; do
        install_quietly "$(deb vgpu-host 3)" >/dev/null
        until_true "vgpud serves" serves
        systemctl stop vgpud
        rm -rf /srv/moved
        mv $link /srv/moved
        ln -s /srv/moved $link
        find /srv/moved /var/lib/vgpu | sort > /tmp/before
        has "$(dpkg --purge vgpu-host < /dev/null 2>&1)" "is a symbolic link"
        find /srv/moved /var/lib/vgpu | sort | diff /tmp/before - || fail "the purge followed the link $link"
        rm -r $link
        rm -rf /var/lib/vgpu /srv/moved
    done
    install_quietly "$(deb vgpu-host 3)" >/dev/null
    until_true "vgpud serves after the purge" serves
    has "$(vgpu-admin vm list)" "VM"
    dpkg --purge vgpu-host vgpu-soft-gpu < /dev/null >/dev/null 2>&1
    [ ! -e /var/lib/vgpu ] || fail "the purge left /var/lib/vgpu: $(find /var/lib/vgpu)"
    [ ! -e /etc/vgpu ] || fail "the purge left /etc/vgpu"
    dpkg -l 'vgpu-*' 2>/dev/null | grep '^[a-z][a-mo-z]' && fail "packages are left"
    return 0
}

step "first installation"; first_installation
step "upgrade";            upgrade
step "guest";              install_quietly "$(deb vgpu-guest 1)" >/dev/null
documents
guest
step "purge";              purge
step "purge of links";     purge_of_links
