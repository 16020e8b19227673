#!/bin/sh
# Replaces NVIDIA's ptxas (TRITON_PTXAS_PATH): passes the PTX through instead of assembling machine
# code, which no software device runs. Triton writes PTX of the version that this release reads.
if [ "$1" = --version ]; then
    echo "Cuda compilation tools, release 12.4, V12.4.0"
    exit
fi
while [ $# -gt 0 ]; do
    case $1 in
        -o) out=$2; shift ;;
        *.ptx) ptx=$1 ;;
    esac
    shift
done
{ cat "$ptx" && printf '\0'; } >"$out"
