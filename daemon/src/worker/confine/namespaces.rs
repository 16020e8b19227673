//! Namespaces of workers: a network and an IPC namespace for each VM, and a process namespace for
//! each worker.
//!
//! The worker is the first process of its process namespace. When it ends, the kernel ends all
//! others, including those that fork at that moment. Neither vgpud nor a cgroup is needed for that.
//!
//! A worker on a GPU also gets a `/proc` of that namespace, in a mount namespace of its own.
//! NVIDIA's driver (570 and later) names its threads through `/proc/self/task/TID/comm`, where the
//! host's `/proc` has other thread numbers, and `cuInit` fails if that fails.
//!
//! Creating a network namespace takes 0.4 ms, and 6 ms on a loaded machine: therefore the workers
//! of a VM share one. Creating a process namespace takes 0.03 ms. The time for a mount namespace
//! grows with the number of the host's mounts.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::io::Errno;

use crate::model::VmIdentity;

/// Most namespaces of VMs without a worker that are kept for the next worker.
const IDLE_MOST: usize = 64;

/// Creates and keeps the namespaces of workers.
#[derive(Debug)]
pub(super) struct Namespaces {
    /// vgpud's own process namespace, or why workers have no process namespace.
    own: Result<File, String>,
    /// Whether processes can have a `/proc` of their own, or why not.
    own_proc: Result<(), String>,
    /// Whether VMs have network and IPC namespaces, or why not.
    of_vms: Result<(), String>,
    vms: Mutex<HashMap<VmIdentity, Arc<Spaces>>>,
}

/// The namespaces of one VM.
#[derive(Debug)]
pub struct Spaces {
    network: File,
    ipc: File,
}

impl Namespaces {
    /// Checks whether this host lets vgpud create namespaces.
    pub(super) fn find() -> Namespaces {
        let own = on_a_thread(|| Ok(unshare(CloneFlags::CLONE_NEWPID)?))
            .and_then(|()| File::open("/proc/self/ns/pid"))
            .map_err(|e| format!("vgpud cannot make process namespaces: {e}"));
        let own_proc = on_a_thread(|| Ok(own_proc()?)).map_err(|e| {
            format!("vgpud cannot give workers on GPUs a /proc and a /dev/shm of their own: {e}")
        });
        let of_vms = on_a_thread(Spaces::make)
            .map(drop)
            .map_err(|e| format!("vgpud cannot make network and IPC namespaces: {e}"));
        Namespaces {
            own,
            own_proc,
            of_vms,
            vms: Mutex::default(),
        }
    }

    pub(super) fn none(why: String) -> Namespaces {
        Namespaces {
            own: Err(why.clone()),
            own_proc: Err(why.clone()),
            of_vms: Err(why),
            vms: Mutex::default(),
        }
    }

    /// Whether workers have process namespaces: those on software devices (`soft`), or those on
    /// GPUs. A worker on a GPU needs a `/proc` of that namespace too, because the driver does not
    /// start in a process namespace with the host's `/proc`.
    ///
    /// # Errors
    /// The reason, if they have none.
    pub(super) fn usable(&self, soft: bool) -> Result<(), String> {
        self.own.as_ref().map_err(Clone::clone)?;
        match soft {
            true => Ok(()),
            false => self.own_proc.clone(),
        }
    }

    /// Whether VMs have network and IPC namespaces.
    ///
    /// # Errors
    /// The reason, if they have none.
    pub(super) fn of_vms(&self) -> Result<(), String> {
        self.of_vms.clone()
    }

    /// The namespaces of a VM, created if necessary. `None`: workers have no namespaces here.
    ///
    /// # Errors
    /// A sentence, if the namespaces cannot be created.
    pub(super) fn of(&self, vm: VmIdentity) -> Result<Option<Arc<Spaces>>, String> {
        if self.of_vms.is_err() {
            return Ok(None);
        }
        let mut vms = self.vms();
        if let Some(spaces) = vms.get(&vm) {
            return Ok(Some(spaces.clone()));
        }
        if vms.len() >= IDLE_MOST {
            vms.retain(|_, spaces| Arc::strong_count(spaces) > 1);
        }
        let made = on_a_thread(Spaces::make)
            .map_err(|e| format!("cannot make namespaces for VM {}: {e}", vm.vm_id))?;
        let made = Arc::new(made);
        vms.insert(vm, made.clone());
        Ok(Some(made))
    }

    /// Drops the namespaces of all VMs except these VMs. Keeps the namespaces of probes. A VM that
    /// is registered again shares nothing with the earlier registration.
    pub(super) fn keep(&self, known: &HashSet<VmIdentity>) {
        self.vms()
            .retain(|vm, _| *vm == VmIdentity::PROBE || known.contains(vm));
    }

    fn vms(&self) -> MutexGuard<'_, HashMap<VmIdentity, Arc<Spaces>>> {
        self.vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a command as the first process of a new process namespace.
    ///
    /// # Errors
    /// As the start of any process.
    pub(super) fn spawn_apart(&self, command: &mut Command) -> io::Result<Child> {
        let Ok(own) = &self.own else {
            return command.spawn();
        };
        unshare(CloneFlags::CLONE_NEWPID)?;
        let started = command.spawn();
        // Returns this thread to its own namespace. In the new namespace, this thread could start
        // neither threads nor another process.
        let back = setns(own, CloneFlags::CLONE_NEWPID);
        let mut child = started?;
        if let Err(e) = back {
            // Ends the started process: the caller gets an error, and no part of vgpud would know
            // the process.
            let _ = child.kill();
            let _ = child.wait();
            return Err(e.into());
        }
        Ok(child)
    }
}

impl Spaces {
    /// Moves the calling thread into new namespaces.
    fn make() -> io::Result<Spaces> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)?;
        Ok(Spaces {
            network: File::open("/proc/thread-self/ns/net")?,
            ipc: File::open("/proc/thread-self/ns/ipc")?,
        })
    }

    /// Moves the calling thread into the namespaces. Makes only system calls.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        setns(&self.network, CloneFlags::CLONE_NEWNET).map_err(number)?;
        setns(&self.ipc, CloneFlags::CLONE_NEWIPC).map_err(number)
    }
}

/// Gives the calling thread the `/proc` of its process namespace and an empty `/dev/shm`, in a new
/// mount namespace without sockets of host services. Makes only system calls.
pub(super) fn own_proc() -> Result<(), Errno> {
    const NOTHING: Option<&CStr> = None;
    unshare(CloneFlags::CLONE_NEWNS).map_err(number)?;
    // The host must not get the mount. Mounts that the host removes end here too: otherwise their
    // file systems would stay in use until the process ends.
    let receiving = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(NOTHING, c"/", NOTHING, receiving, NOTHING).map_err(number)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some(c"proc"), c"/proc", Some(c"proc"), flags, NOTHING).map_err(number)?;
    // Files of the process end with it, and the next VM with the same user finds none of them.
    cover(c"/dev/shm", flags, SHARED_MEMORY)?;
    for dir in FOREIGN {
        // Where this fails, doctor tells (`own-services`), and workers still start.
        let _ = cover(dir, flags | MsFlags::MS_RDONLY, c"size=4k,nr_inodes=2");
    }
    Ok(())
}

/// Options of a worker's `/dev/shm`. NVIDIA's driver keeps little there: memory that processes of
/// one program share.
const SHARED_MEMORY: &CStr = c"size=256m,nr_inodes=1024,mode=1777";

/// Directories with sockets of host services that every user may write to (the journal, D-Bus), and
/// with files that let every user make the kernel watch the whole host.
const FOREIGN: [&CStr; 3] = [c"/run/systemd", c"/run/dbus", c"/proc/pressure"];

/// Mounts a file system in memory over a directory, if the directory exists.
fn cover(dir: &CStr, flags: MsFlags, options: &CStr) -> Result<(), Errno> {
    let kind = Some(c"tmpfs");
    match mount(kind, dir, kind, flags, Some(options)) {
        Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
        Err(e) => Err(number(e)),
    }
}

fn number(e: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(e as i32)
}

/// Runs `make` on a thread of its own, because a thread in another namespace is not usable
/// afterwards.
fn on_a_thread<T: Send>(make: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("vgpud-spaces".into());
        let made = thread.spawn_scoped(scope, make)?.join();
        made.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    /// `None`, with a message, if this host does not allow to create namespaces.
    fn namespaces() -> Option<Namespaces> {
        let namespaces = Namespaces::find();
        match namespaces.usable(true).and_then(|()| namespaces.of_vms()) {
            Ok(()) => Some(namespaces),
            Err(why) => {
                eprintln!("SKIPPED, NOTHING WAS TESTED: {why}");
                None
            }
        }
    }

    #[test]
    fn the_namespaces_of_a_vm_go_with_its_registration() {
        let Some(namespaces) = namespaces() else {
            return;
        };
        let identity = |vm_id, generation| VmIdentity { vm_id, generation };
        let of = |vm_id, generation| {
            let vm = identity(vm_id, generation);
            namespaces.of(vm).unwrap().unwrap()
        };
        let (gone, stays) = (Arc::downgrade(&of(1, 7)), of(2, 8));
        assert!(Arc::ptr_eq(&gone.upgrade().unwrap(), &of(1, 7)));
        namespaces.keep(&[identity(1, 9), identity(2, 8)].into());
        assert!(gone.upgrade().is_none(), "nothing holds them");
        assert!(Arc::ptr_eq(&stays, &of(2, 8)));
    }

    #[test]
    fn a_child_of_a_thread_that_cannot_go_back_is_ended() {
        let Some(mut namespaces) = namespaces() else {
            return;
        };
        // A file that is not a process namespace, so that setns fails.
        namespaces.own = File::open("/proc/self/ns/net").map_err(|e| e.to_string());
        let (mut ended, end) = std::io::pipe().unwrap();
        let spawned = on_a_thread(|| {
            let mut command = Command::new("sleep");
            namespaces.spawn_apart(command.arg("60").stdout(Stdio::from(end)))
        });
        assert!(spawned.is_err());
        // The end of the process closes its end of the pipe.
        let begun = std::time::Instant::now();
        assert_eq!(ended.read(&mut [0]).unwrap(), 0);
        assert!(begun.elapsed().as_secs() < 50, "the process was not killed");
    }
}
