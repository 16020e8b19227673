"""`vgpu-admin vm import` against samples of answers and real virsh."""

import csv
import io
import shutil
import subprocess

from stand import DATA, SOON, Stand, needs

DOMAIN = (DATA / "domain.xml").read_text()
WEB = "libvirt:4dea22b3-1d52-d8f3-2516-782e98ab3fa0"


class Libvirt(Stand):
    def test_a_dump_is_imported_once(self):
        self.daemon()
        first = self.imported("libvirt", "--xml=-", "--pool=A", "--priority=high", stdin=DOMAIN)
        self.assertEqual([(r["action"], r["cid"], r["origin"]) for r in first], [("register", 42, WEB)])
        web = self.vms()["web"]
        self.assertEqual((web["cid"], web["origin"], web["priority"]), (42, WEB, "high"))
        again = self.imported("libvirt", "--xml=-", "--pool=A", stdin=DOMAIN)
        self.assertEqual(again[0]["action"], "unchanged")
        self.assertEqual(self.vms()["web"]["generation"], web["generation"])
        moved = DOMAIN.replace("address='42'", "address='43'")
        self.assertEqual(self.imported("libvirt", "--xml=-", stdin=moved)[0]["action"], "change")
        self.assertEqual(self.vms()["web"]["cid"], 43)

    def test_a_dry_run_changes_nothing(self):
        self.daemon()
        args = ("libvirt", "--xml=-", "--pool=A", "--dry-run")
        self.assertEqual(self.imported(*args, stdin=DOMAIN)[0]["action"], "register")
        self.assertEqual(self.vms(), {})
        table = self.admin("vm", "import", *args, stdin=DOMAIN)
        self.assertIn("Nothing was changed", table)

    def test_a_dry_run_refuses_what_the_import_refuses(self):
        self.daemon()
        for options, said in [
            (["--pool=none"], 'There is no pool "none".'),
            (["--pool=A", "--name=my vm"], 'The VM name "my vm" is not allowed'),
            (["--pool=A", "--memory=2000TiB"], "--memory must be between"),
            (["--pool=A", "--soft-limit=9s", "--hard-limit=2s"], "--soft-limit (9s) must not be longer"),
            (["--pool=A", "--calls-per-s=unlimited", "--calls-burst=5"], "--calls-burst means nothing"),
        ]:
            for dry_run in [["--dry-run"], []]:
                rows = self.imported("libvirt", "--xml=-", *options, *dry_run, stdin=DOMAIN, code=6)
                self.assertEqual(rows[0]["action"], "refused", options)
                self.assertIn(said, rows[0]["warnings"][-1])
        self.assertEqual(self.vms(), {})
        odd = DOMAIN.replace("<name>web", "<name>my web")
        rows = self.imported("libvirt", "--xml=-", "--pool=A", "--dry-run", stdin=odd)
        self.assertEqual(rows[0]["name"], "libvirt-4dea22b3-1d52-d8f3-2516-782e98ab3fa0")

    def test_a_registration_by_hand_is_safe(self):
        self.daemon()
        self.admin("register-vm", "--vm-id=7", "--pool=A", "--cid=42", "--name=precious")
        for args in ([], ["--running"]):
            rows = self.imported("libvirt", "--xml=-", "--pool=A", *args, stdin=DOMAIN, code=6)
            self.assertEqual(rows[0]["action"], "refused")
            self.assertIn("CID 42 belongs to VM 7 (precious, registered by hand)", rows[0]["warnings"][0])
        self.assertIsNone(self.vms()["precious"]["origin"])
        rows = self.imported("libvirt", "--xml=-", "--adopt", stdin=DOMAIN)
        self.assertEqual((rows[0]["action"], rows[0]["vm_id"]), ("change", 7))
        self.assertEqual(self.vms()["precious"]["origin"], WEB)

    def test_csv_carries_the_warnings(self):
        self.daemon()
        self.admin("register-vm", "--vm-id=7", "--pool=A", "--cid=42")
        text = self.admin("vm", "import", "libvirt", "--xml=-", "--pool=A", "-o", "csv", stdin=DOMAIN, code=6)
        row = list(csv.DictReader(io.StringIO(text)))[0]
        self.assertEqual((row["action"], row["origin"]), ("refused", WEB))
        self.assertIn("belongs to VM 7", row["warnings"])

    def test_warnings_of_vgpud_are_in_the_row(self):
        self.daemon()
        self.admin("pool", "create", "empty")
        rows = self.imported("libvirt", "--xml=-", "--pool=empty", stdin=DOMAIN)
        self.assertIn("has no GPU yet", rows[0]["warnings"][0])

    def test_bad_input_is_a_sentence(self):
        self.daemon()
        for text, said in [
            ("", "not a libvirt domain"),
            ("<!DOCTYPE d [<!ENTITY x 'y'>]><domain/>", "DTD"),
            ("x" * 300_000, "256 KiB"),
            (DOMAIN.replace("address='42'", "address='2'"), "CID 2"),
        ]:
            done = self.run_program(["vgpu-admin", "vm", "import", "libvirt", "--xml=-"], text)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for command, code in [
            ("vm import incus --json=-", 2),
            ("vm detach --xml=-", 2),
            ("cloudstack transform", 2),
            ("vm import libvirt --xml=/nonexistent", 1),
            ("vm import libvirt --name=a --name=b", 2),
            ("vm import incus --json=- --name=a", 2),
        ]:
            self.assertEqual(self.run_program(["vgpu-admin", *command.split()], "x").returncode, code, command)

    def test_without_virsh_or_vgpud_there_is_a_sentence(self):
        done = self.run_program(["vgpu-admin", "vm", "import", "libvirt", "--xml=-"], DOMAIN)
        self.assertEqual(done.returncode, 5)
        self.assertIn("Cannot reach vgpud", done.stderr)
        self.program("virsh", "#!/bin/sh\necho 'error: failed to connect' >&2; exit 1\n")
        done = self.run_program(["vgpu-admin", "vm", "import", "libvirt"])
        self.assertEqual(done.returncode, 1)
        self.assertIn("virsh failed", done.stderr)

    def test_one_broken_vm_does_not_stop_the_others(self):
        self.daemon()
        self.program("virsh", f"""#!/bin/sh
case "$*" in
*list*) echo u1; echo u2 ;;
*u1*) cat {DATA}/domain.xml ;;
*) echo 'error: Domain not found' >&2; exit 1 ;;
esac
""")
        rows = self.imported("libvirt", "--pool=A", code=6)
        self.assertEqual([row["action"] for row in rows], ["register", "refused"])
        self.assertIn("Domain not found", rows[1]["warnings"][0])

    @needs("virsh")
    def test_real_virsh_is_read(self):
        self.daemon()
        node = self.dir / "node.xml"
        node.write_text((DATA / "test-node.xml").read_text())
        connect = f"--connect=test://{node}"
        rows = self.imported("libvirt", connect, "--pool=A")
        by_name = {row["name"]: row for row in rows}
        self.assertEqual((by_name["web"]["action"], by_name["web"]["cid"]), ("register", 42))
        self.assertEqual(by_name["plain"]["action"], "skipped")
        self.assertIn("no vsock device", by_name["plain"]["warnings"][0])
        rows = self.imported("libvirt", "web", connect)
        self.assertEqual([row["action"] for row in rows], ["unchanged"])
        rows = self.imported("libvirt", "nobody", connect, code=6)
        self.assertIn("nobody", rows[0]["warnings"][0])


    def test_cids_may_change_places(self):
        self.daemon()
        dumps = [DOMAIN, DOMAIN.replace("web", "db").replace("4dea22b3", "5dea22b3").replace("='42'", "='43'")]
        for dump in dumps:
            self.imported("libvirt", "--xml=-", "--pool=A", stdin=dump)
        (self.dir / "u1").write_text(dumps[0].replace("='42'", "='43'"))
        (self.dir / "u2").write_text(dumps[1].replace("='43'", "='42'"))
        self.program("virsh", f"""#!/bin/sh
case "$*" in *list*) echo u1; echo u2 ;; *u1) cat {self.dir}/u1 ;; *) cat {self.dir}/u2 ;; esac
""")
        self.assertEqual([row["action"] for row in self.imported("libvirt")], ["change", "change"])
        vms = self.vms()
        self.assertEqual((vms["web"]["cid"], vms["db"]["cid"]), (43, 42))
        self.assertEqual([row["action"] for row in self.imported("libvirt")], ["unchanged"] * 2)

    def test_a_hypervisor_without_vms_is_a_sentence(self):
        self.daemon()
        self.program("virsh", "#!/bin/sh\ntrue\n")
        self.assertEqual(self.admin("vm", "import", "libvirt"), "The hypervisor has no VM.\n")


class Incus(Stand):
    def test_the_list_is_imported(self):
        self.daemon()
        self.program("incus", f'#!/bin/sh\necho "$@" > {self.dir}/asked\ncat {DATA}/incus.json\n')
        rows = self.imported("incus", "--all-projects", "--member=host1", "--pool=A")
        self.assertEqual((self.dir / "asked").read_text(), "list --format=json --all-projects\n")
        self.assertEqual([(row["origin"], row["action"]) for row in rows], [
            ("incus:default/v1", "register"),
            ("incus:default/fresh", "skipped"),
            ("incus:lab/elsewhere", "skipped"),
        ])
        self.assertIn("cluster member host2", rows[2]["warnings"][0])
        self.assertEqual(self.vms()["v1"]["cid"], 1868342013)
        rows = self.imported("incus", "v1", "--member=host1", "--pool=A")
        self.assertEqual([row["action"] for row in rows], ["unchanged"])


class Proxmox(Stand):
    def test_the_files_of_the_node_are_imported(self):
        self.daemon()
        conf = self.dir / "qemu-server"
        shutil.copytree(DATA / "qemu-server", conf)
        rows = self.imported("proxmox", f"--dir={conf}", "--pool=A")
        self.assertEqual([(row["origin"], row["action"], row["cid"]) for row in rows], [
            ("proxmox:105", "register", 105),
            ("proxmox:106", "skipped", None),
            ("proxmox:9000", "skipped", None),
        ])
        self.assertEqual(self.vms()["train-1"]["cid"], 105)
        # Another VM of the same name, and one with the same CID.
        (conf / "107.conf").write_text("name: train-1\nargs: -device vhost-vsock-pci,guest-cid=107\n")
        rows = self.imported("proxmox", "107", f"--dir={conf}", "--pool=A", code=6)
        self.assertIn("The name train-1 belongs to VM 1", rows[0]["warnings"][0])
        rows = self.imported("proxmox", "107", f"--dir={conf}", "--pool=A", "--name=train-107")
        self.assertEqual(rows[0]["action"], "register")
        (conf / "108.conf").write_text("args: -device vhost-vsock-pci,guest-cid=105\n")
        rows = self.imported("proxmox", f"--dir={conf}", "--pool=A", code=6)
        refused = [row["origin"] for row in rows if row["action"] == "refused"]
        self.assertEqual(refused, ["proxmox:108"], "the registration with the CID keeps it")

    def test_detaching_keeps_the_registration(self):
        self.daemon()
        conf = DATA / "qemu-server"
        self.imported("proxmox", "105", f"--dir={conf}", "--pool=A")
        self.admin("vm", "detach", "proxmox:105")
        vm = self.vms()["train-1"]
        self.assertEqual((vm["cid"], vm["origin"]), (None, "proxmox:105"))
        self.assertIn("has no CID already", self.admin("vm", "detach", "proxmox:105"))
        for origin, named in [("web", "number or name"), ("proxmox:1", "origin")]:
            done = self.run_program(["vgpu-admin", "vm", "detach", origin])
            self.assertEqual(done.returncode, 3)
            self.assertIn(f"No VM has the {named} {origin}.", done.stderr)
            self.assertIn("libvirt:UUID, incus:PROJECT/NAME or proxmox:VMID", done.stderr)
        self.assertIn("No VM has the origin", self.admin("vm", "detach", "--xml=-", stdin=DOMAIN))
        rows = self.imported("proxmox", "105", f"--dir={conf}")
        self.assertEqual((rows[0]["action"], rows[0]["vm_id"]), ("change", vm["vm_id"]))


class Many(Stand):
    def test_imports_at_the_same_time_get_numbers_of_their_own(self):
        self.daemon()
        commands = []
        for n in range(8):
            text = DOMAIN.replace("web", f"vm-{n}").replace("4dea22b3", f"4dea22b{n}")
            text = text.replace("address='42'", f"address='{50 + n}'")
            file = self.dir / f"{n}.xml"
            file.write_text(text)
            command = ["vgpu-admin", "vm", "import", "libvirt", f"--xml={file}", "--pool=A"]
            commands.append(subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL))
        self.assertEqual([child.wait(SOON) for child in commands], [0] * 8)
        numbers = {vm["vm_id"] for vm in self.vms().values()}
        self.assertEqual(numbers, set(range(1, 9)))


    def test_a_number_that_was_asked_for_is_never_another(self):
        self.daemon()
        rows = self.imported("libvirt", "--xml=-", "--pool=A", "--vm-id=9", stdin=DOMAIN)
        self.assertEqual((rows[0]["action"], rows[0]["vm_id"]), ("register", 9))
        done = self.run_program(["vgpu-admin", "vm", "import", "proxmox", "--vm-id=9",
                                 f"--dir={DATA}/qemu-server"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("--vm-id and --name apply to one VM, but the import has 3 VMs", done.stderr)

    def test_a_number_takes_no_other_registration_over(self):
        self.daemon()
        self.admin("register-vm", "--vm-id=7", "--pool=A", "--name=precious")
        args = ("libvirt", "--xml=-", "--pool=A", "--vm-id=7")
        rows = self.imported(*args, stdin=DOMAIN, code=6)
        self.assertEqual(rows[0]["action"], "refused")
        self.assertIn("VM 7 (precious, registered by hand)", rows[0]["warnings"][0])
        self.assertEqual((self.vms()["precious"]["cid"], self.vms()["precious"]["origin"]), (None, None))
        rows = self.imported(*args, "--adopt", stdin=DOMAIN)
        self.assertEqual((rows[0]["action"], rows[0]["vm_id"]), ("change", 7))
        self.assertEqual((self.vms()["precious"]["cid"], self.vms()["precious"]["origin"]), (42, WEB))


class Help(Stand):
    def test_every_command_has_an_example(self):
        for command in [
            "vm import libvirt", "vm import incus", "vm import proxmox", "vm detach",
            "cloudstack discover", "cloudstack transform",
        ]:
            self.assertIn("Example", self.admin(*command.split(), "--help"), command)
