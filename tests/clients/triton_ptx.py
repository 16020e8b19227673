"""PTX made by Triton, run through the CUDA driver API with cuda.bindings and checked with numpy.

    triton_ptx.py generate DIR          compiles the kernels below for sm_80 (needs triton; no GPU)
    triton_ptx.py run DIR [--json FILE]  runs DIR/*.ptx on the driver that the loader finds

`run` needs cuda-bindings and numpy alone. It prints a line for each case and exits with 1 if one
failed; with --json it also writes {"suite", "version", "passed", "failed", "skipped"}.

Triton hands ptxas its PTX to get machine code. Here a script that copies the file stands in for
ptxas, so that nothing of the CUDA toolkit is needed and the "cubin" is the PTX itself.
"""

import ctypes
import json
import os
import pathlib
import stat
import sys
import tempfile

SUITE = "triton-ptx"

# Blocks of the kernels, also for launches by `run`.
ADD_BLOCK = 1024
ROW_BLOCK = 1024
TILE = (64, 64, 32)


# --- generate -------------------------------------------------------------------------------

FAKE_PTXAS = """#!/bin/sh
# Replaces ptxas: copies its input to its output. Triton writes PTX for the release that this script
# names, which is the oldest supported driver.
if [ "$1" = --version ]; then
    echo "Cuda compilation tools, release 12.4, V12.4.131"
    exit 0
fi
while [ $# -gt 0 ]; do
    case "$1" in
        -o) out=$2; shift ;;
        *.ptx) in=$1 ;;
    esac
    shift
done
cp "$in" "$out"
"""


def kernels():
    """The kernels: {file stem: (function, signature, constants, divisible arguments, options)}."""
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)

    @triton.jit
    def softmax(out, x, stride, n, BLOCK: tl.constexpr):
        row = tl.program_id(0) * stride
        i = tl.arange(0, BLOCK)
        v = tl.load(x + row + i, mask=i < n, other=-float("inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, axis=0))
        r = e / tl.sum(e, axis=0)
        tl.store(out + row + i, r.to(out.dtype.element_ty), mask=i < n)

    @triton.jit
    def axpy(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        a = tl.load(x + i, mask=inside)
        b = tl.load(y + i, mask=inside)
        r = tl.where(a < b, a * b + a, tl.maximum(a - b, b))
        tl.store(out + i, r, mask=inside)

    @triton.jit
    def matmul(a, b, c, m, n, k, sa, sb, sc, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
        rows = tl.program_id(0) * M + tl.arange(0, M)
        cols = tl.program_id(1) * N + tl.arange(0, N)
        along = tl.arange(0, K)
        pa = a + rows[:, None] * sa + along[None, :]
        pb = b + along[:, None] * sb + cols[None, :]
        total = tl.dot(
            tl.load(pa, mask=(rows[:, None] < m) & (along[None, :] < k), other=0),
            tl.load(pb, mask=(along[:, None] < k) & (cols[None, :] < n), other=0),
        )
        for at in range(K, k, K):
            pa += K
            pb += K * sb
            x = tl.load(pa, mask=(rows[:, None] < m) & (along[None, :] < k - at), other=0)
            y = tl.load(pb, mask=(along[:, None] < k - at) & (cols[None, :] < n), other=0)
            total = tl.dot(x, y, total)
        pc = c + rows[:, None] * sc + cols[None, :]
        inside = (rows[:, None] < m) & (cols[None, :] < n)
        tl.store(pc, total.to(c.dtype.element_ty), mask=inside)

    out = {}
    for t in "fp32", "fp16":
        signature = {"x": f"*{t}", "y": f"*{t}", "out": f"*{t}", "n": "i32"}
        out[f"add_{t}"] = (add, signature, {"BLOCK": ADD_BLOCK}, range(4), {})
        signature = {"out": f"*{t}", "x": f"*{t}", "stride": "i32", "n": "i32"}
        out[f"softmax_{t}"] = (softmax, signature, {"BLOCK": ROW_BLOCK}, range(3), {})
    for t in "fp16", "bf16":
        signature = {"x": f"*{t}", "y": f"*{t}", "out": f"*{t}", "n": "i32"}
        out[f"axpy_{t}"] = (axpy, signature, {"BLOCK": ADD_BLOCK}, range(4), {})
    for name, t, to in [
        ("matmul_fp16", "fp16", "fp32"),
        ("matmul_fp16_fp16", "fp16", "fp16"),
        ("matmul_bf16", "bf16", "fp32"),
        ("matmul_tf32", "fp32", "fp32"),
        ("matmul_int8", "i8", "i32"),
        ("matmul_fp64", "fp64", "fp64"),
    ]:
        signature = {"a": f"*{t}", "b": f"*{t}", "c": f"*{to}"}
        signature |= dict.fromkeys(["m", "n", "k", "sa", "sb", "sc"], "i32")
        tile = dict(zip("MNK", TILE))
        out[name] = (matmul, signature, tile, range(9), {"num_stages": 3})
    return out


def generate(target):
    """Compiles every kernel into `target`."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        fake = pathlib.Path(scratch) / "ptxas"
        fake.write_text(FAKE_PTXAS)
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        os.environ |= {
            "TRITON_PTXAS_PATH": str(fake),
            "TRITON_CACHE_DIR": str(pathlib.Path(scratch) / "cache"),
            # No file names of this machine in the PTX.
            "TRITON_DISABLE_LINE_INFO": "1",
            "TRITON_DEFAULT_FP_FUSION": "1",
        }
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        for stem, (function, signature, constants, divisible, options) in kernels().items():
            signature = signature | dict.fromkeys(constants, "constexpr")
            source = ASTSource(
                fn=function,
                signature=signature,
                constexprs={(list(signature).index(n),): v for n, v in constants.items()},
                attrs={(i,): [["tt.divisibility", 16]] for i in divisible},
            )
            made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
            # Facts that a launcher needs and that are not in the PTX.
            facts = {
                "triton": triton.__version__,
                "kernel": made.metadata.name,
                "shared": made.metadata.shared,
                "threads": 32 * made.metadata.num_warps,
            }
            text = "// " + json.dumps(facts) + "\n" + made.asm["ptx"].strip() + "\n"
            (target / f"{stem}.ptx").write_text(text)
            print(f"{stem}.ptx: {len(text)} bytes")


# --- run ------------------------------------------------------------------------------------


def check(result):
    """The value of a cuda.bindings call; raises an exception for an error code."""
    code, *values = result
    if int(code) != 0:
        raise RuntimeError(f"{code.name} ({int(code)})")
    return values[0] if len(values) == 1 else values


class Gpu:
    """A device, and the few functions of the driver API that the cases need."""

    def __init__(self):
        from cuda.bindings import driver

        self.cu = driver
        check(driver.cuInit(0))
        self.device = check(driver.cuDeviceGet(0))
        self.context = check(driver.cuDevicePrimaryCtxRetain(self.device))
        check(driver.cuCtxSetCurrent(self.context))

    def upload(self, array):
        address = check(self.cu.cuMemAlloc(max(array.nbytes, 1)))
        check(self.cu.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return address

    def download(self, address, array):
        check(self.cu.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
        return array

    def launch(self, path, grid, args):
        """Loads a file of `generate` and runs its kernel; ints are 32-bit, other arguments are
        pointers."""
        text = path.read_bytes()
        facts = json.loads(text.split(b"\n", 1)[0].removeprefix(b"// "))
        module = check(self.cu.cuModuleLoadData(text + b"\0"))
        kernel = check(self.cu.cuModuleGetFunction(module, facts["kernel"].encode()))
        attribute = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(self.cu.cuFuncSetAttribute(kernel, attribute, facts["shared"]))
        # Triton appends two pointers to scratch memory, which these kernels do not use.
        values = [*map(int, args), 0, 0]
        types = [ctypes.c_int if isinstance(a, int) else ctypes.c_void_p for a in args]
        kernel_args = (tuple(values), (*types, ctypes.c_void_p, ctypes.c_void_p))
        grid = (*grid, 1, 1)[:3]
        block = (facts["threads"], 1, 1)
        check(self.cu.cuLaunchKernel(kernel, *grid, *block, facts["shared"], 0, kernel_args, 0))
        check(self.cu.cuCtxSynchronize())
        check(self.cu.cuModuleUnload(module))


def cases():
    """{file stem: function of a Gpu and a path that raises if the numbers are wrong}."""
    import numpy as np

    rng = np.random.default_rng(4)

    def brain(x):
        """The bfloat16 bits of singles, rounded to nearest even."""
        bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def wide(bits):
        return (bits.astype(np.uint32) << 16).view(np.float32)

    def numbers(shape, kind):
        x = rng.standard_normal(shape)
        return {
            "fp64": lambda: x,
            "fp32": lambda: x.astype(np.float32),
            "fp16": lambda: x.astype(np.float16),
            "bf16": lambda: brain(x),
            "i8": lambda: rng.integers(-128, 128, shape, dtype=np.int8),
        }[kind]()

    def exact(x, kind):
        return (wide(x) if kind == "bf16" else x).astype(np.float64)

    def close(got, want, relative, absolute=0.0):
        np.testing.assert_allclose(got, want, rtol=relative, atol=absolute)

    def add(kind):
        def case(gpu, path):
            n = 5000
            x, y = numbers(n, kind), numbers(n, kind)
            out = np.zeros_like(x)
            at = gpu.upload(out)
            gpu.launch(path, [-(-n // ADD_BLOCK)], [gpu.upload(x), gpu.upload(y), at, n])
            np.testing.assert_array_equal(gpu.download(at, out), x + y)

        return case

    def axpy(kind):
        def case(gpu, path):
            n = 3000
            x, y = numbers(n, kind), numbers(n, kind)
            out = np.zeros_like(x)
            at = gpu.upload(out)
            gpu.launch(path, [-(-n // ADD_BLOCK)], [gpu.upload(x), gpu.upload(y), at, n])
            got = exact(gpu.download(at, out), kind)
            a, b = exact(x, kind), exact(y, kind)
            # Product and sum may be rounded once or twice.
            step = 2.0**-8 if kind == "bf16" else 2.0**-11
            close(got, np.where(a < b, a * b + a, np.maximum(a - b, b)), 2 * step, step)

        return case

    def softmax(kind):
        def case(gpu, path):
            rows, n, stride = 7, 1000, 1008
            x = numbers((rows, stride), kind)
            out = np.zeros_like(x)
            at = gpu.upload(out)
            gpu.launch(path, [rows], [at, gpu.upload(x), stride, n])
            v = x[:, :n].astype(np.float64)
            e = np.exp(v - v.max(axis=1, keepdims=True))
            want = e / e.sum(axis=1, keepdims=True)
            got = gpu.download(at, out)
            relative, absolute = (1e-5, 0) if kind == "fp32" else (1e-3, 2.0**-25)
            close(got[:, :n], want, relative, absolute)
            assert not got[:, n:].any(), "written beyond the row"

        return case

    def matmul(kind, to, tolerance):
        def case(gpu, path):
            m, n, k = 144, 80, 112
            a, b = numbers((m, k), kind), numbers((k, n), kind)
            out = np.zeros((m, n), to)
            at = gpu.upload(out)
            grid = [-(-m // TILE[0]), -(-n // TILE[1])]
            args = [gpu.upload(a), gpu.upload(b), at, m, n, k, k, n, n]
            gpu.launch(path, grid, args)
            want = exact(a, kind) @ exact(b, kind)
            scale = abs(exact(a, kind)) @ abs(exact(b, kind))
            got = gpu.download(at, out).astype(np.float64)
            assert (abs(got - want) <= tolerance * scale).all(), abs(got - want).max()

        return case

    return {
        "add_fp32": add("fp32"),
        "add_fp16": add("fp16"),
        "axpy_fp16": axpy("fp16"),
        "axpy_bf16": axpy("bf16"),
        "softmax_fp32": softmax("fp32"),
        "softmax_fp16": softmax("fp16"),
        "matmul_fp16": matmul("fp16", np.float32, 1e-6),
        "matmul_fp16_fp16": matmul("fp16", np.float16, 5e-4),
        "matmul_bf16": matmul("bf16", np.float32, 1e-6),
        # tf32 keeps 10 bits of a factor's fraction.
        "matmul_tf32": matmul("fp32", np.float32, 2.0**-9),
        "matmul_int8": matmul("i8", np.int32, 0),
        "matmul_fp64": matmul("fp64", np.float64, 1e-14),
    }


def run(source, report):
    """Runs every case and returns the number of failures."""
    gpu = Gpu()
    passed, failed, version = 0, 0, ""
    for stem, case in cases().items():
        path = source / f"{stem}.ptx"
        try:
            version = json.loads(path.read_text().split("\n", 1)[0][3:])["triton"]
            case(gpu, path)
        except Exception as error:  # noqa: BLE001: any failure is a failed case
            failed += 1
            print(f"{stem}: FAILED: {type(error).__name__}: {error}")
        else:
            passed += 1
            print(f"{stem}: ok")
    print(f"{SUITE} {version}: {passed} passed, {failed} failed")
    if report:
        facts = {"suite": SUITE, "version": version, "passed": passed}
        facts |= {"failed": failed, "skipped": 0}
        pathlib.Path(report).write_text(json.dumps(facts) + "\n")
    return failed


def main(arguments):
    match arguments:
        case ["generate", target]:
            generate(pathlib.Path(target))
        case ["run", source]:
            return int(run(pathlib.Path(source), None) > 0)
        case ["run", source, "--json", report]:
            return int(run(pathlib.Path(source), report) > 0)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
