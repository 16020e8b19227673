//! The checks of `vgpu-admin doctor`. Each reports a finding and, if needed, a remedy.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use vgpu_api::{CheckStatus, DoctorCheck, Gpu, GpuState, Vm};

use super::socket;
use crate::config::{Config, DriverKind, Source};
use crate::store::Store;
use crate::system;
use crate::system::patience::Patience;
use crate::system::tasks::tasks_most;
use crate::views::World;

/// Free space for the database, in bytes, below which the check warns.
const LOW_SPACE: u64 = 64 << 20;

pub(crate) fn is_fine(check: &DoctorCheck) -> bool {
    check.status != CheckStatus::Error
}

/// Begins message and hint with a capital letter and ends both with a full stop, because clients
/// print both in one paragraph. The names of programs, files and keys keep their letters.
pub(crate) fn in_sentences(check: &mut DoctorCheck) {
    for text in [Some(&mut check.message), check.hint.as_mut()] {
        let Some(text) = text else { continue };
        let first = text.split([' ', ',', ':']).next().unwrap_or_default();
        let is_word = first.bytes().all(|byte| byte.is_ascii_lowercase());
        if is_word
            && first != "vgpud"
            && let Some(letter) = text.get_mut(..1)
        {
            letter.make_ascii_uppercase();
        }
        if !text.ends_with(['.', '!', '?']) {
            text.push('.');
        }
    }
}

/// Runs the checks of the host that a running vgpud can do, except those of its state
/// ([`of_world`]).
pub(super) async fn examine(
    config: &Arc<Config>,
    source: &Source,
    store: &Store,
    patience: &Patience,
) -> Vec<DoctorCheck> {
    let mut checks = vec![
        configuration(config, source),
        integrity(store).await,
        writable(store),
        admin_socket(config),
    ];
    checks.extend(of_host(config, patience).await);
    checks
}

/// Runs the checks that need no running vgpud: disk space, groups, directories, devices, driver.
pub(crate) async fn of_host(config: &Arc<Config>, patience: &Patience) -> Vec<DoctorCheck> {
    let mut checks = vec![
        space(config),
        group("admin-read-group", &config.admin.read_group),
        group("admin-write-group", &config.admin.write_group),
    ];
    let (asked, patience) = (config.clone(), patience.clone());
    let sockets = tokio::task::spawn_blocking(move || guest_listeners(&asked, &patience)).await;
    checks.extend(sockets.unwrap_or_else(|problem| {
        let problem = format!("The directories of sockets cannot be looked at: {problem}.");
        vec![DoctorCheck::error(
            VM_SOCKET_DIR,
            problem,
            "vgpud's log says more.",
        )]
    }));
    checks.extend(driver(config));
    checks
}

fn configuration(config: &Config, source: &Source) -> DoctorCheck {
    const NAME: &str = "configuration";
    let fresh = match source.load() {
        Ok(fresh) => fresh,
        Err(problem) => {
            return DoctorCheck::error(
                NAME,
                problem.to_string(),
                "Mend it before the next reload or restart.",
            );
        }
    };
    match config.reload(&fresh) {
        Ok((_, report)) if report.applied.is_empty() && report.restart_needed.is_empty() => {
            DoctorCheck::ok(
                NAME,
                match source.path() {
                    Some(file) => format!(
                        "The configuration file {} is in force as it is.",
                        file.display()
                    ),
                    None => "There is no configuration file: the built-in values are in force."
                        .to_owned(),
                },
            )
        }
        Ok((_, report)) => DoctorCheck::warning(
            NAME,
            format!(
                "The file differs from what is in force: {}.",
                [report.applied, report.restart_needed].concat().join(", ")
            ),
            "Live keys are taken over by `systemctl reload vgpud`; the others need a restart.",
        ),
        Err(problem) => DoctorCheck::warning(NAME, problem, "Restart vgpud."),
    }
}

async fn integrity(store: &Store) -> DoctorCheck {
    const NAME: &str = "store-integrity";
    let file = store.file().display();
    match store.integrity().await {
        Ok(None) => DoctorCheck::ok(NAME, format!("{file}: integrity_check is ok.")),
        Ok(Some(problem)) => DoctorCheck::error(
            NAME,
            format!("{file} is damaged: {problem}."),
            crate::store::PUT_BACK,
        ),
        Err(problem) => DoctorCheck::error(
            NAME,
            problem.message,
            "Look at the disk and the file's owner.",
        ),
    }
}

fn writable(store: &Store) -> DoctorCheck {
    const NAME: &str = "store-writable";
    let health = store.health();
    match health.problem {
        None => DoctorCheck::ok(
            NAME,
            format!("{} transactions since the start.", health.commits),
        ),
        Some(problem) => {
            DoctorCheck::error(NAME, problem, "Free space or mend the disk; guests go on.")
        }
    }
}

/// Returns the directory, or its nearest parent that exists.
pub(crate) fn existing(dir: &Path) -> &Path {
    let mut all = dir.ancestors();
    all.find(|path| path.symlink_metadata().is_ok())
        .unwrap_or(dir)
}

fn space(config: &Config) -> DoctorCheck {
    const NAME: &str = "disk-space";
    let dir = &config.daemon.state_dir;
    match nix::sys::statvfs::statvfs(existing(dir)) {
        Ok(stat) => {
            let free = stat.blocks_available() * stat.fragment_size();
            let message = format!("{} MiB free in {}.", free >> 20, dir.display());
            if free < LOW_SPACE {
                DoctorCheck::warning(
                    NAME,
                    message,
                    "Free some space: commands are refused when it is full.",
                )
            } else {
                DoctorCheck::ok(NAME, message)
            }
        }
        Err(errno) => DoctorCheck::warning(
            NAME,
            format!("{} cannot be seen: {errno}.", dir.display()),
            "",
        ),
    }
}

fn group(name: &str, group: &str) -> DoctorCheck {
    match system::group(group) {
        Some(gid) => DoctorCheck::ok(name, format!("Group {group} exists ({gid}).")),
        None => DoctorCheck::warning(
            name,
            format!("There is no group {group}: only root and vgpud's own user get in."),
            format!("`groupadd --system {group}`, then restart vgpud."),
        ),
    }
}

fn admin_socket(config: &Config) -> DoctorCheck {
    const NAME: &str = "admin-socket";
    let path = config.admin_socket();
    match std::fs::metadata(&path) {
        Ok(metadata) => {
            let mode = metadata.permissions().mode() & 0o777;
            let message = format!("{} has mode {mode:04o}.", path.display());
            let groups = [&config.admin.read_group, &config.admin.write_group];
            let gids = groups.map(|name| system::group(name));
            let needs_list = gids.iter().all(Option::is_some) && gids[0] != gids[1];
            if mode & 0o007 != 0 {
                DoctorCheck::error(
                    NAME,
                    message,
                    "Others can reach it: restart vgpud, and find who changed it.",
                )
            } else if needs_list && !socket::has_access_list(&path) {
                DoctorCheck::warning(
                    NAME,
                    format!("{message} Its file system has no access lists."),
                    format!(
                        "Make members of {} members of {} too.",
                        groups[1], groups[0]
                    ),
                )
            } else {
                DoctorCheck::ok(NAME, message)
            }
        }
        Err(problem) => DoctorCheck::error(
            NAME,
            format!("{} is not there: {problem}.", path.display()),
            "Restart vgpud.",
        ),
    }
}

fn guest_listeners(config: &Config, patience: &Patience) -> Vec<DoctorCheck> {
    let mut checks = Vec::new();
    if config.listen.vsock {
        const NAME: &str = "vhost-vsock";
        checks.push(match Path::new("/dev/vhost-vsock").exists() {
            true => DoctorCheck::ok(
                NAME,
                "/dev/vhost-vsock is there: QEMU can give VMs a vsock device.",
            ),
            false => DoctorCheck::warning(
                NAME,
                "There is no /dev/vhost-vsock: no VM of this host can have a vsock device of the \
                 kernel. Unix sockets and hybrid vsock are served.",
                "`modprobe vhost_vsock`; without VMs over vsock, set listen.vsock = false.",
            ),
        });
    }
    let dirs = config
        .vm_socket_dir()
        .into_iter()
        .map(|dir| (VM_SOCKET_DIR, dir));
    let hybrid = config
        .listen
        .hybrid_dirs
        .iter()
        .map(|dir| ("hybrid-dir", dir.clone()));
    let dirs: Vec<_> = dirs.chain(hybrid).collect();
    let work = |(_, dir): &(_, PathBuf)| {
        let asked = dir.clone();
        (dir.clone(), move || look(&asked))
    };
    let answers = patience.ask_all(dirs.iter().map(work).collect());
    let seen = dirs.iter().zip(answers);
    checks.extend(seen.map(|((name, dir), answer)| match answer {
        Ok(found) => directory(name, dir, found),
        Err(why) => DoctorCheck::error(
            name,
            format!("{} cannot be looked at: {why}.", dir.display()),
            "Mend or unmount that file system.",
        ),
    }));
    checks
}

/// The name of the check of the directory with VMs' sockets.
const VM_SOCKET_DIR: &str = "vm-socket-dir";

/// A directory, and whether vgpud may make files in it.
type Looked = (Metadata, nix::Result<()>);

fn look(dir: &Path) -> io::Result<Looked> {
    let metadata = std::fs::metadata(dir)?;
    let rights = AccessFlags::W_OK | AccessFlags::X_OK;
    let may_write = faccessat(AT_FDCWD, dir, rights, AtFlags::AT_EACCESS);
    Ok((metadata, may_write))
}

fn directory(name: &str, dir: &Path, found: io::Result<Looked>) -> DoctorCheck {
    match found {
        Ok((metadata, _)) if !metadata.is_dir() => {
            DoctorCheck::error(name, format!("{} is not a directory.", dir.display()), "")
        }
        Ok((metadata, _)) if metadata.permissions().mode() & 0o002 != 0 => DoctorCheck::error(
            name,
            format!(
                "{} can be written by everybody: VMs can be impersonated.",
                dir.display()
            ),
            format!("`chmod o-w {}`.", dir.display()),
        ),
        Ok((_, Err(why))) => DoctorCheck::error(
            name,
            format!("vgpud cannot make sockets in {}: {why}.", dir.display()),
            match why {
                Errno::EROFS => {
                    "Add the directory to ReadWritePaths= of vgpud's unit, and restart vgpud."
                }
                _ => "Make the directory writable by vgpud.",
            },
        ),
        Ok((_, Ok(()))) => DoctorCheck::ok(
            name,
            format!("{} is there and can be written.", dir.display()),
        ),
        Err(problem) if name == VM_SOCKET_DIR && problem.kind() == std::io::ErrorKind::NotFound => {
            DoctorCheck::skipped(
                name,
                format!(
                    "{} is not there yet: vgpud makes it when it is needed.",
                    dir.display()
                ),
            )
        }
        Err(problem) => DoctorCheck::warning(
            name,
            format!("{}: {problem}.", dir.display()),
            "vgpud makes it when needed.",
        ),
    }
}

fn driver(config: &Config) -> Vec<DoctorCheck> {
    const NAME: &str = "management-library";
    let mut checks = Vec::new();
    // The check `driver-library` of the mediation loads the CUDA libraries.
    if let Some(path) = &config.driver.nvml_library {
        checks.push(match path.exists() {
            true => DoctorCheck::ok(NAME, format!("{} is there.", path.display())),
            false => DoctorCheck::error(
                NAME,
                format!("driver.nvml_library: {} is not there.", path.display()),
                "Correct the path in vgpud.toml.",
            ),
        });
    }
    let nvidia = Path::new("/proc/driver/nvidia/version");
    match (nvidia.exists(), config.driver.kind) {
        (true, _) => {
            checks.push(DoctorCheck::ok(
                "nvidia-driver",
                "NVIDIA's kernel driver is loaded.",
            ));
            checks.push(pageable_access());
        }
        (false, DriverKind::Nvidia) => checks.push(DoctorCheck::error(
            "nvidia-driver",
            "NVIDIA's kernel driver is not loaded, and driver.kind = \"nvidia\".",
            "Install and load it, or use software devices (driver.kind = \"soft\").",
        )),
        // No error: the checks of the GPUs show the devices that serve instead.
        (false, DriverKind::Auto | DriverKind::Soft) => checks.push(DoctorCheck::skipped(
            "nvidia-driver",
            "NVIDIA's kernel driver is not loaded.",
        )),
    }
    checks
}

/// With pageable access, the kernels of a guest can reach every page of their worker's memory.
fn pageable_access() -> DoctorCheck {
    const NAME: &str = "pageable-access";
    let read = |name: &str| {
        let file = format!("/sys/module/nvidia_uvm/parameters/{name}");
        std::fs::read_to_string(file)
            .ok()
            .map(|value| value.trim().to_owned())
    };
    let va_space = read("uvm_enable_va_space_mm");
    let hmm = read("uvm_disable_hmm");
    let off = va_space.as_deref() == Some("0") || matches!(hmm.as_deref(), Some("Y" | "1"));
    match (off, va_space.or(hmm)) {
        (true, _) => DoctorCheck::ok(NAME, "Kernels cannot reach their worker's pageable memory."),
        (false, None) => DoctorCheck::skipped(NAME, "nvidia-uvm does not say."),
        (false, Some(_)) => DoctorCheck::warning(
            NAME,
            "Kernels may be able to reach every page of their worker's memory (HMM, ATS).",
            "Put `options nvidia-uvm uvm_enable_va_space_mm=0` into /etc/modprobe.d/ and reload \
             the module.",
        ),
    }
}

/// Reports the problems of the last scan for GPUs.
pub(crate) fn of_scan(wrong: &[String]) -> Vec<DoctorCheck> {
    const NAME: &str = "gpu-scan";
    if wrong.is_empty() {
        return vec![DoctorCheck::ok(
            NAME,
            "The scan for GPUs found nothing wrong.",
        )];
    }
    let hint = "Run `vgpu-admin scan-gpus` once it is fixed.";
    let told = wrong.iter();
    told.map(|sentence| DoctorCheck::warning(NAME, sentence, hint))
        .collect()
}

/// Reports the warnings that no check before them reports. Says that nothing needs an
/// administrator only if none of those checks found a fault.
pub(super) fn of_warnings(warnings: Vec<String>, before: &[DoctorCheck]) -> Vec<DoctorCheck> {
    const NAME: &str = "warnings";
    let is_well =
        |check: &DoctorCheck| matches!(check.status, CheckStatus::Ok | CheckStatus::Skipped);
    if warnings.is_empty() && before.iter().all(is_well) {
        return vec![DoctorCheck::ok(NAME, "Nothing needs an administrator.")];
    }
    let known = |sentence: &String| {
        let words = sentence.trim_end_matches('.');
        before.iter().any(|check| check.message.contains(words))
    };
    let new = warnings.into_iter().filter(|sentence| !known(sentence));
    new.map(|sentence| DoctorCheck::warning(NAME, sentence, ""))
        .collect()
}

/// Runs the checks of the present state: GPUs, their accounts, and pinned memory.
pub(super) fn of_world(world: &World, config: &Config) -> Vec<DoctorCheck> {
    let mut checks: Vec<DoctorCheck> = world.gpus().iter().map(gpu).collect();
    let hint = match config.driver.kind {
        DriverKind::Nvidia => {
            "Install NVIDIA's driver or correct what gpu-scan names, then `vgpu-admin scan-gpus`."
        }
        DriverKind::Auto => {
            "Correct what gpu-scan names, then `vgpu-admin scan-gpus`; on a host without a GPU, \
             software devices serve with driver.kind = \"soft\"."
        }
        DriverKind::Soft => {
            "Correct what gpu-scan and driver-library name, then `vgpu-admin scan-gpus`."
        }
    };
    if checks.is_empty() {
        checks.push(DoctorCheck::error("gpus", "No GPU is known.", hint));
    } else if !world.can_work() {
        checks.push(DoctorCheck::error(
            "gpus",
            "None of this host's GPUs can take work: programs that use one are refused.",
            format!("The lines gpu-... say why. {hint}"),
        ));
    }
    checks.extend(world.gpus().iter().filter_map(account));
    let vms = world.vms();
    checks.push(pinned_memory(&vms, crate::memory::pinned_most()));
    let of_vm = config.worker.max_tasks;
    checks.push(worker_tasks(vms.len(), of_vm, tasks_most()));
    checks
}

/// Warns if the VMs' limits of pinned memory add up to more than `most`, the bytes that all VMs may
/// pin together.
fn pinned_memory(vms: &[Vm], most: u64) -> DoctorCheck {
    const NAME: &str = "pinned-memory";
    let limits = vms.iter().map(|vm| vm.effective_limits.pinned_bytes);
    let limits = limits.map(|limit| limit.value().unwrap_or(u64::MAX));
    let sum = limits.fold(0, u64::saturating_add);
    let now: u64 = vms.iter().map(|vm| vm.pinned_bytes).sum();
    let (now_mib, most_mib) = (now >> 20, most >> 20);
    if vms.is_empty() {
        return DoctorCheck::ok(
            NAME,
            format!("No VM is registered; all together may pin {most_mib} MiB of host memory."),
        );
    }
    let said = match sum {
        u64::MAX => "At least one VM has no limit of pinned host memory".to_owned(),
        sum => format!(
            "The VMs' limits of pinned host memory add up to {} MiB",
            sum >> 20
        ),
    };
    let said =
        format!("{said}; all VMs together get {most_mib} MiB, and {now_mib} MiB are pinned now.");
    if sum <= most {
        return DoctorCheck::ok(NAME, said);
    }
    let share = vgpu_sched::pinned_share(most, vms.len() as u64, None) >> 20;
    DoctorCheck::warning(
        NAME,
        format!(
            "{said} Each VM is sure of its limit or of {share} MiB, whichever is less; more may be refused to a VM \
             although its limit allows it."
        ),
        "Lower limits with `vgpu-admin vm set --pinned=...`, or `pinned_bytes` in `[defaults.vm]`.",
    )
}

/// Warns if the workers of all VMs together may have more processes and threads than the host
/// allows: taken-over workers could use them up. `of_vm`: `worker.max_tasks`.
fn worker_tasks(vms: usize, of_vm: u64, most: Option<u64>) -> DoctorCheck {
    const NAME: &str = "worker-tasks";
    let Some(most) = most else {
        let why = "It cannot be read how many processes and threads the host allows";
        return DoctorCheck::skipped(NAME, why);
    };
    let sum = of_vm.saturating_mul(vms as u64);
    let said = format!(
        "The workers of all VMs may have {sum} processes and threads, {of_vm} a VM; the host allows {most}"
    );
    if sum <= most {
        return DoctorCheck::ok(NAME, said);
    }
    DoctorCheck::warning(
        NAME,
        format!(
            "{said}: guests that took over their workers could keep other programs from starting."
        ),
        "Lower worker.max_tasks in vgpud.toml, or raise what limits the host: kernel.pid_max, kernel.threads-max, or \
         TasksMax= of vgpud's unit.",
    )
}

/// Checks that all parts of a GPU's account add up to the total time.
fn account(gpu: &Gpu) -> Option<DoctorCheck> {
    let account = gpu.account?;
    let name = format!("gpu-{}-account", gpu.gpu_id);
    let seconds = |ns: u64| ns as f64 / 1e9;
    // The charge contains the switches between holders. Without a holder, work waits only for the
    // check after a kill.
    let nobody = match account.switch_ns {
        0..500_000 => String::new(),
        ns => format!(", {:.3} s without a holder", seconds(ns)),
    };
    let message = format!(
        "{:.3} s charged, {:.3} s idle{nobody}: {} {:.3} s.",
        seconds(account.charged_ns),
        seconds(account.idle_ns),
        if account.is_balanced() {
            "all of"
        } else {
            "not"
        },
        seconds(account.wall_ns),
    );
    Some(if account.is_balanced() {
        DoctorCheck::ok(&name, message)
    } else {
        DoctorCheck::error(
            &name,
            message,
            "A fault of vgpud: please report it with `vgpu-admin sched log`.",
        )
    })
}

fn gpu(gpu: &Gpu) -> DoctorCheck {
    let name = format!("gpu-{}", gpu.gpu_id);
    let reason = gpu.state_reason.as_deref().unwrap_or("no reason given");
    match gpu.state {
        GpuState::Suspect => DoctorCheck::error(
            &name,
            format!("{} is suspect: {reason}.", gpu.model),
            format!("`vgpu-admin gpu resume {}` checks it.", gpu.gpu_id),
        ),
        GpuState::Vanished => DoctorCheck::warning(
            &name,
            format!("{} is gone: {reason}.", gpu.model),
            format!(
                "`vgpu-admin scan-gpus` looks again; `vgpu-admin gpu forget {}` forgets \
                 it.",
                gpu.gpu_id
            ),
        ),
        GpuState::Ready | GpuState::Draining if !gpu.health.ok => DoctorCheck::warning(
            &name,
            format!("{}: {}.", gpu.model, gpu.health.problems.join("; ")),
            "See the driver's log (`dmesg`, `nvidia-smi -q`).",
        ),
        GpuState::NoDriver => DoctorCheck::warning(
            &name,
            format!(
                "{} is on the PCI bus and takes no work: {reason}.",
                gpu.model
            ),
            "When its driver is loaded: `vgpu-admin scan-gpus`.",
        ),
        GpuState::Ready | GpuState::Draining => {
            DoctorCheck::ok(&name, format!("{} is healthy.", gpu.model))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_for_a_directory_that_is_not_there_yet_is_that_of_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.daemon.state_dir = dir.path().join("not/there");
        assert_eq!(existing(&config.daemon.state_dir), dir.path());
        let check = space(&config);
        assert!(check.message.contains("MiB free in"), "{check:?}");
    }

    #[test]
    fn texts_are_sentences_and_names_keep_their_letters() {
        for (text, sentence) in [
            ("see the kernel's log", "See the kernel's log."),
            ("workers run as root, here", "Workers run as root, here."),
            ("vgpud listens", "vgpud listens."),
            ("/run/vgpu is there.", "/run/vgpu is there."),
            ("`groupadd vgpu`", "`groupadd vgpu`."),
            ("nvidia-uvm does not say", "nvidia-uvm does not say."),
            ("driver.library is wrong", "driver.library is wrong."),
        ] {
            let mut check = DoctorCheck::warning("x", text, text);
            in_sentences(&mut check);
            assert_eq!(check.message, sentence);
            assert_eq!(check.hint.as_deref(), Some(sentence));
        }
    }

    #[test]
    fn nothing_needs_an_administrator_only_if_no_check_found_a_fault() {
        let well = [DoctorCheck::ok("a", ""), DoctorCheck::skipped("b", "")];
        let said = of_warnings(Vec::new(), &well);
        assert!(
            said.len() == 1 && said[0].status == CheckStatus::Ok,
            "{said:?}"
        );
        for fault in [
            DoctorCheck::warning("c", "", ""),
            DoctorCheck::error("c", "", ""),
        ] {
            assert_eq!(of_warnings(Vec::new(), &[fault]), []);
        }
        let said = of_warnings(vec!["Mend.".into()], &well);
        assert!(
            said.len() == 1 && said[0].status == CheckStatus::Warning,
            "{said:?}"
        );
    }

    #[test]
    fn workers_that_may_use_up_the_process_numbers_are_told() {
        let check = worker_tasks(8, 4_096, Some(32_768));
        assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        let check = worker_tasks(9, 4_096, Some(32_768));
        assert_eq!(check.status, CheckStatus::Warning);
        assert!(check.message.contains("36864 processes"), "{check:?}");
        let check = worker_tasks(9, 4_096, None);
        assert_eq!(check.status, CheckStatus::Skipped);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_not_fine() {
        let dir = tempfile::tempdir().unwrap();
        let check = directory("hybrid-dir", dir.path(), look(dir.path()));
        assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        let metadata = std::fs::metadata(dir.path()).unwrap();
        let check = directory("hybrid-dir", dir.path(), Ok((metadata, Err(Errno::EROFS))));
        assert_eq!(check.status, CheckStatus::Error);
        assert!(check.hint.unwrap().contains("ReadWritePaths="));
    }

    #[test]
    fn a_directory_whose_file_system_does_not_answer_is_told() {
        let mut config = Config::default();
        config.listen.hybrid_dirs = vec!["/dead".into()];
        let patience = Patience::default();
        let (_release, hangs) = std::sync::mpsc::channel::<()>();
        let _ = patience.ask(Path::new("/dead"), move || {
            let _ = hangs.recv();
        });
        let checks = guest_listeners(&config, &patience);
        let told = checks.iter().find(|check| check.name == "hybrid-dir");
        let told = told.expect("a line of its own");
        assert!(told.message.contains("does not answer"), "{told:?}");
    }
}
