//! Namespaces of workers: a network and an IPC namespace for each VM, a process namespace for each worker.
//!
//! With the first process of a process namespace, which the worker is, the kernel ends all others of it,
//! also those that fork at that moment: it needs neither vgpud nor a cgroup for it.
//!
//! A network namespace takes 0.4 ms to make, and 6 ms on a loaded machine: therefore one per VM, which its
//! workers enter. A process namespace takes 0.03 ms.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::io::Errno;

/// Namespaces of VMs without a worker that are kept, for their next one.
const IDLE_MOST: usize = 64;

/// Where workers' namespaces come from.
#[derive(Debug)]
pub(super) struct Namespaces {
    /// vgpud's own process namespace, or why workers have none of their own.
    own: Result<File, String>,
    vms: Mutex<HashMap<u32, Arc<Spaces>>>,
}

/// One VM's namespaces.
#[derive(Debug)]
pub struct Spaces {
    network: File,
    ipc: File,
}

impl Namespaces {
    /// Looks whether this host lets vgpud make them.
    pub(super) fn find() -> Namespaces {
        let tried = on_a_thread(|| {
            unshare(CloneFlags::CLONE_NEWPID)?;
            Spaces::make().map(drop)
        });
        let own = tried
            .and_then(|()| File::open("/proc/self/ns/pid"))
            .map_err(|e| format!("vgpud cannot make namespaces: {e}"));
        Namespaces {
            own,
            vms: Mutex::default(),
        }
    }

    pub(super) fn none(why: String) -> Namespaces {
        Namespaces {
            own: Err(why),
            vms: Mutex::default(),
        }
    }

    /// Whether workers have namespaces.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn usable(&self) -> Result<(), String> {
        self.own.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// The namespaces of a VM, made where it has none. `None`: workers have none here.
    ///
    /// # Errors
    /// A sentence: they cannot be made.
    pub(super) fn of(&self, vm: u32) -> Result<Option<Arc<Spaces>>, String> {
        if self.own.is_err() {
            return Ok(None);
        }
        let mut vms = self.vms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spaces) = vms.get(&vm) {
            return Ok(Some(spaces.clone()));
        }
        if vms.len() >= IDLE_MOST {
            vms.retain(|_, spaces| Arc::strong_count(spaces) > 1);
        }
        let made = on_a_thread(Spaces::make)
            .map_err(|e| format!("cannot make namespaces for VM {vm}: {e}"))?;
        let made = Arc::new(made);
        vms.insert(vm, made.clone());
        Ok(Some(made))
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
        // Otherwise this thread could start neither threads nor another process.
        setns(own, CloneFlags::CLONE_NEWPID)?;
        started
    }
}

impl Spaces {
    /// Moves the calling thread into new ones.
    fn make() -> io::Result<Spaces> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)?;
        Ok(Spaces {
            network: File::open("/proc/thread-self/ns/net")?,
            ipc: File::open("/proc/thread-self/ns/ipc")?,
        })
    }

    /// Moves the calling thread in. Makes system calls and nothing else.
    pub(super) fn enter(&self) -> Result<(), Errno> {
        let number = |e: nix::errno::Errno| Errno::from_raw_os_error(e as i32);
        setns(&self.network, CloneFlags::CLONE_NEWNET).map_err(number)?;
        setns(&self.ipc, CloneFlags::CLONE_NEWIPC).map_err(number)
    }
}

/// A thread that is in another namespace is of no use to anybody else.
fn on_a_thread<T: Send>(make: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("vgpud-spaces".into());
        let made = thread.spawn_scoped(scope, make)?.join();
        made.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}
