"""NVIDIA's Python binding of NVML (nvidia-ml-py), tools that use it, and Ray, on the VM's own libnvidia-ml.so.1.

NVML must agree with CUDA about the same devices. Without a VM (the direct row), there is nothing to test, because
soft-gpu has no NVML.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

if not os.environ.get("VGPU_ADDRESS"):
    pytest.skip("software devices have no NVML of their own", allow_module_level=True)

import pynvml


@pytest.fixture(autouse=True)
def nvml():
    pynvml.nvmlInit()
    yield
    pynvml.nvmlShutdown()


@pytest.fixture(scope="module")
def cuda():
    library = ctypes.CDLL("libcuda.so.1")
    assert library.cuInit(0) == 0
    return library


def number(cuda, function, *args):
    value = ctypes.c_size_t()
    assert getattr(cuda, function)(ctypes.byref(value), *args) == 0
    return value.value


def only():
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def refused(call, *args):
    with pytest.raises(pynvml.NVMLError) as error:
        call(*args)
    return error.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_versions():
    assert pynvml.nvmlSystemGetDriverVersion()
    assert pynvml.nvmlSystemGetNVMLVersion()
    assert pynvml.nvmlSystemGetCudaDriverVersion() == pynvml.nvmlSystemGetCudaDriverVersion_v2()


def test_the_branch_is_that_of_the_driver():
    # NVIDIA's versions begin with a number (580.65.06), those of software devices with "soft".
    first = re.match("[0-9]+|soft", pynvml.nvmlSystemGetDriverVersion())[0]
    branch = pynvml.nvmlSystemGetDriverBranch().branch
    assert branch == ("soft" if first == "soft" else f"r{first}_00")


def test_the_cuda_version_is_cuda_s(cuda):
    version = ctypes.c_int()
    assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert pynvml.nvmlSystemGetCudaDriverVersion() == version.value


def test_count_and_memory_are_cuda_s(cuda):
    assert pynvml.nvmlDeviceGetCount() == number(cuda, "cuDeviceGetCount")
    memory = pynvml.nvmlDeviceGetMemoryInfo(only())
    assert memory.total == number(cuda, "cuDeviceTotalMem_v2", 0)
    assert memory.used + memory.free == memory.total
    newer = pynvml.nvmlDeviceGetMemoryInfo(only(), version=pynvml.nvmlMemory_v2)
    assert newer.total == memory.total
    assert newer.used + newer.reserved + newer.free == newer.total


def test_the_device_is_cuda_s(cuda):
    name = ctypes.create_string_buffer(96)
    assert cuda.cuDeviceGetName(name, 96, 0) == 0
    assert pynvml.nvmlDeviceGetName(only()) == name.value.decode()
    uuid = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetUuid(uuid, 0) == 0
    mine = pynvml.nvmlDeviceGetUUID(only())
    assert mine.replace("-", "").lower() == "gpu" + bytes(uuid).hex()
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(mine)) == 0


def test_the_place_on_the_bus_is_cuda_s(cuda):
    place = ctypes.create_string_buffer(32)
    assert cuda.cuDeviceGetPCIBusId(place, 32, 0) == 0
    device = pynvml.nvmlDeviceGetHandleByPciBusId(place.value)
    assert pynvml.nvmlDeviceGetIndex(device) == 0
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    assert pci.busId.lower().endswith(place.value.decode().lower())


def test_compute_capability_is_cuda_s(cuda):
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, 0) == 0
    assert cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0) == 0
    told = pynvml.nvmlDeviceGetCudaComputeCapability(only())
    assert tuple(told) == (major.value, minor.value)


def test_this_program_is_among_the_processes(cuda):
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(only())
    assert os.getpid() in [process.pid for process in running]
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(only()) == []


def test_utilization_is_a_share():
    rates = pynvml.nvmlDeviceGetUtilizationRates(only())
    assert 0 <= rates.gpu <= 100


def test_sensors_of_the_host_are_hidden():
    assert refused(pynvml.nvmlDeviceGetTemperature, only(), pynvml.NVML_TEMPERATURE_GPU)
    assert refused(pynvml.nvmlDeviceGetPowerUsage, only())
    assert refused(pynvml.nvmlDeviceGetClockInfo, only(), pynvml.NVML_CLOCK_SM)
    assert refused(pynvml.nvmlDeviceGetEccMode, only())


def test_what_pytorch_asks_is_answered(cuda):
    """torch.cuda.utilization, memory_usage, device_memory_used and list_gpu_processes: their
    calls in order."""
    # Each call of PyTorch initialises again and never shuts down.
    pynvml.nvmlInit()
    try:
        rates = pynvml.nvmlDeviceGetUtilizationRates(only())
        assert 0 <= rates.gpu <= 100 and rates.memory == 0
        used = pynvml.nvmlDeviceGetMemoryInfo(only()).used
        (own,) = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(only()) if p.pid == os.getpid()]
        assert 0 <= own.usedGpuMemory <= used
    finally:
        pynvml.nvmlShutdown()


def test_links_are_not_served():
    assert refused(pynvml.nvmlDeviceGetNvLinkState, only(), 0)
    status = pynvml.nvmlDeviceGetP2PStatus(only(), only(), 0)
    assert status != pynvml.NVML_P2P_STATUS_OK


def run(*words):
    told = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_nvitop_shows_the_device():
    told = run("-m", "nvitop", "--once", "--no-unicode")
    assert pynvml.nvmlDeviceGetName(only())[:8] in told, told


def test_gpustat_tells_what_nvml_tells(cuda):
    assert pynvml.nvmlDeviceGetName(only()) in run("-m", "gpustat", "--no-color")
    (device,) = json.loads(run("-m", "gpustat", "--json"))["gpus"]
    assert device["uuid"] == pynvml.nvmlDeviceGetUUID(only())
    assert device["memory.total"] == pynvml.nvmlDeviceGetMemoryInfo(only()).total >> 20
    assert os.getpid() in [process["pid"] for process in device["processes"]]
    assert device["temperature.gpu"] is None


def nvidia_smi(*words):
    program = shutil.which("nvidia-smi")
    if not program:
        pytest.skip("nvidia-smi is not installed: it comes with NVIDIA's driver")
    told = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_nvidia_smi_shows_its_screen():
    told = nvidia_smi()
    total = pynvml.nvmlDeviceGetMemoryInfo(only()).total >> 20
    # nvidia-smi cuts long names.
    assert pynvml.nvmlDeviceGetName(only())[:10] in told, told
    assert f"{total}MiB" in told, told


def test_nvidia_smi_lists_the_device():
    told = nvidia_smi("-L").splitlines()
    name, uuid = pynvml.nvmlDeviceGetName(only()), pynvml.nvmlDeviceGetUUID(only())
    assert told == [f"GPU 0: {name} (UUID: {uuid})"]


def test_nvidia_smi_answers_queries():
    told = nvidia_smi("--query-gpu=name,memory.total,utilization.gpu", "--format=csv,noheader,nounits")
    (line,) = told.splitlines()
    name, total, utilization = line.split(", ")
    assert name == pynvml.nvmlDeviceGetName(only())
    assert int(total) == pynvml.nvmlDeviceGetMemoryInfo(only()).total >> 20
    assert 0 <= int(utilization) <= 100


RAY = """
import ctypes, json, os, ray
ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")

@ray.remote(num_gpus=1)
def task():
    return [ctypes.CDLL("libcuda.so.1").cuInit(0), os.environ["CUDA_VISIBLE_DEVICES"]]

print(json.dumps([ray.cluster_resources().get("GPU"), ray.get(task.remote())]))
ray.shutdown()
"""


def test_ray_finds_the_gpu_and_gives_it_to_a_task():
    assert json.loads(run("-c", RAY).splitlines()[-1]) == [1.0, [0, "0"]]
