#!/bin/sh
# Runs in place of CloudStack's gpudiscovery.sh and adds the shares of /etc/vgpu/cloudstack.toml to
# its output (docs/cloudstack.md). CloudStack's script is beside, as gpudiscovery.sh.cloudstack.
PATH=$PATH:/usr/local/bin:/usr/bin:/bin
shares=${VGPU_CLOUDSTACK_CONF:-/etc/vgpu/cloudstack.toml}
original=$0.cloudstack

if [ ! -x "$original" ]; then
    echo "vgpu: CloudStack's script $original is missing" >&2
    exit 1
fi
[ -e "$shares" ] || exec "$original" "$@"
found=$("$original" "$@") || { echo "vgpu: $original failed" >&2; exit 1; }
# Without the shares, CloudStack would take the GPUs of vgpud as free for passthrough: the script
# prints nothing then.
printf '%s' "$found" | timeout 20 vgpu-admin cloudstack discover --shares="$shares"
