//! Listeners, and the one accept path behind all of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use vgpu_proto::api::{CheckStatus, DoctorCheck};
use vsock::{VMADDR_CID_ANY, VsockListener};

use super::caps::{Caps, Verdict};
use super::conn::{self, Conn};
use super::patience::Patience;
use super::shut::Shut;
use super::{Peer, Shared, session, sockets};
use crate::config::Config;
use crate::events::EventSink;
use crate::mediator::{MediatorHandle, VmIdentity};
use crate::model::{ShutDoor, VmRecord};
use crate::supervisor::launcher::Launcher;
use crate::system::resolved;

/// After a failed accept (out of descriptors), wait this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// CIDs below this are this host's own programs, over vsock loopback.
const FIRST_GUEST_CID: u32 = 3;

/// All guests' doors.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    cids: Arc<RwLock<HashMap<u32, VmIdentity>>>,
    /// Never locked while files are asked.
    doors: Mutex<Doors>,
    patience: Patience,
}

#[derive(Debug, Default)]
struct Doors {
    vsock: Option<Task>,
    vsock_problem: Option<String>,
    unix: BTreeMap<PathBuf, UnixDoor>,
    shut: Vec<ShutDoor>,
    /// Whose directories were made, or found: they are not made a second time.
    made: HashMap<PathBuf, VmIdentity>,
    open: bool,
    swept: bool,
}

/// Whose door a Unix socket is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    identity: VmIdentity,
    uid: Option<u32>,
}

/// A socket that a VM should have.
#[derive(Debug, Clone)]
struct Wanted {
    owner: Owner,
    /// An administrator chose the path.
    registered: bool,
}

#[derive(Debug)]
struct UnixDoor {
    owner: Owner,
    id: sockets::Id,
    _task: Task,
}

impl UnixDoor {
    fn taken(&self) -> (sockets::Id, u32) {
        (self.id, self.owner.identity.vm_id)
    }
}

/// A task that ends when dropped.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Gateway {
    /// Doors that are all still closed.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        mediator: MediatorHandle,
        launcher: Arc<Launcher>,
        events: EventSink,
    ) -> Gateway {
        let shared = Arc::new(Shared {
            mediator,
            launcher,
            events,
            nonces: Arc::default(),
            caps: Caps::new(&config.limits),
            config: RwLock::new(config),
        });
        Gateway {
            shared,
            cids: Arc::default(),
            doors: Mutex::default(),
            patience: Patience::default(),
        }
    }

    /// Takes a reloaded configuration over.
    pub fn reconfigure(&self, config: Arc<Config>) {
        self.shared.set_config(config);
    }

    /// From now on [`Gateway::sync`] opens doors.
    pub fn open(&self) {
        self.lock().open = true;
    }

    /// Opens and closes doors so that they are those of these VMs; tries those again that could not be opened, and
    /// opens those anew whose socket is gone. One call at a time, within the runtime.
    pub fn sync<'a>(&self, vms: impl IntoIterator<Item = &'a VmRecord>) {
        let config = self.shared.config();
        let mut vms: Vec<&VmRecord> = vms.into_iter().collect();
        // Whoever was registered first keeps what two claim, also after a restart.
        vms.sort_by_key(|vm| vm.generation);
        self.take_identities(&vms);
        let rules = Arc::new(Rules::of(&config));
        let (wanted, mut shut) = wanted(&config, &vms, &rules);
        let lost = self.lost();
        for (path, vm) in &lost {
            tracing::warn!(
                vm,
                "the socket of the VM is not at {} any more",
                path.display()
            );
        }
        let Some(mut missing) = self.close_unwanted(&config, &wanted, &lost) else {
            return;
        };
        // And a path without links comes before one that leads to the same place.
        missing.sort_by_cached_key(|(path, wanted)| {
            let (dir, asked) = (rules.ground(path), path.clone());
            let linked = move || resolved(&asked).is_ok_and(|real| real != asked);
            let linked = wanted.registered && self.patience.ask(&dir, linked).unwrap_or(false);
            (linked, wanted.owner.identity.generation)
        });
        // Asks the host's name services.
        let access = (!missing.is_empty()).then(|| sockets::Access::of(&config.listen));
        let taken = self.lock().unix.values().map(UnixDoor::taken).collect();
        let taken = Arc::new(Mutex::new(taken));
        for (path, wanted) in missing {
            let Some(access) = &access else { break };
            let vm_id = wanted.owner.identity.vm_id;
            let opened = access
                .clone()
                .and_then(|access| self.open_unix(&path, wanted, access, &rules, &taken));
            shut.extend(opened.err().map(|why| why.door(&path, vm_id)));
        }
        let mut doors = self.lock();
        for door in shut.iter().filter(|door| !doors.shut.contains(door)) {
            tracing::warn!(vm = door.vm_id, "{}", door.sentence());
        }
        doors.shut = shut;
        doors.made.retain(|path, vm| {
            wanted
                .get(path)
                .is_some_and(|wanted| wanted.owner.identity == *vm)
        });
    }

    /// By which CIDs VMs are known, and which VMs there are at all.
    fn take_identities(&self, vms: &[&VmRecord]) {
        let identity = |vm: &VmRecord| VmIdentity {
            vm_id: vm.vm_id,
            generation: vm.generation,
        };
        let cids = vms.iter().filter_map(|vm| Some((vm.cid?, identity(vm))));
        *self.cids.write().unwrap_or_else(PoisonError::into_inner) = cids.collect();
        let known: HashSet<u32> = vms.iter().map(|vm| vm.vm_id).collect();
        self.shared.caps.keep(&known);
        let registered: HashSet<_> = vms.iter().map(|vm| (vm.vm_id, vm.generation)).collect();
        self.shared.launcher.jail().keep(&registered);
    }

    /// Open doors whose socket is not at its path any more. Asks the file system, without the lock.
    fn lost(&self) -> Vec<(PathBuf, u32)> {
        let opened: Vec<_> = {
            let doors = self.lock();
            let opened = doors.unix.iter();
            let opened = opened.map(|(path, door)| (path.clone(), door.id, door.owner.clone()));
            opened.collect()
        };
        let vm_dirs = self.shared.config().vm_socket_dir();
        let mut by_ground: BTreeMap<PathBuf, Vec<_>> = BTreeMap::new();
        for door in opened {
            let ground = ground(&door.0, vm_dirs.as_deref());
            by_ground.entry(ground).or_default().push(door);
        }
        let lost = by_ground.into_iter().flat_map(|(ground, mut doors)| {
            let look = move || {
                doors.retain(|(path, id, _)| !id.is_at(path));
                doors
            };
            // What cannot be seen counts as being there.
            self.patience.ask(&ground, look).unwrap_or_default()
        });
        lost.map(|(path, _, owner)| (path, owner.identity.vm_id))
            .collect()
    }

    /// Closes what no VM wants; gives what is wanted and not open. `None`: the doors are closed.
    fn close_unwanted(
        &self,
        config: &Config,
        wanted: &BTreeMap<PathBuf, Wanted>,
        lost: &[(PathBuf, u32)],
    ) -> Option<Vec<(PathBuf, Wanted)>> {
        let vm_dirs = config.vm_socket_dir();
        let stays = |path: &PathBuf, door: &UnixDoor| {
            wanted.get(path).map(|wanted| &wanted.owner) == Some(&door.owner)
        };
        let (gone, swept) = {
            let mut doors = self.lock();
            if !doors.open {
                return None;
            }
            if config.listen.vsock && doors.vsock_due() {
                self.open_vsock(&mut doors, config);
            }
            for (path, _) in lost {
                // What lies there now is another's.
                doors.unix.remove(path);
            }
            let gone = doors.unix.iter().filter(|(path, door)| !stays(path, door));
            let gone: Vec<_> = gone.map(|(path, door)| (path.clone(), door.id)).collect();
            let swept = vm_dirs.is_none() || std::mem::replace(&mut doors.swept, true);
            (gone, swept)
        };
        for (path, id) in gone {
            let vm_is_gone = !wanted.contains_key(&path);
            self.close_path(&path, id, vm_dirs.as_deref(), vm_is_gone);
        }
        if let (false, Some(vm_dirs)) = (swept, vm_dirs) {
            let keep: HashSet<PathBuf> = wanted.keys().cloned().collect();
            let ground = vm_dirs.clone();
            let sweep = move || sockets::sweep(&vm_dirs, |path| keep.contains(path));
            // What is left is swept at the next start.
            let _ = self.patience.ask(&ground, sweep);
        }
        let doors = self.lock();
        let missing = wanted
            .iter()
            .filter(|(path, _)| !doors.unix.contains_key(*path));
        Some(
            missing
                .map(|(path, wanted)| (path.clone(), wanted.clone()))
                .collect(),
        )
    }

    /// Listens on a VM's socket. Its directory is made once for each registration, and again only where that is
    /// vgpud's own: below a mount point without its file system, a new directory would hide what is missing.
    fn open_unix(
        &self,
        path: &Path,
        wanted: Wanted,
        access: sockets::Access,
        rules: &Arc<Rules>,
        taken: &Arc<Mutex<HashMap<sockets::Id, u32>>>,
    ) -> Result<(), Shut> {
        let Wanted { owner, registered } = wanted;
        let (vm_id, uid) = (owner.identity.vm_id, owner.uid);
        let make = {
            let mut doors = self.lock();
            if !doors.open || doors.unix.contains_key(path) {
                return Ok(());
            }
            let made = doors.made.insert(path.to_owned(), owner.identity);
            made != Some(owner.identity) || sockets::home(path, rules.vm_dirs.as_deref()).is_some()
        };
        let (asked, rules_of, taken) = (path.to_owned(), rules.clone(), taken.clone());
        let open = move || {
            let allowed = |real: &Path| rules_of.check(real, registered);
            let spot = sockets::Spot::find(&asked, rules_of.vm_dirs.as_deref(), make, allowed)?;
            // However the way there leads: links and mounts of one directory in two places end at one file.
            let known = || taken.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(other) = spot.id().and_then(|id| known().get(&id).copied()) {
                return Err(Shut::of_other_vm(other));
            }
            let (listener, id) = sockets::open(&spot, uid, access)?;
            known().insert(id, vm_id);
            Ok((listener, id))
        };
        let (listener, id) = self.patience.ask(&rules.ground(path), open)??;
        let listener = UnixListener::from_std(listener)?;
        let task = accept_unix(listener, self.shared.clone(), path.into(), owner.clone());
        let mut doors = self.lock();
        // Where the doors were closed meanwhile, a dead socket is left: the next start replaces it.
        if doors.open {
            let door = UnixDoor {
                owner,
                id,
                _task: Task(tokio::spawn(task)),
            };
            doors.unix.insert(path.to_owned(), door);
        }
        Ok(())
    }

    /// Takes a door away. The socket first: while its listener lives, no other file is taken for it.
    fn close_path(&self, path: &Path, id: sockets::Id, vm_dirs: Option<&Path>, vm_is_gone: bool) {
        let (socket, dirs) = (path.to_owned(), vm_dirs.map(Path::to_owned));
        let close = move || sockets::close(&socket, id, dirs.as_deref(), vm_is_gone);
        // Where the file system does not answer, a dead socket is left.
        let _ = self.patience.ask(&ground(path, vm_dirs), close);
        self.lock().unix.remove(path);
    }

    fn lock(&self) -> MutexGuard<'_, Doors> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every door is open and its socket where it belongs. Asks the file system.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let (closed, whole) = {
            let doors = self.lock();
            let vsock = doors.vsock_problem.is_some() && doors.vsock_due();
            (!doors.open, !vsock && doors.shut.is_empty())
        };
        closed || whole && self.lost().is_empty()
    }

    /// The sockets of VMs on which vgpud should listen and does not.
    #[must_use]
    pub fn shut(&self) -> Vec<ShutDoor> {
        self.lock().shut.clone()
    }

    /// Closes every door; what is connected stays.
    pub fn close(&self) {
        let vm_dirs = self.shared.config().vm_socket_dir();
        let open: Vec<_> = {
            let mut doors = self.lock();
            doors.open = false;
            doors.vsock = None;
            doors.shut.clear();
            doors.made.clear();
            let open = doors.unix.iter();
            open.map(|(path, door)| (path.clone(), door.id)).collect()
        };
        for (path, id) in open {
            self.close_path(&path, id, vm_dirs.as_deref(), false);
        }
    }

    /// What is wrong with the doors. Asks the host's name services and the file system, which may take long: nothing is
    /// locked then.
    #[must_use]
    pub fn doctor(&self) -> Vec<DoctorCheck> {
        let (vsock, sockets, shut) = {
            let doors = self.lock();
            let sockets = doors.unix.iter();
            let sockets = sockets.map(|(path, door)| (path.clone(), door.owner.uid));
            (
                doors.vsock(),
                sockets.collect::<Vec<_>>(),
                doors.shut.clone(),
            )
        };
        let mut checks = vec![vsock];
        checks.extend(unix_listeners(sockets.len(), &shut, &self.lost()));
        checks.push(vm_socket_access(
            &sockets,
            !shut.is_empty(),
            &self.shared.config(),
        ));
        let open = self.shared.caps.open();
        let open = format!("{open} connections are open");
        checks.push(check("guest-connections", CheckStatus::Ok, open, None));
        checks
    }

    fn open_vsock(&self, doors: &mut Doors, config: &Config) {
        let port = config.listen.vsock_port;
        let opened = VsockListener::bind_with_cid_port(VMADDR_CID_ANY, port).and_then(|listener| {
            listener.set_nonblocking(true)?;
            // The runtime watches a second descriptor of the same socket.
            let watched = conn::register(listener.try_clone()?.into())?;
            Ok((listener, watched))
        });
        match opened {
            Ok(listener) => {
                let (shared, cids) = (self.shared.clone(), self.cids.clone());
                let task = accept_vsock(listener, shared, cids, config.listen.allow_local_cid);
                doors.vsock = Some(Task(tokio::spawn(task)));
                doors.vsock_problem = None;
                tracing::info!(port, "listening on AF_VSOCK");
            }
            Err(e) => {
                let problem = format!("cannot listen on AF_VSOCK port {port}: {e}");
                if doors.vsock_problem.as_ref() != Some(&problem) {
                    tracing::warn!("{problem}");
                }
                doors.vsock_problem = Some(problem);
            }
        }
    }
}

/// Directories whose file work is done, or hangs, together: those of all VMs that vgpud made, and each other one.
fn ground(path: &Path, vm_dirs: Option<&Path>) -> PathBuf {
    let own = vm_dirs.filter(|dirs| path.starts_with(dirs));
    own.or(path.parent()).unwrap_or(path).to_owned()
}

/// Where a door may be.
struct Rules {
    vm_dirs: Option<PathBuf>,
    admin: Option<PathBuf>,
    own: Vec<PathBuf>,
}

impl Rules {
    /// Asks the file system where vgpud's own paths lead.
    fn of(config: &Config) -> Rules {
        Rules {
            vm_dirs: config.vm_socket_dir(),
            admin: resolved(&config.admin_socket()).ok(),
            own: config.own_paths(),
        }
    }

    fn ground(&self, path: &Path) -> PathBuf {
        ground(path, self.vm_dirs.as_deref())
    }

    /// `real`: where the path of a VM's socket leads. It may lead elsewhere than when the VM was registered.
    fn check(&self, real: &Path, registered: bool) -> Result<(), Shut> {
        // Whoever took it would keep the admin API, and so vgpud, from starting.
        if self.admin.as_deref() == Some(real) {
            return Err(Shut::own("it is the admin API's socket".into()));
        }
        match self
            .own
            .iter()
            .find(|own| registered && real.starts_with(own))
        {
            Some(own) => Err(Shut::own(format!("{} is vgpud's own", own.display()))),
            None => Ok(()),
        }
    }
}

/// Which sockets these VMs, of which the first come first, should have; and those that they cannot have. What vgpud
/// gives a VM by itself comes before what any VM is registered with: an older vgpud may have allowed that.
fn wanted(
    config: &Config,
    vms: &[&VmRecord],
    rules: &Rules,
) -> (BTreeMap<PathBuf, Wanted>, Vec<ShutDoor>) {
    let mut wanted: BTreeMap<PathBuf, Wanted> = BTreeMap::new();
    let mut shut = Vec::new();
    let of_vgpud = vms.iter().flat_map(|vm| {
        let paths = config.automatic_paths(vm).into_iter();
        paths.map(move |path| (*vm, path, false))
    });
    let of_administrators = vms.iter().filter_map(|vm| {
        let path = PathBuf::from(vm.socket.as_ref()?);
        Some((*vm, path, true))
    });
    for (vm, path, registered) in of_vgpud.chain(of_administrators) {
        let identity = VmIdentity {
            vm_id: vm.vm_id,
            generation: vm.generation,
        };
        let uid = vm.peer_uid;
        let owner = Owner { identity, uid };
        let refused = match (rules.check(&path, registered), wanted.get(&path)) {
            (_, Some(taken)) if taken.owner == owner => continue,
            (Err(refused), _) => refused,
            (Ok(()), Some(taken)) => Shut::of_other_vm(taken.owner.identity.vm_id),
            (Ok(()), None) => {
                wanted.insert(path, Wanted { owner, registered });
                continue;
            }
        };
        shut.push(refused.door(&path, vm.vm_id));
    }
    (wanted, shut)
}

fn check(name: &str, status: CheckStatus, message: String, hint: Option<&str>) -> DoctorCheck {
    DoctorCheck {
        name: name.to_owned(),
        status,
        message,
        hint: hint.map(str::to_owned),
    }
}

/// Which sockets are open, which are not and why, and which are gone.
fn unix_listeners(open: usize, shut: &[ShutDoor], lost: &[(PathBuf, u32)]) -> Vec<DoctorCheck> {
    const NAME: &str = "unix-listeners";
    let problem =
        |(what, hint): (String, String)| check(NAME, CheckStatus::Error, what, Some(&hint));
    let mut checks: Vec<_> = ShutDoor::told(shut).into_iter().map(problem).collect();
    if let Some((path, vm_id)) = lost.first() {
        let more = match lost.len() - 1 {
            0 => String::new(),
            n => format!(", nor {n} others at theirs"),
        };
        let path = path.display();
        let what = format!("the socket of VM {vm_id} is not at {path} any more{more}");
        let hint = "vgpud makes it anew within seconds; find out who removes it";
        checks.push(check(NAME, CheckStatus::Warning, what, Some(hint)));
    }
    if checks.is_empty() {
        let open = format!("{open} sockets are open");
        checks.push(check(NAME, CheckStatus::Ok, open, None));
    }
    checks
}

/// Who can connect to the sockets that are open.
fn vm_socket_access(
    open: &[(PathBuf, Option<u32>)],
    some_shut: bool,
    config: &Config,
) -> DoctorCheck {
    const NAME: &str = "vm-socket-access";
    let too_open = |(path, uid): &(PathBuf, _)| sockets::too_open(path, *uid, &config.admin);
    let too_open: Vec<String> = open.iter().filter_map(too_open).collect();
    if !too_open.is_empty() {
        let hint = "Whoever can connect to a VM's socket is that VM: set listen.vm_socket_mode and \
                    listen.vm_socket_group, take hypervisors' users out of the administrators' \
                    groups, and restart vgpud";
        return check(NAME, CheckStatus::Warning, too_open.join("; "), Some(hint));
    }
    let (status, sentence) = match (open.len(), some_shut) {
        (0, true) => (CheckStatus::Skipped, "no socket of a VM is open"),
        (_, true) => (
            CheckStatus::Ok,
            "nobody but root and a VM's own user or group can connect to the sockets that are open",
        ),
        (_, false) => (
            CheckStatus::Ok,
            "nobody but root and a VM's own user or group can connect as the VM",
        ),
    };
    check(NAME, status, sentence.into(), None)
}

impl Doors {
    /// Whether to listen on AF_VSOCK. Without the device another try would only have the kernel look for its module.
    fn vsock_due(&self) -> bool {
        let device = || Path::new("/dev/vsock").exists();
        self.vsock.is_none() && (self.vsock_problem.is_none() || device())
    }

    /// Whether guests can come over AF_VSOCK.
    fn vsock(&self) -> DoctorCheck {
        const NAME: &str = "vsock-listener";
        match (&self.vsock, &self.vsock_problem) {
            (Some(_), _) => check(NAME, CheckStatus::Ok, "listens".into(), None),
            (None, Some(problem)) => check(
                NAME,
                CheckStatus::Warning,
                problem.clone(),
                Some(
                    "Load vhost_vsock (vgpud then listens by itself), or set listen.vsock = false and restart \
                     vgpud",
                ),
            ),
            (None, None) => check(NAME, CheckStatus::Skipped, "is switched off".into(), None),
        }
    }
}

async fn accept_vsock(
    (listener, watched): (VsockListener, AsyncFd<OwnedFd>),
    shared: Arc<Shared>,
    cids: Arc<RwLock<HashMap<u32, VmIdentity>>>,
    allow_local: bool,
) {
    loop {
        let accepted = match watched.readable().await {
            Ok(mut ready) => match ready.try_io(|_| listener.accept()) {
                Ok(accepted) => accepted,
                Err(_would_block) => continue,
            },
            Err(e) => Err(e),
        };
        match accepted {
            Ok((stream, address)) => {
                let cid = address.cid();
                let known = cids
                    .read()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get(&cid)
                    .copied();
                let identity = known.filter(|_| allow_local || cid >= FIRST_GUEST_CID);
                enter(&shared, OwnedFd::from(stream), Peer::Vsock(cid), identity);
            }
            Err(e) => pause("AF_VSOCK", &e).await,
        }
    }
}

async fn accept_unix(listener: UnixListener, shared: Arc<Shared>, path: Arc<Path>, owner: Owner) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.into_std() {
                Ok(stream) => {
                    let fd = OwnedFd::from(stream);
                    let uid = getsockopt(&fd, PeerCredentials).map(|peer| peer.uid());
                    let allowed = match (owner.uid, &uid) {
                        (None, _) => true,
                        (Some(wanted), Ok(uid)) => wanted == *uid,
                        (Some(_), Err(_)) => false,
                    };
                    let peer = Peer::Unix(path.clone(), uid.unwrap_or(u32::MAX));
                    if allowed {
                        enter(&shared, fd, peer, Some(owner.identity));
                    } else {
                        turn_away_foreigner(&shared, fd, peer, &owner);
                    }
                }
                Err(e) => pause("a VM's socket", &e).await,
            },
            Err(e) => pause("a VM's socket", &e).await,
        }
    }
}

/// The right path, the wrong user: refused as unknown, and told so.
fn turn_away_foreigner(shared: &Arc<Shared>, fd: OwnedFd, peer: Peer, owner: &Owner) {
    let Peer::Unix(_, uid) = &peer else { return };
    tracing::warn!(
        vm = owner.identity.vm_id,
        uid,
        "a process of another user connected at {peer}"
    );
    enter(shared, fd, peer, None);
}

/// The accept path of every listener: counted, then served by a task of its own.
fn enter(shared: &Arc<Shared>, fd: OwnedFd, peer: Peer, identity: Option<VmIdentity>) {
    let due = identity.map_or(0, |vm| shared.nonces.due(vm));
    let verdict = shared.caps.enter(identity.map(|vm| vm.vm_id), due);
    if matches!(verdict, Verdict::Close) {
        return;
    }
    if matches!(verdict, Verdict::Serve(_))
        && let Some(session) = identity.and_then(|vm| session::take_data(shared, &fd, vm))
    {
        return shared.mediator.data(session, fd);
    }
    let conn = match Conn::new(fd) {
        Ok(conn) => conn,
        Err(e) => {
            tracing::warn!("a connection from {peer} cannot be served: {e}");
            return;
        }
    };
    match verdict {
        Verdict::Serve(permit) => {
            tokio::spawn(session::serve(shared.clone(), conn, peer, identity, permit));
        }
        Verdict::Tell(permit, text) => {
            let shared = shared.clone();
            tokio::spawn(session::turn_away(
                shared, conn, peer, identity, text, permit,
            ));
        }
        Verdict::Close => {}
    }
}

async fn pause(what: &str, error: &io::Error) {
    tracing::warn!("cannot accept on {what}: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
