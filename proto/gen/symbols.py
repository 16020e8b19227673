#!/usr/bin/env python3
"""Makes the two lists of names in proto/src/cuda/ from NVIDIA's headers (facts only: names and versions).

    python3 proto/gen/symbols.py INCLUDE_DIRECTORY

symbols.txt  every function that NVIDIA's library exports, one a line: the shim and soft-gpu export these;
procs.txt    what cuGetProcAddress answers: name asked for, first version, flags, symbol.

The headers are those of the NVIDIA wheel `nvidia-cuda-runtime` (CUDA 13.5). The rule of procs.txt (checked against
the answers of drivers of CUDA 12.2, 12.4 and 12.5: 61,488 of 61,488 each): the typedefs `PFN_<name>_v<version>`,
ascending by version, pair with the existing symbols `<name>`, `<name>_v2`, `<name>_v3`, ... in that order; the rows
of per-thread default streams (flags 2) likewise with the symbols that end in _ptds or _ptsz.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

DEFINE = re.compile(r"^\s*#define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_(PTDS|PTSZ)\()?(cu[A-Z]\w*)\)?\s*$", re.M)
PROTOTYPE = re.compile(r"CUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(")
TYPEDEF = re.compile(r"\*PFN_(cu[A-Z]\w*?)_v(\d+)(?:_(ptds|ptsz))?\)")
SUFFIX = re.compile(r"^(cu\w+?)(?:_v(\d+))?(?:_(ptds|ptsz))?$")
INTERNAL = "#if defined(__CUDA_API_VERSION_INTERNAL)"

# Of cudaProfiler.h, which has no typedefs: (name, version).
PROFILER = [("cuProfilerInitialize", 4000), ("cuProfilerStart", 4000), ("cuProfilerStop", 4000)]
# Exported by the libraries of CUDA 12.4 and 12.5, and in no header.
UNDOCUMENTED = {"cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2"}
# In a header, and exported by no library for Linux on a PC.
ELSEWHERE = {"cuEventCreateFromEGLSync", "cuWGLGetDevice"}


def symbols_of(header):
    """Exported names: prototypes, seen through the renaming macros, and what these expand to."""
    renamed, names = {}, set()
    for name, kind, target in DEFINE.findall(header):
        renamed.setdefault(name, target)
        names.add(target)
        if kind:
            names.add(target + "_" + kind.lower())
    # Within the internal section the macros are undefined: names there are meant literally.
    start = header.rfind(INTERNAL) if INTERNAL in header else len(header)
    for name in PROTOTYPE.findall(header[:start]):
        names.add(renamed.get(name, name))
    names.update(PROTOTYPE.findall(header[start:]))
    # Names that are only inline functions of the header are no symbols of a driver.
    return names - set(re.findall(r"static inline CUresult (cu\w+)\(", header))


def procs_of(typedefs, names):
    """[(name, version, flags, symbol)] by the rule above; complains where it does not fit."""
    versions, forms = defaultdict(set), defaultdict(dict)
    for name, version, kind in TYPEDEF.findall(typedefs):
        if name not in ELSEWHERE:
            versions[name, kind].add(int(version))
    for symbol in names:
        name, number, kind = SUFFIX.match(symbol).groups()
        forms[name, kind or ""][int(number or 1)] = symbol
    rows = [(name, version, 0, name) for name, version in PROFILER]
    for (name, kind), known in versions.items():
        symbols = [symbol for _, symbol in sorted(forms[name, kind].items())]
        if len(symbols) != len(known):
            sys.stderr.write(f"{name} {kind}: versions {sorted(known)} but symbols {symbols}\n")
        rows += [(name, version, 2 if kind else 0, symbol) for version, symbol in zip(sorted(known), symbols)]
    return sorted(rows, key=lambda row: (row[0], row[2], row[1]))


def main():
    include = Path(sys.argv[1])
    read = lambda name: (include / name).read_text(encoding="utf-8")
    cuda = symbols_of(read("cuda.h")) | {name for name, _ in PROFILER}
    graphics = ("GL", "EGL", "VDPAU")
    named = cuda.union(*(symbols_of(read(f"cuda{api}.h")) for api in graphics)) - ELSEWHERE
    typedefs = "".join(read(f"cuda{api}Typedefs.h") for api in ("", *graphics))
    procs = procs_of(typedefs, named)
    folder = Path(__file__).parent.parent / "src/cuda"
    symbols = named | UNDOCUMENTED
    (folder / "symbols.txt").write_text("".join(f"{name}\n" for name in sorted(symbols)))
    (folder / "procs.txt").write_text("".join("{} {} {} {}\n".format(*row) for row in procs))


main()
