"""What the tests of hypervisors share: a vgpud of their own, programs, and deadlines."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
HOOKS = ROOT / "systemd" / "hypervisors"
DATA = pathlib.Path(__file__).resolve().parent / "data"
# No condition takes longer, however loaded the machine.
SOON = 30

PROBE = """#!/bin/sh
if [ "$1" = scan ]; then cat <<'EOF'
{"gpus":[{"uuid":"GPU-00000000-0000-0000-0000-000000000001","ordinal":0,"model":"NVIDIA H100",
"memory_bytes":85899345920,"memory_used_bytes":null,"pci_address":"0000:65:00.0","driver":"570.1",
"compute_capability":"9.0","source":"soft","mig":[],"health":{"ok":true,"problems":[],
"temperature_celsius":null,"power_milliwatts":null,"ecc_enabled":null}}],"warnings":[]}
EOF
else echo '{"ok":true,"message":"fake"}'; fi
"""

CONFIG = """[daemon]
state_dir = "{dir}/state"
runtime_dir = "{dir}/run"
drain_s = 1
[listen]
vsock = false
[driver]
kind = "soft"
soft_library = "/dev/null"
[worker]
probe_binary = "{dir}/probe"
"""


def needs(*programs):
    """Skips a test loudly if a program is missing."""
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        sys.stderr.write(f"SKIPPED: {', '.join(missing)} is not installed\n")
    return unittest.skipIf(missing, f"{', '.join(missing)} is not installed")


def until(what, condition):
    """Waits for a condition."""
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {SOON} s: {what}")


class Stand(unittest.TestCase):
    """A vgpud with pool A and a directory for fake programs, both per test."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="vgpu-hyp-"))
        self.addCleanup(shutil.rmtree, self.dir, True)
        # virsh and the probe run as other users.
        self.dir.chmod(0o755)
        self.bin = self.dir / "bin"
        self.bin.mkdir()
        os.symlink(BINARIES / "vgpu-admin", self.bin / "vgpu-admin")
        self.program("../probe", PROBE)
        (self.dir / "vgpud.toml").write_text(CONFIG.format(dir=self.dir))
        self.env = dict(os.environ, LC_ALL="C")
        self.env["PATH"] = f"{self.bin}:{self.env['PATH']}"
        self.env["VGPU_ADMIN_SOCKET"] = str(self.dir / "run" / "admin.sock")
        self.env["VGPU_HYPERVISORS_CONF"] = str(self.dir / "hypervisors.conf")
        self.env["VGPU_CLOUDSTACK_CONF"] = str(self.dir / "cloudstack.toml")

    def daemon(self):
        """Starts vgpud and creates pool A."""
        log = open(self.dir / "vgpud.log", "w", encoding="utf-8")
        self.addCleanup(log.close)
        command = [BINARIES / "vgpud", "--config", self.dir / "vgpud.toml"]
        child = subprocess.Popen(command, stdout=log, stderr=log)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        until("vgpud answers", lambda: self.run_program(["vgpu-admin", "status"]).returncode == 0)
        self.admin("pool", "create", "A")
        self.admin("assign-gpu", "--gpu-id=0", "--pool=A")

    def program(self, name, text):
        """Writes a fake program."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def run_program(self, command, stdin=""):
        return subprocess.run(
            [str(part) for part in command],
            input=stdin,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=SOON,
            check=False,
        )

    def admin(self, *args, stdin="", code=0):
        """Runs vgpu-admin and returns its output."""
        done = self.run_program(["vgpu-admin", *args], stdin)
        self.assertEqual(done.returncode, code, f"{args}: {done.stdout}{done.stderr}")
        return done.stdout

    def imported(self, *args, stdin="", code=0):
        """The rows of an import."""
        answer = self.admin("vm", "import", *args, "-o", "json", stdin=stdin, code=code)
        return json.loads(answer)["vms"]

    def vms(self):
        """The registrations by name."""
        vms = json.loads(self.admin("vm", "list", "-o", "json"))
        return {vm["name"]: vm for vm in vms}

    def hook(self, name, *args, stdin=""):
        return self.run_program([HOOKS / name, *args], stdin)
