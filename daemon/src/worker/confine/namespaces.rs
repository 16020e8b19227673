//! Namespaces of workers: a network and an IPC namespace for each VM, a process namespace for each
//! worker.
//!
//! With the first process of a process namespace, which the worker is, the kernel ends all others
//! of it, also those that fork at that moment: it needs neither vgpud nor a cgroup for it.
//!
//! A network namespace takes 0.4 ms to make, and 6 ms on a loaded machine: therefore one per VM,
//! which its workers enter. A process namespace takes 0.03 ms.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::io::Errno;

use crate::model::VmIdentity;

/// Namespaces of VMs without a worker that are kept, for their next one.
const IDLE_MOST: usize = 64;

/// Where workers' namespaces come from.
#[derive(Debug)]
pub(super) struct Namespaces {
    /// vgpud's own process namespace, or why workers have none of their own.
    own: Result<File, String>,
    vms: Mutex<HashMap<VmIdentity, Arc<Spaces>>>,
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
    pub(super) fn of(&self, vm: VmIdentity) -> Result<Option<Arc<Spaces>>, String> {
        if self.own.is_err() {
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

    /// Lets go of all but those of these VMs: who is registered anew shares nothing with who was
    /// before.
    pub(super) fn keep(&self, known: &HashSet<VmIdentity>) {
        self.vms().retain(|vm, _| known.contains(vm));
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
        // Otherwise this thread could start neither threads nor another process.
        let back = setns(own, CloneFlags::CLONE_NEWPID);
        let mut child = started?;
        if let Err(e) = back {
            // Nobody would know of it.
            let _ = child.kill();
            let _ = child.wait();
            return Err(e.into());
        }
        Ok(child)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    /// `None`, said loudly, where this host lets nobody make them.
    fn namespaces() -> Option<Namespaces> {
        let namespaces = Namespaces::find();
        match namespaces.usable() {
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
        // No process namespace: it is refused.
        namespaces.own = File::open("/proc/self/ns/net").map_err(|e| e.to_string());
        let (mut ended, end) = std::io::pipe().unwrap();
        let spawned = on_a_thread(|| {
            let mut command = Command::new("sleep");
            namespaces.spawn_apart(command.arg("60").stdout(Stdio::from(end)))
        });
        assert!(spawned.is_err());
        // Its end of the pipe is closed with it.
        let begun = std::time::Instant::now();
        assert_eq!(ended.read(&mut [0]).unwrap(), 0);
        assert!(begun.elapsed().as_secs() < 50, "it ran to its own end");
    }
}
