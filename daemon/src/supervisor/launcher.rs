//! Starts workers by the configuration: driver, environment, user.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::oneshot;
use vgpu_api::GpuSource;
use vgpu_proto::worker::Start;

use super::spawner::Spawner;
use crate::config::Config;
use crate::mediator::Admitted;
use crate::memory::pinned_most;
use crate::model::VmIdentity;
use crate::system::closer::Closers;
use crate::system::priority;
use crate::worker::cgroup::CgroupRoot;
use crate::worker::confine::{Confinement, Inmate, Jail};
use crate::worker::images::{cache_of, make_cache};
use crate::worker::owner::{Owner, Owners, Use, reachable};
use crate::worker::records::WorkerRecords;
use crate::worker::spawn::{self, Worker, WorkerOrder, WorkerTemplate};

/// Starts workers and probes by the configuration.
#[derive(Debug)]
pub struct Launcher {
    config: RwLock<Arc<Config>>,
    owners: Owners,
    records: WorkerRecords,
    cgroups: CgroupRoot,
    jail: Jail,
    spawner: Spawner,
    closers: Closers,
}

/// A worker that was started, with its first message.
#[derive(Debug)]
pub struct Launched {
    /// The worker.
    pub worker: Worker,
    /// The first message.
    pub start: Start,
    /// Standard error of the worker.
    pub log: OwnedFd,
    /// Reports that the worker is in its cgroup, which ends all processes that the worker starts.
    /// Before that, the worker must get no data of its guest.
    pub in_cgroup: oneshot::Receiver<Result<(), String>>,
}

impl Launcher {
    /// Creates a launcher that records its workers in `records`. The workers end when it is
    /// dropped.
    ///
    /// # Errors
    /// If the system cannot create the thread.
    pub fn new(config: Arc<Config>, records: WorkerRecords) -> std::io::Result<Launcher> {
        Ok(Launcher {
            owners: Owners::find(&config.worker),
            cgroups: CgroupRoot::find(config.worker.cgroups),
            jail: Jail::find(&config.worker),
            config: RwLock::new(config),
            records,
            spawner: Spawner::new()?,
            closers: Closers::default(),
        })
    }

    /// Copies the worker and the probe, so that an upgrade of the installed programs reaches only
    /// the next vgpud. A program that is missing or unreadable is copied at its first use instead,
    /// which reports the reason.
    pub fn keep_programs(&self) {
        let config = self.config();
        for path in [worker_binary(&config), probe_binary(&config)] {
            let kept = path.and_then(|path| {
                let kept = self.jail.program(&path);
                kept.map_err(|e| format!("cannot copy {}: {e}", path.display()))
            });
            if let Err(why) = kept {
                tracing::warn!("{why}");
            }
        }
    }

    /// Applies a reloaded configuration to workers that start from now on.
    pub fn reconfigure(&self, config: Arc<Config>) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// The present configuration.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        self.config
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Users and groups of workers and probes.
    #[must_use]
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Whether the processes that a worker starts end with it, and a sentence about it. `soft`: a
    /// worker on software devices, otherwise one on GPUs.
    #[must_use]
    pub fn forks_end(&self, soft: bool) -> (bool, String) {
        let (in_cgroup, cgroups) = self.cgroups.describe();
        match self.jail.forks_end(soft) {
            Ok(()) => {
                let apart =
                    "each worker has a process namespace of its own: what it starts ends with it";
                (true, format!("{apart}; {cgroups}"))
            }
            Err(_) if in_cgroup => (true, cgroups),
            Err(why) => (
                false,
                format!(
                    "{cgroups}, and no process namespace ({why}): a worker that its guest has taken over can \
                     leave processes behind that outlive its kill"
                ),
            ),
        }
    }

    /// The confinement of workers.
    #[must_use]
    pub fn jail(&self) -> &Jail {
        &self.jail
    }

    /// The threads that close the sockets of VMs and of their workers.
    #[must_use]
    pub fn closers(&self) -> &Closers {
        &self.closers
    }

    /// The records of running workers.
    #[must_use]
    pub fn records(&self) -> &WorkerRecords {
        &self.records
    }

    /// Starts the worker of an admitted session, when it is the turn of the VM. The worker sees
    /// only the session's GPUs, in their order. `None`: the worker was no longer `wanted` at its
    /// turn, and nothing was started.
    ///
    /// # Errors
    /// A sentence for the administrator.
    pub async fn launch(
        self: &Arc<Self>,
        vm: VmIdentity,
        admitted: Admitted,
        wanted: impl FnOnce() -> bool + Send + 'static,
    ) -> Result<Option<Launched>, String> {
        let launcher = self.clone();
        let start = move || launcher.start(vm, &admitted);
        let started = self
            .spawner
            .run(vm.vm_id, move || wanted().then(start).transpose());
        started
            .await
            .unwrap_or_else(|_| Err("the start of the worker broke off".to_owned()))
    }

    /// The confinement of a program that runs like a worker of this VM and user. `checks_gpu`:
    /// whether the program checks a GPU. Such a program must answer in time whatever workers do.
    /// Therefore the program runs before workers, and has no limit of processes and threads. The
    /// kernel counts these by user, so no program has a limit where all VMs share a user.
    ///
    /// # Errors
    /// A sentence about the part that could not be prepared.
    pub fn confinement(
        &self,
        (vm, owner): (VmIdentity, Option<Owner>),
        soft: bool,
        pinned_bytes: Option<u64>,
        checks_gpu: bool,
    ) -> Result<Confinement, String> {
        let config = self.config();
        self.jail.around(Inmate {
            vm,
            owner,
            memory_most: memory_most(&config, soft, pinned_bytes),
            max_files: config.worker.max_files,
            // The kernel counts the tasks of the VM's user, hence of all its workers together.
            max_tasks: (!checks_gpu && config.worker.uid_per_vm).then_some(config.worker.max_tasks),
            raised: checks_gpu,
            soft_state: soft.then(|| config.soft_state_dir()).as_deref(),
        })
    }

    fn start(&self, identity: VmIdentity, admitted: &Admitted) -> Result<Launched, String> {
        let config = self.config();
        let gpus = &admitted.gpus;
        let soft = gpus.iter().all(|gpu| gpu.source == GpuSource::Soft);
        if !soft && gpus.iter().any(|gpu| gpu.source == GpuSource::Soft) {
            return Err("one program cannot use software devices and GPUs together".into());
        }
        let (vm, session) = (identity.vm_id, admitted.session);
        let owner = self.owners.of(vm)?;
        let images = config.images_dir();
        let image_dir = cache_of(&images, identity);
        if let Err(e) = make_cache(&image_dir, owner.as_ref()) {
            // For example on a full disk: modules are then loaded from memory.
            tracing::warn!("cannot make {}: {e}", image_dir.display());
        }
        let (binary, driver) = (worker_binary(&config)?, driver_library(&config, soft)?);
        if let Some(owner) = &owner {
            let soft_state = soft.then(|| config.soft_state_dir());
            let library = driver.as_deref().map(Path::new);
            let ways = [library, soft_state.as_deref(), Some(&*image_dir)];
            reach_all(ways.into_iter().flatten(), owner)?;
        }
        let confinement =
            self.confinement((identity, owner), soft, admitted.pinned_bytes, false)?;
        let template = WorkerTemplate {
            binary,
            environment: environment(&config, soft),
        };
        let order = WorkerOrder {
            session,
            vm,
            gpu_uuids: gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            confinement,
            closer: self.closers.of(Some(vm)),
        };
        let places = (&self.records, &self.cgroups, &self.jail);
        let (worker, log) = spawn::spawn(&template, order, places)?;
        let in_cgroup = move_in(&worker);
        let start = Start {
            session,
            vm,
            driver,
            image_dir: image_dir.to_string_lossy().into_owned(),
            memory_quota: admitted.memory_quota,
            depth_calls: admitted.depth_calls,
            depth_bytes: admitted.depth_bytes,
            expect_soft: soft,
        };
        Ok(Launched {
            worker,
            start,
            log,
            in_cgroup,
        })
    }
}

/// Most private memory of a worker in bytes: its own, the pinned memory of its VM (the limit of the
/// VM, or that of all VMs if lower), and the memory of software devices.
fn memory_most(config: &Config, soft: bool, pinned_bytes: Option<u64>) -> u64 {
    let driver = &config.driver;
    let devices = match soft {
        true => driver
            .soft_memory_bytes
            .saturating_mul(driver.soft_devices.into()),
        false => 0,
    };
    let pinned = pinned_bytes.unwrap_or(u64::MAX).min(pinned_most());
    let own = config.worker.memory_bytes;
    own.saturating_add(pinned).saturating_add(devices)
}

/// Moves a worker into its cgroup on a thread of its own, while the worker starts.
fn move_in(worker: &Worker) -> oneshot::Receiver<Result<(), String>> {
    let (done, in_cgroup) = oneshot::channel();
    let Some(cgroup) = worker.cgroup.clone() else {
        let _ = done.send(Ok(()));
        return in_cgroup;
    };
    let pid = worker.process.pid();
    let spawned = std::thread::Builder::new()
        .name("vgpud-cgroup".into())
        .spawn(move || {
            priority::reset();
            let _ = done.send(cgroup.admit(pid));
        });
    if let Err(e) = spawned {
        tracing::error!("cannot start a thread: {e}");
    }
    in_cgroup
}

fn reach_all<'a>(paths: impl Iterator<Item = &'a Path>, owner: &Owner) -> Result<(), String> {
    paths
        .into_iter()
        .try_for_each(|path| reachable(path, owner, Use::Read))
}

/// Creates the files that processes on one soft device share. Workers with users of their own may
/// use the files but not create others. vgpud creates the files empty, and soft-gpu treats empty
/// files as new.
///
/// # Errors
/// If the files cannot be created.
pub fn prepare_soft_state(config: &Config, owners: &Owners) -> std::io::Result<()> {
    use std::os::unix::fs::{PermissionsExt, chown};
    let mode = std::fs::Permissions::from_mode;
    let dir = config.soft_state_dir();
    std::fs::create_dir_all(&dir)?;
    let Some(group) = owners.common_group() else {
        return std::fs::set_permissions(&dir, mode(0o700));
    };
    // The directory is closed first, so that only vgpud changes its files meanwhile.
    chown(&dir, Some(0), Some(group))?;
    std::fs::set_permissions(&dir, mode(0o700))?;
    for device in 0..config.driver.soft_devices {
        for kind in ["lock", "state"] {
            let path = dir.join(format!("device-{device}.{kind}"));
            if std::fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_file()) {
                std::fs::remove_file(&path)?;
            }
            let mut options = std::fs::OpenOptions::new();
            let file = options.create(true).append(true).open(&path)?;
            file.set_permissions(mode(0o660))?;
            chown(&path, Some(0), Some(group))?;
        }
    }
    std::fs::set_permissions(&dir, mode(0o750))
}

/// The environment of a process that loads a driver. No variable of vgpud is inherited.
#[must_use]
pub fn environment(config: &Config, soft: bool) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), "/usr/bin:/bin".into()),
        // A tenant could poison a cache on disk that tenants share.
        ("CUDA_CACHE_DISABLE".into(), "1".into()),
        ("RUST_LOG".into(), config.log.level.clone().into()),
    ];
    if soft {
        let driver = &config.driver;
        env.push((
            "SOFT_GPU_DEVICES".into(),
            driver.soft_devices.to_string().into(),
        ));
        env.push((
            "SOFT_GPU_MEMORY".into(),
            driver.soft_memory_bytes.to_string().into(),
        ));
        env.push(("SOFT_GPU_STATE".into(), config.soft_state_dir().into()));
        env.extend(driver.soft_env.iter().map(|(k, v)| (k.into(), v.into())));
    }
    env
}

/// The driver library that a worker or probe loads; `None`: the library that the dynamic linker
/// finds.
///
/// # Errors
/// If soft-gpu is requested and not found.
pub fn driver_library(config: &Config, soft: bool) -> Result<Option<String>, String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    if !soft {
        return Ok(config.driver.library.as_deref().map(text));
    }
    if let Some(library) = &config.driver.soft_library {
        return Ok(Some(text(library)));
    }
    let candidates = folder_of_vgpud().map_or(Vec::new(), |folder| soft_libraries(&folder));
    if let Some(found) = candidates.iter().find(|path| path.exists()) {
        return Ok(Some(text(found)));
    }
    let places: Vec<String> = candidates.iter().map(|path| text(path)).collect();
    Err(format!(
        "soft-gpu's libcuda.so.1 is not at {}; install the software device (package \
         vgpu-soft-gpu) or set driver.soft_library",
        places.join(" or ")
    ))
}

/// Places of soft-gpu's library: as installed, beside vgpud or with any prefix, and as built.
fn soft_libraries(folder: &Path) -> Vec<PathBuf> {
    let installed = folder.parent().map(|prefix| prefix.join("lib/vgpu"));
    let folders = [Some(folder.to_path_buf()), installed];
    let in_folder = |folder: PathBuf| folder.join("soft-gpu/libcuda.so.1");
    let installed = folders.into_iter().flatten().map(in_folder);
    installed.chain([folder.join("libsoft_gpu.so")]).collect()
}

/// Path of the vgpu-worker program.
///
/// # Errors
/// If the program is not found.
pub fn worker_binary(config: &Config) -> Result<PathBuf, String> {
    program(
        config.worker.binary.as_deref(),
        "vgpu-worker",
        "worker.binary",
    )
}

/// Path of the vgpu-probe program.
///
/// # Errors
/// If the program is not found.
pub fn probe_binary(config: &Config) -> Result<PathBuf, String> {
    program(
        config.worker.probe_binary.as_deref(),
        "vgpu-probe",
        "worker.probe_binary",
    )
}

fn program(configured: Option<&Path>, name: &str, key: &str) -> Result<PathBuf, String> {
    let path = configured
        .map(Path::to_path_buf)
        .or_else(|| beside_vgpud(name));
    let path = path.ok_or_else(|| format!("cannot tell where {name} is; set {key}"))?;
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "there is no {name} at {}; install it there or set {key}",
        path.display()
    ))
}

fn beside_vgpud(name: &str) -> Option<PathBuf> {
    Some(folder_of_vgpud()?.join(name))
}

fn folder_of_vgpud() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_environment_is_only_what_is_configured() {
        let mut config = Config::default();
        config
            .driver
            .soft_env
            .insert("SOFT_GPU_CLOCK".into(), "k=1ms".into());
        let names = |soft| -> Vec<String> {
            environment(&config, soft)
                .into_iter()
                .map(|(name, _)| name.to_string_lossy().into_owned())
                .collect()
        };
        assert_eq!(names(false), ["PATH", "CUDA_CACHE_DISABLE", "RUST_LOG"]);
        assert!(names(true).contains(&"SOFT_GPU_CLOCK".to_owned()));
        assert!(names(true).contains(&"SOFT_GPU_STATE".to_owned()));
    }

    #[test]
    fn a_workers_memory_is_finite_also_where_its_vm_may_pin_what_it_likes() {
        let config = Config::default();
        let own = config.worker.memory_bytes;
        assert_eq!(memory_most(&config, false, Some(1 << 20)), own + (1 << 20));
        let free = memory_most(&config, true, None);
        let devices = config.driver.soft_memory_bytes * u64::from(config.driver.soft_devices);
        assert_eq!(free, own + pinned_most() + devices);
        assert!(free < u64::MAX / 2, "{free}");
        assert_eq!(memory_most(&config, true, Some(u64::MAX)), free);
    }

    #[test]
    fn the_soft_library_is_found_below_every_prefix() {
        let places = soft_libraries(Path::new("/usr/local/sbin"));
        let installed = Path::new("/usr/local/lib/vgpu/soft-gpu/libcuda.so.1");
        assert!(places.contains(&installed.to_path_buf()), "{places:?}");
    }

    #[test]
    fn the_soft_library_of_a_build_is_found_beside_vgpud() {
        let places = soft_libraries(Path::new("/src/target/debug"));
        let built = Path::new("/src/target/debug/libsoft_gpu.so");
        assert!(places.contains(&built.to_path_buf()), "{places:?}");
    }

    #[test]
    fn a_missing_program_is_named_with_its_key() {
        let mut config = Config::default();
        config.worker.binary = Some("/nowhere/vgpu-worker".into());
        let error = worker_binary(&config).unwrap_err();
        assert!(
            error.contains("/nowhere/vgpu-worker") && error.contains("worker.binary"),
            "{error}"
        );
    }
}
