#!/usr/bin/env python3
"""Makes proto/cuda-abi/src/names/ladder.rs from NVIDIA's headers (facts only: names and versions).

    python3 proto/cuda-abi/gen/names.py INCLUDE_DIRECTORY

A row says what cuGetProcAddress answers: name asked for, first version, flags, symbol. The symbols, and those that
no header mentions (UNDOCUMENTED in names/mod.rs), are what NVIDIA's library exports.

The headers are those of the NVIDIA wheel `nvidia-cuda-runtime` (CUDA 13.5). The rule (checked against the answers of
drivers of CUDA 12.2, 12.4 and 12.5: 61,488 of 61,488 each): the typedefs `PFN_<name>_v<version>`, ascending by
version, pair with the existing symbols `<name>`, `<name>_v2`, `<name>_v3`, ... in that order; the rows of per-thread
default streams (flags 2) likewise with the symbols that end in _ptds or _ptsz.
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

HEAD = """//! Names and versions of the driver's functions; made by `gen/names.py` from NVIDIA's headers.

use super::Form;

ladder! {
"""

# Of cudaProfiler.h, which has no typedefs: (name, version).
PROFILER = [("cuProfilerInitialize", 4000), ("cuProfilerStart", 4000), ("cuProfilerStop", 4000)]
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
    unpaired = named - {symbol for *_, symbol in procs}
    if unpaired:
        sys.exit(f"no typedef has these: {sorted(unpaired)}")
    rows = "".join("    {} {} {} {};\n".format(*row) for row in procs)
    (Path(__file__).parent.parent / "src/names/ladder.rs").write_text(f"{HEAD}{rows}}}\n")


main()
