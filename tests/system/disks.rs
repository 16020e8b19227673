//! The disk under vgpud: full at the start, or with a database that lacks acknowledged changes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OpenFlags};
use vgpu_tests::guest::{self, Guest, describe, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// A small file system that replaces a directory and keeps its content.
struct Small(PathBuf);

impl Small {
    fn mount(dir: &Path, options: &str) -> Result<Small> {
        let before = dir.with_extension("before");
        std::fs::rename(dir, &before)?;
        run(Command::new("mkdir").arg(dir))?;
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir))?;
        let small = Small(dir.to_path_buf());
        run(Command::new("cp").arg("-a").arg(before.join(".")).arg(dir))?;
        std::fs::remove_dir_all(before)?;
        Ok(small)
    }

    /// Fills the file system to the last page.
    fn fill(&self) -> Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .create(true)
            .append(true)
            .open(self.0.join("filler"))?;
        while file.write_all(&[0; 4096]).is_ok() {}
        Ok(())
    }

    fn free(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.0.join("filler"))?)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        describe(&output)
    );
    Ok(())
}

fn computes(host: &Host, vm: u32) -> Result<()> {
    expect_right(&Guest::new(guest::VECADD, host.target(vm))?.arg("1000"))
        .map(drop)
        .with_context(|| host.log())
}

/// Checks that vgpud serves although nothing can be written: guests compute, and a change is
/// refused completely.
fn serves_on_a_full_disk(host: &Host) -> Result<()> {
    computes(host, 1)?;
    // Far more than can fit into the free space of the database's files.
    let refused = host.admin_output("register-vm --vm-id=100-4000 --pool=A")?;
    let text = describe(&refused);
    ensure!(
        !refused.status.success() && text.contains("disk is full"),
        "{text}"
    );
    ensure!(
        !host.admin_output("vm show 100")?.status.success(),
        "half a command"
    );
    let audit = host.admin("audit")?;
    ensure!(
        audit.contains("register-vm") && !audit.contains("vm 100-4000"),
        "{audit}"
    );
    computes(host, 1)
}

#[test]
fn vgpud_starts_and_serves_on_a_full_disk() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: mounting a file system of a few hundred KiB needs root");
        return Ok(());
    }
    let mut host = one_vm(&Options::default())?;
    // From now on, the module's image is in the cache.
    computes(&host, 1)?;
    host.wait_no_sessions(SOON)?;
    host.stop_daemon()?;
    // The software device keeps its state outside of the runtime directory, because this test
    // fills the file system of the runtime directory.
    let device = host.dir().join("device");
    let config = std::fs::read_to_string(host.config_path())?;
    let moved = format!("[driver]\nsoft_state_dir = {device:?}\n");
    std::fs::write(host.config_path(), config.replace("[driver]\n", &moved))?;
    let state = Small::mount(&host.dir().join("state"), "size=640k,mode=711")?;
    let runtime = Small::mount(&host.dir().join("run"), "size=512k,mode=755")?;
    // The log is on the full disk too.
    let log = host.dir().join("vgpud.log");
    std::fs::rename(&log, host.dir().join("earlier.log"))?;
    std::os::unix::fs::symlink(state.0.join("vgpud.log"), &log)?;
    host.start_daemon()?;
    computes(&host, 1)?;
    let first = std::fs::read_to_string(state.0.join("next-session"))?;

    for full in [&state, &runtime] {
        full.fill()?;
    }
    host.kill_daemon()?;
    host.start_daemon()?;
    serves_on_a_full_disk(&host)?;
    let second = std::fs::read_to_string(state.0.join("next-session"))?;
    ensure!(second > first, "reserved again in place: {first}, {second}");

    // After a normal end, the database's log and index are gone, and their space is filled.
    host.stop_daemon()?;
    state.fill()?;
    host.start_daemon()?;
    serves_on_a_full_disk(&host)?;
    host.kill_daemon()?;
    state.fill()?;
    host.start_daemon()?;
    serves_on_a_full_disk(&host)?;

    for full in [&state, &runtime] {
        full.free()?;
    }
    until("a change is stored again", SOON, || {
        host.admin("register-vm --vm-id=2 --pool=A").ok()
    })?;
    computes(&host, 1)?;
    host.kill_daemon()?;
    host.start_daemon()?;
    host.admin("vm show 2").map(drop)
}

/// The VMs in the database file alone, from a copy of this file.
fn vms_in_the_file(host: &Host) -> Option<i64> {
    let copy = tempfile::NamedTempFile::new().ok()?;
    std::fs::copy(host.dir().join("state/state.db"), copy.path()).ok()?;
    let count = "SELECT count(*) FROM vms";
    // Immutable: SQLite does not look for a log.
    let uri = format!("file:{}?immutable=1", copy.path().display());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let database = Connection::open_with_flags(uri, flags).ok()?;
    database.query_row(count, [], |row| row.get(0)).ok()
}

#[test]
fn a_database_without_its_log_is_not_served_as_if_nothing_were_missing() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    let state = host.dir().join("state");
    host.admin("register-vm --vm-id=2-50 --pool=A")?;
    until("all 50 VMs are in the database file itself", SOON, || {
        (vms_in_the_file(&host) == Some(50)).then_some(())
    })?;
    // A reader keeps all later changes in the log.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let reader = Connection::open_with_flags(state.join("state.db"), flags)?;
    reader.execute_batch("BEGIN; SELECT count(*) FROM vms;")?;
    host.admin("register-vm --vm-id=51-60 --pool=A")?;
    host.kill_daemon()?;
    drop(reader);
    let wal = state.join("state.db-wal");
    let whole = std::fs::read(&wal)?;
    let mut damaged = whole.clone();
    damaged[8..64].fill(0xa5);
    for kept in [Some(damaged), None] {
        match &kept {
            Some(bytes) => std::fs::write(&wal, bytes)?,
            None => std::fs::remove_file(&wal)?,
        }
        let database = std::fs::read(state.join("state.db"))?;
        let before = host.log().len();
        let mut daemon = host.spawn_daemon()?;
        let status = until("vgpud refuses to start", SOON, || {
            daemon.try_wait().ok().flatten()
        })?;
        let log = host.log();
        let said = log.get(before..).unwrap_or_default();
        ensure!(!status.success(), "{said}");
        ensure!(said.contains("lacks changes"), "{said}");
        let witness = state.join("last-change").display().to_string();
        ensure!(said.contains(&witness), "what to do: {said}");
        ensure!(
            std::fs::read(state.join("state.db"))? == database,
            "left as it was"
        );
    }
    // With the log, the database is complete.
    std::fs::write(&wal, whole)?;
    host.start_daemon()?;
    host.admin("vm show 60")?;
    host.kill_daemon()?;
    // An administrator may accept the content of the database file without the log.
    std::fs::remove_file(&wal)?;
    std::fs::remove_file(state.join("last-change"))?;
    host.start_daemon()?;
    host.admin("vm show 50")?;
    Ok(())
}

#[test]
fn a_backup_is_taken_and_restored_while_guests_run() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high --memory=512MiB")?;
    host.admin("weights set --high=20")?;
    let file = host.dir().join("backup");
    let save = format!("backup {}", file.display());
    host.admin(&save)?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file)?.permissions());
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let again = describe(&host.admin_output(&save)?);
    ensure!(again.contains("--force"), "{again}");
    host.admin(&format!("{save} --force"))?;

    // Changes after the backup: VM 1 is unchanged, 2 is a new registration, 3 is new, pool B too.
    host.admin("unregister-vm --vm-id=2")?;
    host.admin("register-vm --vm-id=2-3 --pool=A")?;
    host.admin("assign-gpu --gpu-id=1 --pool=B")?;
    host.admin("weights set --high=7")?;
    let hold = |vm| {
        Guest::new(guest::RULES, host.target(vm))?
            .arg("hold")
            .spawn()
    };
    let (stays, ends) = (hold(1)?, hold(3)?);
    let sessions = || Some(host.admin_json("session list").ok()?.as_array()?.clone());
    until("both compute", SOON, || {
        let all = sessions()?;
        let busy = |s: &serde_json::Value| s["calls"].as_u64().is_some_and(|calls| calls > 0);
        (all.len() == 2 && all.iter().all(busy)).then_some(())
    })?;

    let registered = || -> Result<Vec<Vec<serde_json::Value>>> {
        let stable = [
            "vm_id",
            "name",
            "pool",
            "priority",
            "limits",
            "effective_limits",
        ];
        let list = host.admin_json("vm list")?;
        let of = |vm: &serde_json::Value| stable.map(|field| vm[field].clone()).to_vec();
        Ok(list.as_array().context("a list")?.iter().map(of).collect())
    };
    let before = registered()?;
    ensure!(before.len() == 3, "{before:?}");
    let nonsense = host.dir().join("nonsense");
    let whole = std::fs::read(&file)?;
    let mut newer = whole.clone();
    newer[60..64].copy_from_slice(&99_u32.to_be_bytes());
    let wrong = [
        b"no database".to_vec(),
        Vec::new(),
        whole[..whole.len() / 2].to_vec(),
        newer,
    ];
    for bytes in wrong {
        std::fs::write(&nonsense, bytes)?;
        let refused = host.admin_output(&format!("restore {}", nonsense.display()))?;
        let text = describe(&refused);
        ensure!(!refused.status.success(), "{text}");
        ensure!(text.contains("Nothing was changed"), "{text}");
    }
    let directory = host.admin_output(&format!("restore {}", host.dir().display()))?;
    ensure!(!directory.status.success(), "{}", describe(&directory));
    ensure!(registered()? == before, "{before:?}");
    ensure!(sessions().context("sessions")?.len() == 2);

    let told = host.admin(&format!("restore {}", file.display()))?;
    let what = "1 pool (0 added, 1 changed, 1 removed: B), 2 VMs (0 added, 0 changed, 1 replaced: 2, 1 removed: 3). \
                1 session of guests ends with it.";
    ensure!(told.contains(what), "{told}");
    for list in ["audit", "events"] {
        let said = host.admin(list)?;
        ensure!(said.contains(what), "{list}: {said}");
    }
    let output = ends.finish(SOON)?;
    ensure!(
        String::from_utf8_lossy(&output.stdout).contains("ended with 46"),
        "{}",
        describe(&output)
    );
    let left = sessions().context("sessions")?;
    ensure!(left.len() == 1 && left[0]["vm_id"] == 1, "{left:?}");
    ensure!(!host.admin_output("vm show 3")?.status.success());
    for restarted in [false, true] {
        if restarted {
            drop(host.kill_daemon());
            host.start_daemon()?;
        }
        let vm = host.vm(2)?;
        ensure!(vm["priority"] == "high", "{vm:#}");
        ensure!(vm["limits"]["memory_bytes"] == 512 << 20, "{vm:#}");
        ensure!(host.admin_json("weights get")?["host"]["high"] == 20);
        let pools = host.admin_json("pool list")?;
        let names: Vec<_> = pools
            .as_array()
            .context("a list")?
            .iter()
            .map(|p| &p["name"])
            .collect();
        ensure!(names == ["A"], "{pools:#}");
        computes(&host, 2)?;
    }
    drop(stays);
    let audit = host.admin("audit")?;
    ensure!(audit.contains("restore"), "{audit}");
    Ok(())
}

#[test]
fn a_backup_replaces_nothing_but_a_backup() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    let path = |name: &str| host.dir().join(name);
    let (state, note, fifo, link) = (path("state"), path("note"), path("fifo"), path("link"));
    let backup = path("backup");
    host.admin(&format!("backup {}", backup.display()))?;
    std::fs::write(&note, "kept")?;
    std::fs::write(path("empty"), "")?;
    std::os::unix::fs::symlink(&backup, &link)?;
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
    // A database of another program.
    rusqlite::Connection::open(path("database"))?.execute("CREATE TABLE t (a)", [])?;
    let mut others = vec![note, path("empty"), fifo.clone(), link, host.admin_socket()];
    others.push(path("database"));
    for file in std::fs::read_dir(&state)? {
        others.push(file?.path());
    }
    ensure!(others.contains(&state.join("state.db-wal")), "{others:?}");
    let what = |path: &PathBuf| {
        let found = std::fs::symlink_metadata(path)?;
        anyhow::Ok((
            std::os::unix::fs::MetadataExt::ino(&found),
            found.file_type(),
        ))
    };
    for other in &others {
        let before = what(other)?;
        for force in ["", "--force "] {
            let refused = host.admin_output(&format!("backup {force}{}", other.display()))?;
            let text = describe(&refused);
            ensure!(!refused.status.success(), "{text}");
            ensure!(
                text.contains("is not a backup; name another file"),
                "{text}"
            );
            ensure!(!text.contains("--force"), "it would not help: {text}");
            ensure!(what(other)? == before, "{}", other.display());
        }
    }
    // Nothing writes into the FIFO.
    let refused = host.admin_output(&format!("restore {}", fifo.display()))?;
    let text = describe(&refused);
    ensure!(
        !refused.status.success() && text.contains("not a file with a backup"),
        "{text}"
    );
    // The lock of a process that takes backups periodically is next to the backup.
    std::fs::write(path("backup.lock"), "")?;
    let told = host.admin(&format!("backup --force {}", backup.display()))?;
    ensure!(told.contains("bytes to"), "{told}");
    host.admin(&format!("restore {}", backup.display()))?;
    host.kill_daemon()?;
    host.start_daemon()
}

#[test]
fn a_restore_for_which_there_is_no_space_is_refused_with_the_reason() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return Ok(());
    }
    let mut host = one_vm(&Options::default())?;
    host.stop_daemon()?;
    let _state = Small::mount(&host.dir().join("state"), "size=4m,mode=711")?;
    host.start_daemon()?;
    let file = host.dir().join("large");
    std::fs::File::create(&file)?.set_len(64 << 20)?;
    let refused = host.admin_output(&format!("restore {}", file.display()))?;
    let text = describe(&refused);
    ensure!(refused.status.code() != Some(5), "{text}");
    ensure!(
        text.contains("Nothing was changed") && text.contains("KiB are free"),
        "before it was sent: {text}"
    );
    // A copy does not take the space that changes need either.
    let copy = host.dir().join("copy");
    let refused = host.admin_output(&format!("backup {}", copy.display()))?;
    let text = describe(&refused);
    ensure!(text.contains("KiB are free") && !copy.exists(), "{text}");
    computes(&host, 1)
}
