"""The hooks of libvirt, Proxmox VE and CloudStack, run as those run them."""

import json
import os
import shutil

from stand import DATA, HOOKS, ROOT, Stand, needs

DOMAIN = (DATA / "domain.xml").read_text()
SHARE = (DATA / "cloudstack.xml").read_text()
SHARES = (HOOKS / "cloudstack.toml").read_text()


class Libvirt(Stand):
    def libvirt(self, operation, xml=DOMAIN):
        """Runs the hook as libvirt does. Nothing may be printed: output can replace the XML."""
        done = self.hook("vgpu-hook", "web", operation, "begin", "-", stdin=xml)
        self.assertEqual(done.stdout, "")
        return done

    def configure(self, text):
        (self.dir / "hypervisors.conf").write_text(text)

    def test_a_vm_is_registered_at_start_and_drained_at_stop(self):
        self.daemon()
        self.configure("options = --pool=A --priority=low\n")
        for operation in ["prepare", "start", "started", "reconnect"]:
            self.assertEqual(self.libvirt(operation).returncode, 0)
        web = self.vms()["web"]
        self.assertEqual((web["cid"], web["priority"]), (42, "low"))
        for operation in ["stopped", "release"]:
            self.assertEqual(self.libvirt(operation).returncode, 0)
        self.assertIsNone(self.vms()["web"]["cid"])
        self.libvirt("start")
        again = self.vms()["web"]
        self.assertEqual((again["cid"], again["generation"]), (42, web["generation"]))

    def test_without_a_pool_only_imported_vms_are_served(self):
        self.daemon()
        done = self.libvirt("start")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.vms(), {})

    def test_a_reused_cid_goes_to_the_vm_that_runs(self):
        self.daemon()
        self.configure("options = --pool=A\n")
        self.libvirt("start")
        other = DOMAIN.replace("4dea22b3", "5dea22b3").replace("web", "db")
        self.libvirt("start", other)
        vms = self.vms()
        self.assertEqual((vms["web"]["cid"], vms["db"]["cid"]), (None, 42))

    def test_failures_do_not_stop_a_vm(self):
        for operation, failure in [
            ("start", "VM web has no GPU access"),
            ("reconnect", "VM web has no GPU access"),
            ("stopped", "The registration of stopped VM web keeps its CID"),
        ]:
            done = self.libvirt(operation)
            self.assertEqual(done.returncode, 0)
            self.assertIn(f"{failure}: vgpu-admin: Cannot reach vgpud", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        self.daemon()
        self.assertEqual(self.libvirt("start", "<domain>").returncode, 0)
        self.configure("options = --no-such-option\nstrict $(((\n")
        self.assertEqual(self.libvirt("start").returncode, 0)
        (self.bin / "vgpu-admin").unlink()
        self.program("vgpu-admin", "#!/bin/sh\nexit 127\n")
        self.assertEqual(self.libvirt("start").returncode, 0)

    def test_strict_stops_the_start_and_nothing_else(self):
        self.configure("options = --pool=A\nstrict = yes \n")
        self.assertEqual(self.libvirt("start").returncode, 1)
        for operation in ["prepare", "reconnect", "stopped", "migrate"]:
            self.assertEqual(self.libvirt(operation).returncode, 0, operation)
        self.daemon()
        self.assertEqual(self.libvirt("start").returncode, 0)

    def test_only_a_vm_with_a_vsock_device_has_to_have_a_gpu(self):
        self.configure("strict = yes\n")
        start = DOMAIN.index("<vsock")
        end = DOMAIN.index("</vsock>") + len("</vsock>")
        self.assertEqual(self.libvirt("start", DOMAIN[:start] + DOMAIN[end:]).returncode, 0)
        self.assertEqual(self.libvirt("start").returncode, 1)

    def test_what_the_file_says_wrongly_is_logged(self):
        for strict, code in [("no", 0), ("", 0), ("yes", 1)]:
            self.configure(f"# x\n\noptions =\nstrict = {strict}\nsocket =\n")
            done = self.libvirt("start")
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (code, 1))
        for strict in ["true", "Yes", "yes # always", "'no'"]:
            self.configure(f"strict = {strict}\n")
            done = self.libvirt("start")
            self.assertEqual(done.returncode, 1, strict)
            said = f"must be yes or no, not {strict}: the hook takes it as yes."
            self.assertIn(said, done.stderr.splitlines()[0])
        self.configure("stirct = yes\npool = A\noptions = --pool='A' # x\n")
        done = self.libvirt("start")
        self.assertEqual(done.returncode, 0)
        lines = done.stderr.splitlines()
        self.assertIn("has lines without effect: stirct = yes pool = A", lines[0])
        self.assertIn("has quotes or a comment", lines[1])

    def test_the_socket_of_the_file_counts_at_start_and_stop(self):
        self.daemon()
        socket = self.env["VGPU_ADMIN_SOCKET"]
        self.configure(f"options = --pool=A\nsocket = {socket}\n")
        self.env["VGPU_ADMIN_SOCKET"] = str(self.dir / "none")
        for operation in ["start", "reconnect", "stopped"]:
            self.assertEqual(self.libvirt(operation).stderr, "")
        self.env["VGPU_ADMIN_SOCKET"] = socket
        self.assertIsNone(self.vms()["web"]["cid"])

    def test_a_refusal_is_a_sentence(self):
        self.daemon()
        self.configure("options = --pool=A\n")
        self.admin("register-vm", "--vm-id=7", "--pool=A", "--cid=42", "--name=precious")
        self.assertEqual(self.libvirt("start").stderr, (
            "vgpu: VM web has no GPU access: CID 42 belongs to VM 7 (precious, registered by hand): "
            "give the VM another CID, or take that registration over with --adopt.\n"))

    def test_names_are_written_as_they_are(self):
        for name, written in [("a\\nb", "a\\nb"), ("a\\cb", "a\\cb"), ("a\nb", "a b"), ("-n", "-n"), ("%s", "%s")]:
            done = self.hook("vgpu-hook", name, "start", "begin", "-", stdin=DOMAIN)
            self.assertTrue(done.stderr.startswith(f"vgpu: VM {written} has no GPU access: vgpu-admin: "), done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_large_description_is_no_obstacle_at_the_stop(self):
        self.daemon()
        self.configure("options = --pool=A\n")
        self.libvirt("start")
        large = DOMAIN.replace("<metadata>", "<metadata>" + " " * 1_000_000)
        self.assertIn("more than 256 KiB", self.libvirt("start", large).stderr)
        self.assertEqual(self.libvirt("stopped", large).stderr, "")
        self.assertIsNone(self.vms()["web"]["cid"])

    def test_libvirt_is_never_asked(self):
        self.daemon()
        self.program("virsh", f"#!/bin/sh\ntouch {self.dir}/asked\n")
        for operation in ["start", "stopped"]:
            self.libvirt(operation)
        self.assertFalse((self.dir / "asked").exists())


class Proxmox(Stand):
    def phase(self, phase):
        return self.hook("vgpu-hook", "105", phase)

    def test_a_vm_is_registered_at_start_and_drained_at_stop(self):
        self.daemon()
        options = f"options = --pool=A --dir={DATA}/qemu-server\n"
        (self.dir / "hypervisors.conf").write_text(options)
        for phase in ["pre-start", "post-start"]:
            done = self.phase(phase)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.vms()["train-1"]["cid"], 105)
        for phase in ["pre-stop", "post-stop"]:
            self.assertEqual(self.phase(phase).returncode, 0)
        self.assertIsNone(self.vms()["train-1"]["cid"])
        (self.dir / "hypervisors.conf").write_text(options + "strict = yes\n")
        self.assertEqual(self.phase("pre-start").returncode, 0)
        self.assertEqual(self.vms()["train-1"]["cid"], 105)

    def test_only_strict_stops_the_start(self):
        for phase, failure in [
            ("pre-start", "^$"),
            ("post-start", "^vgpu: VM 105 has no GPU access: "),
            ("pre-stop", "^$"),
            ("post-stop", "^vgpu: The registration of stopped VM 105 keeps its CID: "),
        ]:
            done = self.phase(phase)
            self.assertEqual(done.returncode, 0, phase)
            self.assertRegex(done.stderr, failure)
        (self.dir / "hypervisors.conf").write_text("strict = yes\n")
        for phase, code in [("pre-start", 1), ("post-start", 0), ("post-stop", 0)]:
            self.assertEqual(self.phase(phase).returncode, code, phase)

    def test_a_vm_that_is_not_registered_stops_silently(self):
        self.daemon()
        self.assertEqual(self.phase("post-stop").stderr, "")


class CloudStack(Stand):
    def setUp(self):
        super().setUp()
        # As an administrator installs it: the wrapper in the place of CloudStack's script.
        self.script = self.bin / "gpudiscovery.sh"
        shutil.copy(str(HOOKS / "gpudiscovery.sh"), str(self.script))
        self.program("gpudiscovery.sh.cloudstack", f"#!/bin/sh\ncat {DATA}/gpudiscovery.json\n")

    def offer(self):
        (self.dir / "cloudstack.toml").write_text(SHARES)

    def test_shares_appear_as_profiles_until_a_vm_has_them(self):
        self.daemon()
        self.offer()
        found = self.run_program([self.script])
        self.assertEqual((found.returncode, found.stderr), (0, ""))
        gpus = json.loads(found.stdout)["gpus"]
        recorded = json.loads((DATA / "gpudiscovery.json").read_text())["gpus"]
        # What CloudStack's script said of each GPU stays, in the same shape.
        self.assertEqual([set(gpu) for gpu in gpus], [set(gpu) for gpu in recorded])
        ours = next(gpu for gpu in gpus if gpu["pci_address"] == "65:00.0")
        self.assertEqual(ours["full_passthrough"]["enabled"], 0)
        self.assertEqual(len(ours["vgpu_instances"]), 4)
        mdev = next(gpu for gpu in recorded if gpu["vgpu_instances"])["vgpu_instances"][0]
        for share in ours["vgpu_instances"]:
            self.assertEqual(set(share), set(mdev))
            self.assertEqual((share["profile_name"], share["used_by_vm"]), ("vgpu-8g", None))
        # CloudStack gives the first share to a VM.
        xml = SHARE.replace("UUID", ours["vgpu_instances"][0]["mdev_uuid"])
        xml = self.admin("cloudstack", "transform", stdin=xml)
        self.hook("vgpu-hook", "i-2-7-VM", "start", "begin", "-", stdin=xml)
        vm = self.vms()["i-2-7-VM"]
        self.assertEqual((vm["cid"], vm["pool"], vm["limits"]["memory_bytes"]), (100000, "A", 8 << 30))
        shares = json.loads(self.run_program([self.script]).stdout)["gpus"]
        used = [share["used_by_vm"] for gpu in shares for share in gpu["vgpu_instances"]
                if share["profile_name"] == "vgpu-8g"]
        self.assertEqual(used, ["i-2-7-VM", None, None, None])

    def test_a_vm_without_a_share_gets_no_share(self):
        self.daemon()
        self.offer()
        for memory in ["0", "8 elephants"]:
            (self.dir / "cloudstack.toml").write_text(SHARES.replace("8GiB", memory))
            done = self.hook("vgpu-hook", "web", "start", "begin", "-", stdin=DOMAIN)
            self.assertIn("memory", done.stderr)
        self.offer()
        done = self.hook("vgpu-hook", "web", "start", "begin", "-",
                         stdin=DOMAIN.replace("address='42'", "address='100000'"))
        self.assertIn("CID 100000 is that of a share of CloudStack's profile vgpu-8g", done.stderr)
        self.assertEqual(self.vms(), {})

    def test_without_a_configuration_the_answer_is_cloudstacks(self):
        found = self.run_program([self.script])
        self.assertEqual(found.stdout, (DATA / "gpudiscovery.json").read_text())

    def test_faults_are_sentences(self):
        self.offer()
        self.assert_fault("Cannot reach vgpud")
        self.daemon()
        self.program("gpudiscovery.sh.cloudstack", "#!/bin/sh\necho 'not json'\n")
        self.assert_fault("printed no JSON")
        self.program("gpudiscovery.sh.cloudstack", "#!/bin/sh\nexit 3\n")
        self.assert_fault("failed")
        (self.bin / "gpudiscovery.sh.cloudstack").unlink()
        self.assert_fault("is missing")

    def assert_fault(self, said):
        found = self.run_program([self.script])
        self.assertNotEqual(found.returncode, 0)
        self.assertEqual(found.stdout, "")
        self.assertIn(said, found.stderr)

    @needs("virsh", "qemu-system-x86_64", "setpriv")
    def test_libvirt_makes_a_vsock_device_of_the_share(self):
        xml = SHARE.replace("UUID", "76677075-0123-4456-8789-0000000186a0")
        file = self.dir / "vm.xml"
        # Other users than root may not use KVM.
        xml = xml.replace("<domain type='kvm'>", "<domain type='qemu'>")
        file.write_text(self.admin("cloudstack", "transform", stdin=xml))
        # libvirt's driver without its daemon. As root it would want a user of its own.
        root = self.dir / "libvirt"
        root.mkdir()
        command = ["virsh", "--connect", f"qemu:///embed?root={root}",
                   "domxml-to-native", "qemu-argv", str(file)]
        if os.geteuid() == 0:
            shutil.chown(str(root), 65534, 65534)
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        self.env["HOME"] = str(root)
        done = self.run_program(command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"guest-cid":100000', done.stdout)
        self.assertNotIn("vfio", done.stdout)

    @needs("groovy", "java")
    def test_the_transformer_runs_in_cloudstacks_engine(self):
        java = os.path.realpath(shutil.which("java"))
        self.env["JAVA_HOME"] = os.path.dirname(os.path.dirname(java))
        xml = SHARE.replace("UUID", "76677075-0123-4456-8789-0000000186a0")
        others = SHARE.replace("UUID", "a1b2c3d4-5678-4e9a-8b0c-d1e2f3a4b5c6")
        inputs = [xml, others, xml.replace("</devices>", "")]
        files = []
        for number, text in enumerate(inputs):
            files.append(self.dir / f"{number}.xml")
            files[-1].write_text(text)
        done = self.run_program(["groovy", DATA.parent / "agent.groovy", HOOKS, *files])
        self.assertEqual(done.returncode, 0, done.stderr)
        results = [(self.dir / f"{number}.xml.out").read_text() for number in range(3)]
        self.assertEqual(results[0], self.admin("cloudstack", "transform", stdin=xml))
        self.assertEqual(results[1], others)
        self.assertEqual(results[2], inputs[2], "a failure leaves the XML as it is")
        self.assertIn("vgpu: the share of the VM was not replaced", done.stderr)


class Files(Stand):
    @needs("shellcheck")
    def test_shell_scripts_are_sound(self):
        scripts = [HOOKS / "vgpu-hook", HOOKS / "gpudiscovery.sh", DATA.parent / "run.sh"]
        done = self.run_program(["shellcheck", *scripts])
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_every_file_is_installed(self):
        text = (ROOT / "systemd" / "install.sh").read_text()
        for file in HOOKS.iterdir():
            self.assertIn(file.name, text)
