#!/usr/bin/env python3
"""Makes the two name lists of src/capi/ from public headers (facts only: names and versions).

    scripts/symbols.py <cuda.h> <cudaTypedefs.h> <cudarc src/driver/sys/mod.rs>

symbols.txt  every function that the library must export, one a line;
procs.txt    what cuGetProcAddress answers: base name, first version, flags, symbol.

The headers are those of the NVIDIA wheel `nvidia-cuda-runtime` (CUDA 13.5). Rule of procs.txt: the
PFN_<name>_v<version> typedefs, ascending by version, pair with the existing symbols <name>,
<name>_v2, _v3 ... in order; rows of per-thread default streams (flags 2) likewise among the
_ptds/_ptsz symbols.
"""
import collections
import os
import re
import sys

header, typedefs, cudarc = (open(p).read() for p in sys.argv[1:4])
out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "capi")

symbols = set(re.findall(r"\bCUDAAPI\s+(cu\w+)\s*\(", header))
for kind in ("PTSZ", "PTDS"):
    symbols |= {f"{n}_{kind.lower()}" for n in re.findall(rf"__CUDA_API_{kind}\((cu\w+)\)", header)}
symbols |= set(re.findall(r"^#\s*define\s+cu\w+\s+(?:__CUDA_API_PT[SD][SZ]\()?(cu[A-Z]\w+)\)?\s*$", header, re.M))
symbols |= set(re.findall(r"pub unsafe fn (cu\w+)", cudarc))

plain = collections.defaultdict(list)
for s in symbols:
    m = re.fullmatch(r"(cu\w+?)(?:_v(\d+))?(_pt[sd][sz])?", s)
    plain[m[1], bool(m[3])].append((int(m[2] or 1), s))

rows = collections.defaultdict(set)
for name, version, pt in re.findall(r"\bPFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", typedefs):
    rows[name, bool(pt)].add(int(version))

lines = []
for (name, pt), versions in sorted(rows.items()):
    have = [s for _, s in sorted(plain[name, pt])]
    if len(have) > len(versions):  # A variant without a typedef: never the newest ones.
        have = have[-len(versions):]
    for version, symbol in zip(sorted(versions), have):
        lines.append(f"{name} {version} {2 if pt else 0} {symbol}")
    if len(have) < len(versions):
        print("no symbol for", name, sorted(versions), have, file=sys.stderr)

open(os.path.join(out, "symbols.txt"), "w").write("\n".join(sorted(symbols)) + "\n")
open(os.path.join(out, "procs.txt"), "w").write("\n".join(lines) + "\n")
print(len(symbols), "symbols,", len(lines), "rows", file=sys.stderr)
