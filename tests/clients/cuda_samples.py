"""Builds NVIDIA's cuda-samples with nvcc from PyPI, as in their CMakeLists, and has the text of each on success.

    cuda_samples.py INTO DRIVER VENV_12 VENV_13 VENV_MORE [LIBRARIES_12 LIBRARIES_13]

makes the toolkits INTO/12.9 and INTO/13.5, with cuBLAS if there are environments with NVIDIA's libraries.

PyPI has no nvcc of CUDA 12: the toolkit 12.9 is nvcc 13.5 with headers, runtime and NVRTC of 12.9.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

GROUPS = ["0_Introduction", "3_CUDA_Features"]
# Software devices run PTX, and GPUs compile it.
TARGET = ["-gencode", "arch=compute_80,code=compute_80"]


# The text of each sample on success: its own verdict, or else its last words (the exit status is
# then the verdict).
SAYS = {
    "UnifiedMemoryStreams": "All Done!",
    "StreamPriorities": "elapsed time of kernels launched to HI  priority stream",
    "asyncAPI": "iterations while waiting for GPU to finish",
    "bf16TensorCoreGemm": "TFLOPS:",
    "binaryPartitionCG": "Array size = 102400 Num of Odds = 50945 Sum of Odds = 1272565 Sum of Evens 1233938",
    "cdpAdvancedQuicksort": "cdpAdvancedQuicksort PASSED",
    "cdpBezierTessellation": "Done!",
    "cdpQuadtree": "Results: OK",
    "cdpSimplePrint": "|  BLOCK 9 launched by thread",
    "cdpSimpleQuicksort": "Validating results: OK",
    "clock": "Average clocks/block",
    "clock_nvrtc": "Average clocks/block",
    "cudaOpenMP": "uses CUDA device 0",
    "cudaTensorCoreGemm": "TFLOPS:",
    "dmmaTensorCoreGemm": "FP64 TFLOPS:",
    "fp16ScalarProduct": "fp16ScalarProduct PASSED",
    "globalToShmemAsyncCopy": "Result = PASS",
    "graphConditionalNodes": "simpleSwitchGraph: Complete",
    "graphMemoryFootprint": "Sample complete.",
    "graphMemoryNodes": "Cleanup complete. Exiting sample.",
    "immaTensorCoreGemm": "TOPS:",
    "jacobiCudaGraphs": "jacobiCudaGraphs PASSED",
    "matrixMul": "Result = PASS",
    "matrixMulDrv": "Result = PASS",
    "matrixMulDynlinkJIT": "Test run success!",
    "matrixMul_nvrtc": "Result = PASS",
    "memMapIPCDrv": "Process 0: verifying...",
    "mergeSort": "...stability property: stable!",
    "newdelete": "Test Summary: 3/3 succesfully run",
    "ptxjit": "CUDA kernel launched",
    "simpleAWBarrier": "Result = PASSED",
    "simpleAssert": "simpleAssert completed, returned OK",
    "simpleAssert_nvrtc": "Device assert failed as expected",
    "simpleAtomicIntrinsics": "completed, returned OK",
    "simpleAtomicIntrinsics_nvrtc": "completed, returned OK",
    "simpleCallback": "Success",
    "simpleCooperativeGroups": "...Done.",
    "simpleCubemapTexture": "Mtexlookups/sec",
    "simpleCudaGraphs": "Host callback final reduced sum = 0.996214",
    "simpleDrvRuntime": "Result = PASS",
    "simpleHyperQ": "Measured time for sample",
    "simpleIPC": "Process 0 complete!",
    "simpleLayeredTexture": "Mtexlookups/sec",
    "simpleMPI": "PASSED",
    "simpleMultiCopy": "Overlapped using 4 streams",
    "simpleMultiGPU": "Relative difference:",
    "simpleOccupancy": "Test PASSED",
    "simpleP2P": "Test passed",
    "simplePitchLinearTexture": "completed, returned OK",
    "simplePrintf": "[3, 7]:\t\tValue is:10",
    "simpleStreams": "4 streams:",
    "simpleSurfaceWrite": "completed, returned OK",
    "simpleTemplates": "Test Results: 0 Failures",
    "simpleTexture": "completed, returned OK",
    "simpleTextureDrv": "Throughput",
    "simpleVoteIntrinsics": "Shutting down...",
    "simpleZeroCopy": "> Releasing CPU memory...",
    "systemWideAtomics": "completed, returned OK",
    "template": "Processing time:",
    "tf32TensorCoreGemm": "TFLOPS:",
    "vectorAdd": "Test PASSED",
    "vectorAddDrv": "Result = PASS",
    "vectorAddMMAP": "Result = PASS",
    "vectorAdd_nvrtc": "Test PASSED",
    "warpAggregatedAtomicsCG": "Warp Aggregated Atomics PASSED",
}


# Options of samples that otherwise compute for many minutes without a GPU.
OPTIONS = {
    # 101 products of matrices of 320 x 320, instead of 1280 x 1280.
    "globalToShmemAsyncCopy": ["-wA=320", "-hA=320", "-wB=320", "-hB=320"],
}


# Most seconds of processor time of samples of tensor cores, in which soft-gpu's instructions for
# matrices take nearly all time: twice what they took on two threads (9, 46, 14.5, 57 and 103 s). Other
# work on the same cores changed this time by up to nine tenths.
MOST_SECONDS = {
    "cudaTensorCoreGemm": 18,
    "tf32TensorCoreGemm": 92,
    "immaTensorCoreGemm": 29,
    "bf16TensorCoreGemm": 114,
    "dmmaTensorCoreGemm": 206,
}


# Lines with these words differ between runs: durations, rates, and products of random numbers.
TIMED = re.compile(r"time|elapsed|clocks|iterations while|speedup|throughput|\d ?(ms|s|GB/s|GFlop/s)\b|T?(FL)?OPS:|"
                   r"^\d+ streams:|^(memcopy|kernel|non-streamed):|approx\.|"
                   r"^Result (native operators|intrinsics)", re.IGNORECASE)


def normalised(text):
    """The part of the output that must not differ between runs. Kernels and threads print lines
    in any order."""
    lines = []
    for line in text.splitlines():
        # UnifiedMemoryStreams draws sizes at random, and computes the small ones on the host.
        line = re.sub(r"^Task \[.*", "Task", line)
        line = re.sub(r"0x[0-9a-f]+", "ADDRESS", line)
        line = re.sub(r"(_ipc_|IPC)shm\d+", r"\1shm", line)
        lines.append(re.sub(r"-?\d+(\.\d+)?", "N", line) if TIMED.search(line) else line)
    return sorted(lines)


def ending(status):
    """How a program ended. The harness knows the words of a death by signal
    (tests/src/clients/events.rs)."""
    return f"ended its process by signal {-status}" if status < 0 else f"status {status}"


def too_slow(name, seconds):
    """A sentence if a sample took more processor time than it may, else None."""
    most = MOST_SECONDS.get(name)
    if most is None or seconds <= most:
        return None
    return f"it took {seconds:.1f} s of processor time, and may take {most} s (MOST_SECONDS in cuda_samples.py)"


class Failed(Exception):
    """A sample that cannot be built, with the compiler's message."""


class Sample:
    """A sample of a checkout, as its CMakeLists.txt describes it."""

    def __init__(self, checkout, name):
        found = [checkout / "Samples" / group / name for group in GROUPS]
        self.name, self.common = name, checkout / "Common"
        self.dir = next(path for path in found if path.is_dir())
        lines = (self.dir / "CMakeLists.txt").read_text().splitlines()
        cmake = " ".join(line.split("#")[0] for line in lines)
        made = re.search(r"add_executable\(\s*\w+\s+([^)]*)\)", cmake)
        self.sources = made[1].split()
        libraries = " ".join(re.findall(r"target_link_libraries\(([^)]*)\)", cmake))
        self.driver = "CUDA::cuda_driver" in libraries
        self.nvrtc = "CUDA::nvrtc" in libraries
        self.cublas = "CUDA::cublas" in libraries
        self.openmp = "OpenMP::" in libraries
        self.mpi = "MPI_" in libraries
        self.separable = "CUDA_SEPARABLE_COMPILATION ON" in cmake
        # Without code of the runtime, the static and the shared program are the same.
        self.runtime = "CUDA::cudart" in libraries or any(s.endswith(".cu") for s in self.sources)
        self.image = None
        image = re.search(r"set\(CUDA_(FATBIN|PTX)_FILE\s+\"\$\{CMAKE_CURRENT_BINARY_DIR\}/([^\"]+)\"", cmake)
        if image:
            kernel = re.search(r"set\(CUDA_KERNEL_SOURCE\s+\"\$\{CMAKE_CURRENT_SOURCE_DIR\}/([^\"]+)\"", cmake)
            self.image = (image[1].lower(), image[2], kernel[1])

    def commands(self, toolkit, cudart, into):
        """The build commands; the last one makes the program."""
        nvcc = [str(toolkit / "bin/nvcc"), "-std=c++17", *TARGET, "-Wno-deprecated-gpu-targets"]
        nvcc += [f"-I{path}" for path in [self.common, self.dir, *extra_includes(toolkit)]]
        if self.image:
            kind, file, kernel = self.image
            target = TARGET if kind == "fatbin" else ["-arch=compute_80"]
            head = [word for word in nvcc if word not in TARGET]
            yield [*head, *target, f"-{kind}", "-o", str(into / file), str(self.dir / kernel)]
        libraries = ["-lcuda"] * self.driver + ["-lnvrtc"] * self.nvrtc + ["-lcublas"] * self.cublas
        libraries += ["-lrt", "-ldl"]
        libraries += ["-lmpi", "-Xlinker", "--allow-shlib-undefined"] * self.mpi
        options = ["-Xcompiler", "-fopenmp"] * self.openmp + ["-rdc=true"] * self.separable
        real = (toolkit / "lib").resolve()
        places = {str((real / f).resolve().parent) for f in os.listdir(real) if not f.startswith("libcuda.")}
        rpath = [word for place in sorted(places) for word in ("-Xlinker", f"-rpath={place}")]
        sources = [str(self.dir / source) for source in self.sources]
        yield [*nvcc, "--extended-lambda", f"-cudart={cudart}", *options, *sources, *libraries, *rpath,
               "-o", str(into / self.name)]

    def build(self, toolkit, cudart, into):
        """Builds into a directory, unless it was built there from the same inputs; returns the
        program."""
        commands = list(self.commands(toolkit, cudart, into))
        hash = hashlib.sha256(repr(commands).encode())
        for file in sorted(path for path in self.dir.rglob("*") if path.is_file()):
            hash.update(file.read_bytes())
        stamp = into / "made"
        if not stamp.is_file() or stamp.read_text() != hash.hexdigest():
            shutil.rmtree(into, ignore_errors=True)
            into.mkdir(parents=True)
            # Samples look for their data and for NVRTC's sources in their working directory.
            headers = ["cooperative_groups.h", "cooperative_groups", "nv", "cuda"] if self.nvrtc else []
            near = [include(toolkit, header) for header in headers]
            for file in [*self.dir.iterdir(), *near]:
                (into / file.name).symlink_to(file)
            for command in commands:
                done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                if done.returncode:
                    raise Failed(f"{' '.join(command)}: {done.stdout}{done.stderr}")
            stamp.write_text(hash.hexdigest())
        return into / self.name


def extra_includes(toolkit):
    return sorted((toolkit / "more").glob("*"))


def include(toolkit, header):
    places = [toolkit / "include/cccl", *extra_includes(toolkit), toolkit / "include"]
    return next(place / header for place in places if (place / header).exists())


def make_toolkit(into, compiler, include, more, libraries, driver):
    """A toolkit in the layout that nvcc expects; the packages have a different layout."""
    # nvcc finds the other files relative to its own path, so a link would not work.
    shutil.copytree(compiler / "bin", into / "bin", copy_function=os.link)
    (into / "nvvm").symlink_to(compiler / "nvvm")
    (into / "include").symlink_to(include)
    (into / "more").mkdir()
    for number, place in enumerate(more):
        (into / "more" / str(number)).symlink_to(place)
    (into / "lib").mkdir()
    for file in [file for place in libraries for file in place.glob("lib*") if file.is_file()]:
        (into / "lib" / file.name).symlink_to(file)
        # The packages have libcudart.so.13, but no libcudart.so. NVRTC's own library, behind the
        # wrapper, has the functions, and its name in the file is libnvrtc.so.13.
        plain = re.match(r"(libcudart|libnvrtc|libcublas)(?:-real)?\.so\.\d+$", file.name)
        if plain and (plain[1] != "libnvrtc" or "-real" in file.name):
            (into / "lib" / f"{plain[1]}.so").symlink_to(file)
    (into / "lib/libcuda.so").symlink_to(driver)


def cublas_of(package, into):
    """cuBLAS alone, because its package's directories may also have the runtime of another release."""
    into.mkdir(parents=True)
    for file in [*package.glob("include/cublas*"), *package.glob("lib/libcublas*.so.*")]:
        os.link(file, into / file.name)
    return into


def make_toolkits(into, driver, venv_12, venv_13, venv_more, libraries_12=None, libraries_13=None):
    """Both toolkits, from the packages of three to five Python environments."""
    shutil.rmtree(into, ignore_errors=True)
    packages = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/nvidia"
    twelve, thirteen = venv_12 / packages, venv_13 / packages / "cu13"
    more = [twelve / package / "include" for package in ("cuda_nvcc", "cuda_cccl", "cuda_nvrtc")]
    more += [venv_more / packages / "cuda_profiler_api/include", venv_more / "include"]
    libraries = [*(twelve / package / "lib" for package in ("cuda_runtime", "cuda_nvrtc")), venv_more / "lib"]
    if libraries_12:
        more.append(cublas_of(libraries_12 / packages / "cublas", into / "cublas-12"))
        libraries.append(more[-1])
    make_toolkit(into / "12.9", thirteen, twelve / "cuda_runtime/include", more, libraries, driver)
    more = [venv_more / packages / "cu13/include", venv_more / "include"]
    libraries = [thirteen / "lib", venv_more / "lib"]
    if libraries_13:
        more.append(cublas_of(libraries_13 / packages / "cu13", into / "cublas-13"))
        libraries.append(more[-1])
    make_toolkit(into / "13.5", thirteen, thirteen / "include", more, libraries, driver)


if __name__ == "__main__":
    make_toolkits(*[pathlib.Path(path) for path in sys.argv[1:]])
