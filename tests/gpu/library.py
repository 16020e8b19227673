#!/usr/bin/env python3
"""Compares the properties of the host's CUDA driver library with the assumptions of this project.

    library.py --binaries DIR [--driver LIBRARY] [--soft] [--report FILE]

Needs no GPU: nothing here calls cuInit. LIBRARY is the system's libcuda.so.1 if not named; --soft compares soft-gpu, as a
check of this script. Prints a line per check: ok, FAILED or SKIPPED, with the reason. Exits 1 if a check failed.

Libraries are loaded in separate processes, as user nobody if this runs as root: NVIDIA's would create device files.
"""

import argparse
import ctypes
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ROOT / "proto/cuda-abi/src/names/ladder.rs"
NOBODY = 65534
CODES = range(-2, 1101)
# Kernels that call CUDA's device runtime. A program links them with a library of NVIDIA's that is not part of the driver.
# The compiler alone finds no such functions, so these files are compiled and not linked.
NOT_LINKED = ["nested.ptx"]
# What a lookup leaves in its results if it writes nothing.
UNTOUCHED = (0x5A5A, 77)
PTX = ["soft-gpu/fixtures/**/*.ptx", "soft-gpu/src/**/*.ptx", "tests/guests/*.ptx", "tests/truth/*.ptx",
       "daemon/**/*.ptx"]
results = []


def told(name, problem="", skipped=""):
    """Prints and stores the result of a check."""
    state = "SKIPPED" if skipped else "FAILED" if problem else "ok"
    results.append({"check": name, "state": state, "why": skipped or problem})
    print(f"gpu kit: {name}: {state}{': ' if skipped or problem else ''}{skipped or problem}", flush=True)


def as_nobody():
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def alone(work, *arguments):
    """The result of `work` in a separate process without privileges."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            as_nobody()
            with os.fdopen(write, "w") as out:
                json.dump(work(*arguments), out)
            status = 0
        except OSError as problem:
            print(f"gpu kit: {problem}", file=sys.stderr)
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit(f"gpu kit: {work.__name__} of {arguments[0]} failed")
    return json.loads(text)


def path_of(driver):
    """The file that the loader finds for the name."""
    ctypes.CDLL(driver)
    real = os.path.realpath(driver) if "/" in driver else None
    for line in open("/proc/self/maps"):
        path = line.split(maxsplit=5)[-1].strip()
        if path == real or (real is None and os.path.basename(path).startswith("libcuda.so")):
            return path
    raise OSError(f"{driver} is not mapped")


def symbols_of(path):
    listing = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    return [line.split()[2].partition("@")[0] for line in listing.stdout.splitlines()]


def errors_of(driver):
    """{code: [name, text]} of the codes that the library knows."""
    library, found = ctypes.CDLL(driver), {}
    for code in CODES:
        text = ctypes.c_char_p()
        both = []
        for function in (library.cuGetErrorName, library.cuGetErrorString):
            if function(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value is not None:
                both.append(text.value.decode())
        if both:
            found[str(code)] = both
    return found


def version_of(driver):
    version = ctypes.c_int()
    ctypes.CDLL(driver).cuDriverGetVersion(ctypes.byref(version))
    return version.value


def lookups_of(driver, exports, newest):
    """Differences between cuGetProcAddress_v2 and the table, as sentences. `newest`: soft-gpu's
    version.

    A driver answers a request of a version above its own with its newest form (seen in 12.2, 12.4
    and 12.5), or refuses it with CUDA_ERROR_INVALID_VALUE and writes nothing (seen in 13.0, and
    documented since cuda.h of 13.0). A driver does the same for all names, also unknown ones, and
    all flags."""
    library, ladder, wrong = ctypes.CDLL(driver), {"vgpuNoSuchFunction": []}, []
    for name, since, flags, symbol in re.findall(r"^ +(\w+) (\d+) (\d) (\w+);$", NAMES.read_text(), re.M):
        ladder.setdefault(name, []).append((int(since), int(flags), symbol))
    own = version_of(driver)
    versions = sorted({row[0] for rows in ladder.values() for row in rows} | {own, own + 1})
    exports = set(exports)

    def answer(name, version, flags):
        pfn, status = ctypes.c_void_p(UNTOUCHED[0]), ctypes.c_int(UNTOUCHED[1])
        code = library.cuGetProcAddress_v2(
            name.encode(), ctypes.byref(pfn), version, ctypes.c_uint64(flags), ctypes.byref(status)
        )
        return code, pfn.value, status.value

    refusal = (1, *UNTOUCHED)
    refuses = answer("cuInit", own + 1, 0) == refusal
    for name, rows in ladder.items():
        rows = [row for row in rows if row[2] in exports and (newest is None or row[0] <= newest)]
        for flags in (0, 1, 2):
            kind = flags & 2 if any(row[1] == 2 for row in rows) else 0
            for version in versions:
                forms = [row for row in rows if row[1] == kind and row[0] <= version]
                symbol = max(forms)[2] if forms else None
                address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value if symbol else None
                wanted = (0, address, 0 if forms else 2 if rows else 1)
                if refuses and version > own:
                    symbol, wanted = "a refusal", refusal
                got = answer(name, version, flags)
                # soft-gpu finds only functions that it serves.
                unserved = newest is not None and got == (0, None, 1)
                if got != wanted and not unserved:
                    wrong.append(f"{name}@{version}, flags {flags}: {got[0]}, status {got[2]}, not {symbol}")
    return wrong


def compiled_by(compiler, files):
    """Errors of the driver's own compiler for the PTX files, as sentences."""
    jit, wrong = ctypes.CDLL(compiler), []
    for file in files:
        text = pathlib.Path(file).read_bytes()
        handle = ctypes.c_void_p()
        # The architecture of an H100, which is above every .target of the files.
        options = [b"--gpu-name=sm_90"]
        if file.endswith(tuple(NOT_LINKED)):
            options.append(b"--compile-only")
        code = jit.nvPTXCompilerCreate(ctypes.byref(handle), ctypes.c_size_t(len(text)), text)
        if code == 0:
            code = jit.nvPTXCompilerCompile(handle, len(options), (ctypes.c_char_p * len(options))(*options))
            if code != 0:
                size = ctypes.c_size_t()
                jit.nvPTXCompilerGetErrorLogSize(handle, ctypes.byref(size))
                log = ctypes.create_string_buffer(size.value + 1)
                jit.nvPTXCompilerGetErrorLog(handle, log)
                wrong.append(f"{file}: {code} {log.value.decode(errors='replace').strip()}")
            jit.nvPTXCompilerDestroy(ctypes.byref(handle))
        else:
            wrong.append(f"{file}: {code}")
    return wrong


def devices():
    return {path: oct(os.stat(path).st_mode) for path in glob.glob("/dev/nvidia*")}


def few(problems, most=5):
    more = f" … and {len(problems) - most} more" if len(problems) > most else ""
    return "; ".join(problems[:most]) + more


def probe_says(probe, driver, environment):
    """The probe's report about a library, loaded as workers load it."""
    run = subprocess.run(
        [probe, "library", "--driver", driver], capture_output=True, text=True, env=environment, preexec_fn=as_nobody
    )
    return json.loads(run.stdout or '{"ok": false, "message": "no answer"}')


def check_probe(probe, driver, version, directory):
    answer = probe_says(probe, driver, {})
    right = answer["ok"] == (version >= 12040) and driver in answer["message"]
    told("(d) the probe says what the library is", "" if right else str(answer))
    stub = directory / "libcuda.so"
    (directory / "stub.c").write_text("int cuInit(unsigned flags) { return 34; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", stub, directory / "stub.c"], check=True)
    mixed = probe_says(probe, driver, {"LD_LIBRARY_PATH": str(directory)})
    told("(e) another libcuda.so on the library path changes nothing", "" if mixed == answer else str(mixed))


def check_ptx(driver):
    name = "(f) the driver's compiler takes every committed PTX"
    beside = glob.glob(os.path.join(os.path.dirname(driver), "libnvidia-ptxjitcompiler.so.1"))
    if not beside:
        return told(name, skipped=f"no libnvidia-ptxjitcompiler.so.1 beside {driver}")
    files = sorted(str(path) for pattern in PTX for path in ROOT.glob(pattern))
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        copies = [shutil.copy(file, os.path.join(directory, f"{i}-{os.path.basename(file)}")) for i, file in enumerate(files)]
        told(name, few(alone(compiled_by, beside[0], copies)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binaries", type=pathlib.Path, required=True)
    parser.add_argument("--driver", default="libcuda.so.1")
    parser.add_argument("--soft", action="store_true")
    parser.add_argument("--report", type=pathlib.Path)
    options = parser.parse_args()
    before = devices()
    with tempfile.TemporaryDirectory() as directory:
        # A directory that other users cannot read.
        directory = pathlib.Path(directory)
        os.chmod(directory, 0o755)
        shim = shutil.copy(options.binaries / "libcuda.so", directory / "shim.so")
        probe = shutil.copy(options.binaries / "vgpu-probe", directory / "vgpu-probe")
        named = options.driver
        if options.soft:
            named = shutil.copy(named, directory / "soft.so")
        try:
            driver = alone(path_of, str(named))
        except SystemExit:
            # run.sh calls this only where the driver is installed, and with soft-gpu, which is always there.
            told("the driver's library", f"{named} cannot be loaded: nothing of (a) to (h) was checked")
            sys.exit(1)
        version = alone(version_of, driver)
        print(f"gpu kit: {driver}: CUDA {version // 1000}.{version % 1000 // 10}", flush=True)
        exports = symbols_of(driver)
        told("(a) cuGetProcAddress answers as the table of names says", few(alone(lookups_of, driver, exports, version if options.soft else None)))
        known = symbols_of(str(shim))
        new = [name for name in exports if name not in known and not name.startswith("cudbg")]
        told("(b) the library exports nothing that the shim lacks", few(new))
        theirs, ours = alone(errors_of, driver), alone(errors_of, str(shim))
        differ = [f"{code}: {theirs[code]}, ours {ours.get(code)}" for code in theirs if theirs[code] != ours.get(code)]
        told("(c) error names and texts are the library's", few(differ))
        check_probe(probe, driver, version, directory)
        check_ptx(driver)
    after = devices()
    told("(h) the device files are as before", "" if after == before else f"{before} became {after}")
    if options.report:
        options.report.write_text(json.dumps({"driver": driver, "version": version, "checks": results}, indent=1))
    sys.exit(any(result["state"] == "FAILED" for result in results))


main()
