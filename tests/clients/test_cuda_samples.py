"""One of NVIDIA's cuda-samples, built with each toolkit and way of linking: it must end and print its text of success.

On a VM, its output must also equal that on the driver itself, except for times, rates and addresses.

VGPU_SAMPLE: its name. VGPU_SAMPLES: the directory of the builds, with the toolkits. VGPU_SAMPLES_12, VGPU_SAMPLES_13:
the checkouts for CUDA 12 and 13. VGPU_SAMPLES_DRIVER: the directory of soft-gpu's library. VGPU_SAMPLES_CC: the compute
capability of the software device, if the VM has another than soft-gpu's own.
"""

import os
import pathlib
import resource
import signal
import subprocess

import cuda_samples
import pytest
import vgpu_events

WAIVED = 2
BUILDS = pathlib.Path(os.environ["VGPU_SAMPLES"])
NAME = os.environ["VGPU_SAMPLE"]
TOOLKITS = {"12.9": "VGPU_SAMPLES_12", "13.5": "VGPU_SAMPLES_13"}


def sample(toolkit):
    checkout = pathlib.Path(os.environ[TOOLKITS[toolkit]])
    return cuda_samples.Sample(checkout, NAME)


def builds():
    for toolkit in TOOLKITS:
        for cudart in ("static", "shared") if sample(toolkit).runtime else ("driver",):
            yield pytest.param(toolkit, cudart, id=f"{NAME}-{toolkit}-{cudart}")


def run(program, env):
    """Runs a program to its end; returns status, output and seconds of processor time. Also kills the
    processes that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [f"./{program.name}", *cuda_samples.OPTIONS.get(NAME, [])]
    process = subprocess.Popen(command, cwd=program.parent, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                               preexec_fn=vgpu_events.end_with_parent)
    try:
        out, err = process.communicate()
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    print(out, err, sep="\n")
    return process.returncode, out, err, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def noticed(err):
    """Fails if soft-gpu refused kernels, because some samples do not check that their kernels
    ran."""
    for line in err.splitlines():
        if "module refused" in line:
            pytest.fail(f"the sample does not notice: {line}", pytrace=False)


def check(program, env):
    """Runs a sample; returns its output and its processor time. Skips if the sample declines, fails if
    it fails."""
    status, out, err, seconds = run(program, env)
    last = " / ".join([line for line in (out + err).splitlines() if line.strip()][-2:])
    if status == WAIVED:
        pytest.skip(f"the sample waives itself: {last}")
    if status:
        pytest.fail(f"{cuda_samples.ending(status)}: {last}", pytrace=False)
    noticed(err)
    if cuda_samples.SAYS[NAME] not in out:
        pytest.fail(f"it did not say {cuda_samples.SAYS[NAME]!r}: {last}", pytrace=False)
    return out, seconds


def on_the_driver():
    """The environment of a run without a VM: this one, without the guest's library, which comes
    first."""
    env = dict(os.environ)
    del env["VGPU_ADDRESS"]
    places = env["LD_LIBRARY_PATH"].split(":")[1:]
    if env.get("VGPU_NVRTC_PTX"):
        places.insert(0, env["VGPU_SAMPLES_DRIVER"])
        # The memory that a VM sees.
        env["SOFT_GPU_MEMORY"] = "8G"
        if env.get("VGPU_SAMPLES_CC"):
            env["SOFT_GPU_CC"] = env["VGPU_SAMPLES_CC"]
    env["LD_LIBRARY_PATH"] = ":".join(places)
    return env


@pytest.mark.parametrize("toolkit, cudart", builds())
def test(toolkit, cudart):
    try:
        linked = "static" if cudart == "driver" else cudart
        program = sample(toolkit).build(BUILDS / "toolkits" / toolkit, linked, BUILDS / f"{toolkit}-{cudart}" / NAME)
    except cuda_samples.Failed as failed:
        if toolkit == "12.9" and len({os.environ[variable] for variable in TOOLKITS.values()}) == 1:
            pytest.skip("there is only one checkout of the samples, and it is for CUDA 13")
        last = str(failed).rstrip().splitlines()[-1]
        pytest.fail(f"it does not compile: {last}\n{str(failed)[-2000:]}", pytrace=False)
    if not os.environ.get("VGPU_ADDRESS"):
        _, seconds = check(program, os.environ)
        # On a software device only: the variable of its rows.
        slow = cuda_samples.too_slow(NAME, seconds) if os.environ.get("VGPU_NVRTC_PTX") else None
        if slow:
            pytest.fail(slow, pytrace=False)
        return
    _, direct, err, _ = run(program, on_the_driver())
    remoted, _ = check(program, os.environ)
    noticed(err)
    ours, theirs = cuda_samples.normalised(remoted), cuda_samples.normalised(direct)
    if ours != theirs:
        odd = [line for line in ours if line not in theirs] + [f"without VM: {line}" for line in theirs if line not in ours]
        pytest.fail("it says something else than without a VM: " + " / ".join(odd[:8]), pytrace=False)
