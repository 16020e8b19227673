//! Opens and closes the listeners as VMs are registered, changed and unregistered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::task::JoinHandle;
use vgpu_api::DoctorCheck;
use vsock::{VMADDR_CID_ANY, VsockListener};

use super::Shared;
use super::accept::{accept_unix, accept_vsock};
use super::caps::Caps;
use super::checks::{attached_descriptors, unix_listeners, vm_socket_access};
use super::failure::ListenFailure;
use super::rules::{Rules, SocketOwner, Wanted, ground, wanted};
use super::sockets::{self, Spot};
use super::vm_dirs::{self, Registered};
use crate::config::Config;
use crate::events::EventSink;
use crate::mediator::MediatorHandle;
use crate::model::{ListenerProblem, VmIdentity, VmRecord};
use crate::supervisor::Supervisor;
use crate::system::guarded::{Listener, register};
use crate::system::held::Id;
use crate::system::patience::{NoAnswer, Patience};
use crate::system::rights;

/// All listeners for guests.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    cids: Arc<RwLock<HashMap<u32, VmIdentity>>>,
    /// vgpud does not hold this lock during calls of the file system, which may hang.
    listeners: Mutex<Listeners>,
    patience: Patience,
}

#[derive(Debug, Default)]
struct Listeners {
    vsock: Option<Task>,
    /// Why vgpud does not listen on AF_VSOCK, and what helps.
    vsock_problem: Option<(String, &'static str)>,
    unix: BTreeMap<PathBuf, UnixEntry>,
    shut: Vec<ListenerProblem>,
    /// By path of a socket: the registration for which vgpud has found the socket's directory.
    /// vgpud does not create this directory again.
    found: HashMap<PathBuf, VmIdentity>,
    /// The registration to which each VM's own directory belongs; `None` until vgpud has read the
    /// directories.
    homes: Option<Registered>,
    open: bool,
}

#[derive(Debug)]
struct UnixEntry {
    owner: SocketOwner,
    id: Id,
    _task: Task,
}

/// The files of the open listeners, as found in the file system.
#[derive(Debug, Default)]
struct SocketStates {
    there: Vec<(PathBuf, Option<u32>, Metadata)>,
    /// Sockets that are no longer at their paths.
    lost: Vec<(PathBuf, u32)>,
    /// Sockets whose file systems do not answer.
    unseen: Vec<ListenerProblem>,
}

/// A socket on which vgpud does not listen yet, and its place in the file system.
type Missing = (PathBuf, Wanted, Spot);

/// A task that ends when dropped.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Gateway {
    /// A gateway without listeners. [`Gateway::open`] must be called before the first sync.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        mediator: MediatorHandle,
        supervisor: Supervisor,
        events: EventSink,
    ) -> Gateway {
        let shared = Arc::new(Shared {
            mediator,
            supervisor,
            events,
            nonces: Arc::default(),
            caps: Caps::new(&config.limits),
            config: RwLock::new(config),
        });
        Gateway {
            shared,
            cids: Arc::default(),
            listeners: Mutex::default(),
            patience: Patience::default(),
        }
    }

    /// Applies a reloaded configuration.
    pub fn reconfigure(&self, config: Arc<Config>) {
        self.shared.set_config(config);
    }

    /// Allows [`Gateway::sync`] to open listeners from now on.
    pub fn open(&self) {
        self.lock().open = true;
    }

    /// Opens and closes listeners to match the given VMs. Listeners that failed earlier are tried
    /// again. If the socket file of a listener has disappeared, the listener is opened again. Only
    /// one call may run at a time, within the runtime.
    pub fn sync<'a>(&self, vms: impl IntoIterator<Item = &'a VmRecord>) {
        let config = self.shared.config();
        let mut vms: Vec<&VmRecord> = vms.into_iter().collect();
        // Of two VMs with the same socket, the earlier registration gets the socket, also after a
        // restart.
        vms.sort_by_key(|vm| vm.generation);
        self.take_identities(&vms);
        let rules = Arc::new(Rules::of(&config, &self.patience));
        let (wanted, mut shut) = wanted(&config, &vms, &rules);
        let looked = self.look();
        for (path, vm) in &looked.lost {
            tracing::warn!(
                vm,
                "the socket of the VM is not at {} any more",
                path.display()
            );
        }
        if !self.close_unwanted(&config, &wanted, &looked.lost) {
            return;
        }
        let registered = vms.iter().map(|vm| (vm.vm_id, vm.generation)).collect();
        let cleared = self.clear_vm_dirs(&rules, &registered);
        let (missing, former) = self.missing(&wanted, &rules, &registered, cleared.as_ref());
        shut.extend(former);
        shut.extend(self.open_missing(missing, &config, &rules));
        let mut listeners = self.lock();
        let unseen = looked.unseen.into_iter();
        shut.extend(unseen.filter(|problem| listeners.unix.contains_key(&problem.path)));
        for problem in shut
            .iter()
            .filter(|problem| !listeners.shut.contains(problem))
        {
            tracing::warn!(vm = problem.vm_id, "{}", problem.sentence());
        }
        listeners.shut = shut;
        listeners.found.retain(|path, vm| {
            wanted
                .get(path)
                .is_some_and(|wanted| wanted.owner.identity == *vm)
        });
    }

    /// Updates the table of CIDs and the parts that keep data per registered VM.
    fn take_identities(&self, vms: &[&VmRecord]) {
        let cids = vms.iter().filter_map(|vm| Some((vm.cid?, vm.identity())));
        *self.cids.write().unwrap_or_else(PoisonError::into_inner) = cids.collect();
        let known: HashSet<u32> = vms.iter().map(|vm| vm.vm_id).collect();
        self.shared.caps.keep(&known);
        self.shared.closers().keep(&known);
        let registered: HashSet<_> = vms.iter().map(|vm| vm.identity()).collect();
        self.shared.supervisor.launcher().jail().keep(&registered);
    }

    /// Examines the files of the open listeners. The lock of the listeners is not held meanwhile.
    fn look(&self) -> SocketStates {
        let opened: Vec<_> = {
            let listeners = self.lock();
            let opened = listeners.unix.iter();
            let opened = opened.map(|(path, entry)| (path.clone(), entry.id, entry.owner.clone()));
            opened.collect()
        };
        let vm_dirs = self.shared.config().vm_socket_dir();
        let work = |(path, id, _): &(PathBuf, Id, SocketOwner)| {
            let (asked, id) = (path.clone(), *id);
            let look = move || sockets::look(&asked, id);
            (ground(path, vm_dirs.as_deref()), look)
        };
        let answers = self.patience.ask_all(opened.iter().map(work).collect());
        let mut looked = SocketStates::default();
        for ((path, _, owner), answer) in opened.into_iter().zip(answers) {
            let vm_id = owner.identity.vm_id;
            match answer {
                Ok(Ok(Some(meta))) => looked.there.push((path, owner.uid, meta)),
                Ok(Ok(None)) => looked.lost.push((path, vm_id)),
                // A socket that cannot be examined is taken to exist.
                Ok(Err(_)) => {}
                Err(why) => looked
                    .unseen
                    .push(ListenFailure::from(why).unseen(&path, vm_id)),
            }
        }
        looked
    }

    /// Closes the listeners that no VM should have. False: the gateway is closed.
    fn close_unwanted(
        &self,
        config: &Config,
        wanted: &BTreeMap<PathBuf, Wanted>,
        lost: &[(PathBuf, u32)],
    ) -> bool {
        let stays = |path: &PathBuf, entry: &UnixEntry| {
            wanted.get(path).map(|wanted| &wanted.owner) == Some(&entry.owner)
        };
        let gone = {
            let mut listeners = self.lock();
            if !listeners.open {
                return false;
            }
            if config.listen.vsock && listeners.vsock_due() {
                self.open_vsock(&mut listeners, config);
            }
            for (path, _) in lost {
                // The file at this path belongs to somebody else, so it is not removed.
                listeners.unix.remove(path);
            }
            let gone = listeners
                .unix
                .iter()
                .filter(|(path, entry)| !stays(path, entry));
            gone.map(|(path, entry)| (path.clone(), entry.id)).collect()
        };
        self.close_paths(gone, config);
        true
    }

    /// Removes the directories of ended registrations, because an old tenant may still have such a
    /// directory mounted. Returns to which registration each directory belongs now.
    fn clear_vm_dirs(
        &self,
        rules: &Rules,
        registered: &Registered,
    ) -> Result<Registered, NoAnswer> {
        let before = self.lock().homes.clone();
        let Some(vm_dirs) = rules.vm_dirs.clone() else {
            return Ok(Registered::new());
        };
        if before.as_ref() == Some(registered) {
            return Ok(registered.clone());
        }
        let (ground, now) = (vm_dirs.clone(), registered.clone());
        let clear = move || vm_dirs::clear(&vm_dirs, before.as_ref(), &now);
        let homes = self.patience.ask(&ground, clear)?;
        self.lock().homes = Some(homes.clone());
        Ok(homes)
    }

    /// Returns the listeners to open, and the problems of those that cannot be opened because their
    /// directory still belongs to an earlier VM.
    fn missing(
        &self,
        wanted: &BTreeMap<PathBuf, Wanted>,
        rules: &Rules,
        registered: &Registered,
        homes: Result<&Registered, &NoAnswer>,
    ) -> (Vec<(PathBuf, Wanted)>, Vec<ListenerProblem>) {
        let listeners = self.lock();
        let (mut missing, mut shut) = (Vec::new(), Vec::new());
        for (path, wanted) in wanted {
            if listeners.unix.contains_key(path) {
                continue;
            }
            let vm_id = wanted.owner.identity.vm_id;
            let why = match homes {
                _ if vm_dirs::own_dir(path, rules.vm_dirs.as_deref()).is_none() => None,
                Ok(homes) if homes.get(&vm_id) == registered.get(&vm_id) => None,
                Ok(_) => Some(ListenFailure::of_former()),
                Err(why) => Some(why.clone().into()),
            };
            match why {
                None => missing.push((path.clone(), wanted.clone())),
                Some(why) => shut.push(why.at(path, vm_id)),
            }
        }
        (missing, shut)
    }

    /// Opens listeners. Returns the problems of the listeners that could not be opened.
    fn open_missing(
        &self,
        missing: Vec<(PathBuf, Wanted)>,
        config: &Config,
        rules: &Arc<Rules>,
    ) -> Vec<ListenerProblem> {
        if missing.is_empty() {
            return Vec::new();
        }
        // This queries the host's name services.
        let access = match sockets::Access::of(&config.listen) {
            Ok(access) => access,
            Err(why) => {
                let problem = |(path, wanted): (PathBuf, Wanted)| {
                    why.clone().at(&path, wanted.owner.identity.vm_id)
                };
                return missing.into_iter().map(problem).collect();
            }
        };
        let mut shut = Vec::new();
        let spots = self.find(missing, rules, &mut shut);
        let spots = self.claim(spots, &mut shut);
        let tidied = sockets::Tidied::default();
        let mut owners = Vec::new();
        let mut works = Vec::new();
        for (path, wanted, spot) in spots {
            let (uid, tidied) = (wanted.owner.uid, tidied.clone());
            let open = move || sockets::open(spot, uid, access, &tidied);
            works.push((rules.ground(&path), open));
            owners.push((path, wanted.owner));
        }
        let opened = self.patience.ask_all(works);
        for ((path, owner), opened) in owners.into_iter().zip(opened) {
            let vm_id = owner.identity.vm_id;
            let opened = opened.map_err(ListenFailure::from).flatten();
            let listens = opened.and_then(|opened| self.listen(&path, owner, opened));
            shut.extend(listens.err().map(|why| why.at(&path, vm_id)));
        }
        shut
    }

    /// Finds the places of sockets. A missing directory is created if vgpud has not yet found it
    /// for the registration. Later, only vgpud's own directories are created again: below a mount
    /// point whose file system is not mounted, a new directory would hide the missing mount.
    fn find(
        &self,
        missing: Vec<(PathBuf, Wanted)>,
        rules: &Arc<Rules>,
        shut: &mut Vec<ListenerProblem>,
    ) -> Vec<Missing> {
        let found = self.lock().found.clone();
        let work = |(path, wanted): &(PathBuf, Wanted)| {
            let make = found.get(path) != Some(&wanted.owner.identity)
                || vm_dirs::own_dir(path, rules.vm_dirs.as_deref()).is_some();
            let (asked, rules_of, registered) = (path.clone(), rules.clone(), wanted.registered);
            let find = move || {
                let allowed = |real: &Path| rules_of.check(real, registered);
                Spot::find(&asked, rules_of.vm_dirs.as_deref(), make, allowed)
            };
            (rules.ground(path), find)
        };
        let answers = self.patience.ask_all(missing.iter().map(work).collect());
        let mut spots = Vec::new();
        let mut listeners = self.lock();
        for ((path, wanted), answer) in missing.into_iter().zip(answers) {
            let identity = wanted.owner.identity;
            match answer.map_err(ListenFailure::from).flatten() {
                Ok(spot) => {
                    listeners.found.insert(path.clone(), identity);
                    spots.push((path, wanted, spot));
                }
                Err(why) => shut.push(why.at(&path, identity.vm_id)),
            }
        }
        spots
    }

    /// Gives each place to one VM: to the VM that listens there already, else to the first in this
    /// order. Sockets that vgpud chose come before registered paths, paths without links before
    /// paths with links, and earlier registrations before later ones.
    fn claim(&self, mut spots: Vec<Missing>, shut: &mut Vec<ListenerProblem>) -> Vec<Missing> {
        spots.sort_by_key(|(_, wanted, spot)| {
            let linked = wanted.registered && spot.linked;
            (wanted.registered, linked, wanted.owner.identity.generation)
        });
        let open: HashMap<Id, u32> = {
            let listeners = self.lock();
            let open = listeners.unix.values();
            open.map(|entry| (entry.id, entry.owner.identity.vm_id))
                .collect()
        };
        let mut claimed = HashMap::new();
        spots.retain(|(path, wanted, spot)| {
            let vm_id = wanted.owner.identity.vm_id;
            let taken = spot.found.and_then(|id| open.get(&id));
            let other = taken.or_else(|| claimed.get(&spot.place)).copied();
            match other {
                Some(other) => shut.push(ListenFailure::of_other_vm(other).at(path, vm_id)),
                None => {
                    claimed.insert(spot.place.clone(), vm_id);
                }
            }
            other.is_none()
        });
        spots
    }

    /// Starts to accept on an opened socket.
    fn listen(
        &self,
        path: &Path,
        owner: SocketOwner,
        opened: sockets::Opened,
    ) -> Result<(), ListenFailure> {
        let Some((listener, id)) = opened.keep() else {
            return Ok(());
        };
        let closer = self.shared.closers().of(Some(owner.identity.vm_id));
        let listener = Listener::new(listener, closer)?;
        let task = accept_unix(listener, self.shared.clone(), path.into(), owner.clone());
        let mut listeners = self.lock();
        // If the gateway was closed meanwhile, the socket file stays behind. The next start
        // replaces the file.
        if listeners.open {
            let entry = UnixEntry {
                owner,
                id,
                _task: Task(tokio::spawn(task)),
            };
            listeners.unix.insert(path.to_owned(), entry);
        }
        Ok(())
    }

    /// Closes listeners and removes their sockets. The files are removed first: while a listener is
    /// open, no other file can have the inode number of its socket.
    fn close_paths(&self, gone: Vec<(PathBuf, Id)>, config: &Config) {
        let vm_dirs = config.vm_socket_dir();
        let work = |(path, id): &(PathBuf, Id)| {
            let (socket, id) = (path.clone(), *id);
            let close = move || sockets::close(&socket, id);
            (ground(path, vm_dirs.as_deref()), close)
        };
        // If the file system does not answer, the socket file stays behind.
        let _ = self.patience.ask_all(gone.iter().map(work).collect());
        let mut listeners = self.lock();
        for (path, _) in gone {
            listeners.unix.remove(&path);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether vgpud listens for every VM and every socket is at its path. Queries the file system.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let (closed, whole) = {
            let listeners = self.lock();
            let vsock = listeners.vsock_problem.is_some() && listeners.vsock_due();
            (!listeners.open, !vsock && listeners.shut.is_empty())
        };
        let looked = self.look();
        closed || whole && looked.lost.is_empty() && looked.unseen.is_empty()
    }

    /// The problems of VMs' sockets on which vgpud should listen and does not, or whose files vgpud
    /// cannot examine, and of VMs with a CID while vgpud does not listen on AF_VSOCK.
    #[must_use]
    pub fn shut(&self) -> Vec<ListenerProblem> {
        let wanted = self.shared.config().listen.vsock;
        let (mut shut, vsock) = {
            let listeners = self.lock();
            (listeners.shut.clone(), listeners.vsock_failure(wanted))
        };
        if let Some(why) = vsock {
            let cids = self.cids.read().unwrap_or_else(PoisonError::into_inner);
            let cids: BTreeMap<u32, VmIdentity> =
                cids.iter().map(|(cid, vm)| (*cid, *vm)).collect();
            shut.extend(cids.into_iter().map(|(cid, vm)| {
                let place = format!("AF_VSOCK for CID {cid}");
                why.clone().at(Path::new(&place), vm.vm_id)
            }));
        }
        shut
    }

    /// Stops accepting. Open connections stay open.
    pub fn close(&self) {
        let open: Vec<_> = {
            let mut listeners = self.lock();
            listeners.open = false;
            listeners.vsock = None;
            listeners.shut.clear();
            listeners.found.clear();
            let open = listeners.unix.iter();
            open.map(|(path, entry)| (path.clone(), entry.id)).collect()
        };
        self.close_paths(open, &self.shared.config());
    }

    /// Checks the listeners. Queries the host's name services and the file system, which may take
    /// long, so the lock of the listeners is not held meanwhile.
    #[must_use]
    pub fn doctor(&self) -> Vec<DoctorCheck> {
        let (vsock, open, mut shut) = {
            let listeners = self.lock();
            (
                listeners.vsock(),
                listeners.unix.len(),
                listeners.shut.clone(),
            )
        };
        let looked = self.look();
        // The examination above replaces the earlier results about open listeners.
        shut.retain(|problem| !problem.listens);
        let some_shut = !shut.is_empty();
        shut.extend(looked.unseen);
        let mut checks = vec![vsock];
        checks.extend(unix_listeners(open, &shut, &looked.lost));
        let config = self.shared.config();
        checks.push(vm_socket_access(&looked.there, some_shut, &config));
        let open = self.shared.caps.open();
        let open = format!("{open} connections are open");
        checks.push(DoctorCheck::ok("guest-connections", open));
        checks.push(attached_descriptors(
            rights::can_be_refused(),
            &self.shared.closers().full(),
        ));
        checks
    }

    fn open_vsock(&self, listeners: &mut Listeners, config: &Config) {
        let port = config.listen.vsock_port;
        let opened = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port).and_then(|listener| {
            listener.set_nonblocking(true)?;
            // The runtime watches a duplicate of the descriptor.
            let watched = register(listener.try_clone()?.into())?;
            Ok((listener, watched))
        });
        match opened {
            Ok(listener) => {
                let (shared, cids) = (self.shared.clone(), self.cids.clone());
                let task = accept_vsock(listener, shared, cids, config.listen.allow_local_cid);
                listeners.vsock = Some(Task(tokio::spawn(task)));
                listeners.vsock_problem = None;
                tracing::info!(port, "listening on AF_VSOCK");
            }
            Err(e) => {
                let message = format!("cannot listen on AF_VSOCK port {port}: {e}");
                let known = listeners.vsock_problem.as_ref();
                if known.is_none_or(|(known, _)| *known != message) {
                    tracing::warn!("{message}");
                }
                listeners.vsock_problem = Some((message, vsock_remedy(&e)));
            }
        }
    }
}

impl Listeners {
    /// Whether to try to listen on AF_VSOCK. After a failure vgpud waits until /dev/vsock exists:
    /// without the device, each attempt would make the kernel search for its module.
    fn vsock_due(&self) -> bool {
        let device = || Path::new("/dev/vsock").exists();
        self.vsock.is_none() && (self.vsock_problem.is_none() || device())
    }

    /// Why guests cannot connect over AF_VSOCK. `wanted`: as configured (`listen.vsock`).
    fn vsock_failure(&self, wanted: bool) -> Option<ListenFailure> {
        match &self.vsock_problem {
            _ if !self.open || self.vsock.is_some() => None,
            Some((problem, remedy)) => Some(ListenFailure {
                problem: problem.clone(),
                hint: (*remedy).into(),
            }),
            None => (!wanted).then(ListenFailure::vsock_is_off),
        }
    }

    /// Reports whether guests can connect over AF_VSOCK.
    fn vsock(&self) -> DoctorCheck {
        const NAME: &str = "vsock-listener";
        match (&self.vsock, &self.vsock_problem) {
            (Some(_), _) => DoctorCheck::ok(NAME, "vgpud listens on AF_VSOCK"),
            (None, Some((problem, remedy))) => {
                DoctorCheck::warning(NAME, format!("vgpud {problem}"), *remedy)
            }
            (None, None) if !self.open => {
                DoctorCheck::skipped(NAME, "vgpud has not opened its sockets yet")
            }
            (None, None) => DoctorCheck::skipped(
                NAME,
                "vgpud does not listen on AF_VSOCK, as configured (listen.vsock = false)",
            ),
        }
    }
}

/// The administrator's remedy for a failure to listen on AF_VSOCK.
fn vsock_remedy(problem: &io::Error) -> &'static str {
    match problem.kind() {
        io::ErrorKind::AddrInUse => {
            "Another program has this port, perhaps a second vgpud: stop the program, or set \
             listen.vsock_port (guests then name the port in VGPU_ADDRESS) and restart vgpud"
        }
        io::ErrorKind::PermissionDenied => {
            "Set listen.vsock_port to a port from 1024 on (smaller ports are privileged), and restart \
             vgpud"
        }
        _ => {
            "Load vhost_vsock (vgpud then listens by itself), and let vgpud's unit use AF_VSOCK \
             (RestrictAddressFamilies=); or set listen.vsock = false and restart vgpud"
        }
    }
}

#[cfg(test)]
mod tests;
