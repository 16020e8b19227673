//! Listeners, and the one accept path behind all of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use vgpu_proto::api::{CheckStatus, DoctorCheck};
use vsock::{VMADDR_CID_ANY, VsockListener};

use super::caps::{Caps, Verdict};
use super::conn::{self, Conn};
use super::{Peer, Shared, session, sockets};
use crate::config::Config;
use crate::events::EventSink;
use crate::mediator::{MediatorHandle, VmIdentity};
use crate::model::VmRecord;
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
    doors: Mutex<Doors>,
}

#[derive(Debug, Default)]
struct Doors {
    vsock: Option<Task>,
    vsock_problem: Option<String>,
    unix: BTreeMap<PathBuf, UnixDoor>,
    problems: BTreeMap<PathBuf, String>,
    open: bool,
    swept: bool,
}

/// Whose door a Unix socket is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    identity: VmIdentity,
    uid: Option<u32>,
}

#[derive(Debug)]
struct UnixDoor {
    owner: Owner,
    _task: Task,
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
        }
    }

    /// Takes a reloaded configuration over.
    pub fn reconfigure(&self, config: Arc<Config>) {
        self.shared.set_config(config);
    }

    /// From now on [`Gateway::sync`] opens doors.
    pub fn open(&self) {
        self.doors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .open = true;
    }

    /// Opens and closes doors so that they are those of these VMs. Must be called within the runtime.
    pub fn sync<'a>(&self, vms: impl IntoIterator<Item = &'a VmRecord>) {
        let config = self.shared.config();
        let mut cids = HashMap::new();
        let (mut known, mut registered) = (HashSet::new(), HashSet::new());
        let mut wanted: BTreeMap<PathBuf, Owner> = BTreeMap::new();
        for vm in vms {
            let identity = VmIdentity {
                vm_id: vm.vm_id,
                generation: vm.generation,
            };
            known.insert(vm.vm_id);
            registered.insert((vm.vm_id, vm.generation));
            cids.extend(vm.cid.map(|cid| (cid, identity)));
            for path in config.socket_paths(vm) {
                wanted.insert(
                    path,
                    Owner {
                        identity,
                        uid: vm.peer_uid,
                    },
                );
            }
        }
        *self.cids.write().unwrap_or_else(PoisonError::into_inner) = cids;
        self.shared.caps.keep(&known);
        self.shared.launcher.jail().keep(&registered);
        // Before the lock: it asks the host's name services.
        let access = sockets::Access::of(&config.listen);
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if !doors.open {
            return;
        }
        if config.listen.vsock && doors.vsock.is_none() && doors.vsock_problem.is_none() {
            self.open_vsock(&mut doors, &config);
        }
        let gone: Vec<PathBuf> = doors
            .unix
            .iter()
            .filter(|(path, door)| wanted.get(*path) != Some(&door.owner))
            .map(|(path, _)| path.clone())
            .collect();
        let vm_dirs = config.vm_socket_dir();
        for path in gone {
            let vm_is_gone = !wanted.contains_key(&path);
            doors.close_path(&path, vm_dirs.as_deref(), vm_is_gone);
        }
        doors.problems.retain(|path, _| wanted.contains_key(path));
        if let (false, Some(vm_dirs)) = (doors.swept, &vm_dirs) {
            doors.swept = true;
            sockets::sweep(vm_dirs, |path| wanted.contains_key(path));
        }
        let admin = resolved(&config.admin_socket());
        for (path, owner) in wanted {
            if !doors.unix.contains_key(&path) {
                let opened = access.clone().and_then(|access| {
                    // Whoever took it would keep the admin API, and so vgpud, from starting.
                    if resolved(&path) == admin {
                        return Err("it is the admin API's socket".into());
                    }
                    sockets::open(&path, vm_dirs.as_deref(), owner.uid, access)
                        .map_err(|e| e.to_string())
                });
                self.take_path(&mut doors, path, owner, opened);
            }
        }
    }

    /// Closes every door; what is connected stays.
    pub fn close(&self) {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.open = false;
        doors.vsock = None;
        let paths: Vec<PathBuf> = doors.unix.keys().cloned().collect();
        for path in paths {
            doors.close_path(&path, None, false);
        }
    }

    /// What is wrong with the doors. Asks the host's name services, which may take long: nothing is locked then.
    #[must_use]
    pub fn doctor(&self) -> Vec<DoctorCheck> {
        let (mut checks, sockets) = {
            let doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
            let sockets = doors.unix.iter();
            let sockets = sockets.map(|(path, door)| (path.clone(), door.owner.uid));
            (doors.doctor(), sockets.collect::<Vec<_>>())
        };
        let config = self.shared.config();
        let too_open: Vec<String> = sockets
            .iter()
            .filter_map(|(path, uid)| sockets::too_open(path, *uid, &config.admin))
            .collect();
        checks.push(if too_open.is_empty() {
            let sentence = "nobody but root and a VM's own user or group can connect as the VM";
            check("vm-socket-access", CheckStatus::Ok, sentence.into(), None)
        } else {
            check(
                "vm-socket-access",
                CheckStatus::Warning,
                too_open.join("; "),
                Some(
                    "Whoever can connect to a VM's socket is that VM: set listen.vm_socket_mode and \
                     listen.vm_socket_group, take hypervisors' users out of the administrators' \
                     groups, and restart vgpud",
                ),
            )
        });
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
                tracing::info!(port, "listening on AF_VSOCK");
            }
            Err(e) => {
                let problem = format!("cannot listen on AF_VSOCK port {port}: {e}");
                tracing::warn!("{problem}");
                doors.vsock_problem = Some(problem);
            }
        }
    }

    fn take_path(
        &self,
        doors: &mut Doors,
        path: PathBuf,
        owner: Owner,
        opened: Result<UnixListener, String>,
    ) {
        match opened {
            Ok(listener) => {
                let shared = self.shared.clone();
                let task = accept_unix(listener, shared, Arc::from(path.as_path()), owner.clone());
                doors.problems.remove(&path);
                let door = UnixDoor {
                    owner,
                    _task: Task(tokio::spawn(task)),
                };
                doors.unix.insert(path, door);
            }
            Err(e) => {
                let problem = format!("cannot listen on {}: {e}", path.display());
                tracing::warn!(vm = owner.identity.vm_id, "{problem}");
                doors.problems.insert(path, problem);
            }
        }
    }
}

fn check(name: &str, status: CheckStatus, message: String, hint: Option<&str>) -> DoctorCheck {
    DoctorCheck {
        name: name.to_owned(),
        status,
        message,
        hint: hint.map(str::to_owned),
    }
}

impl Doors {
    /// Which are open.
    fn doctor(&self) -> Vec<DoctorCheck> {
        let vsock = match (&self.vsock, &self.vsock_problem) {
            (Some(_), _) => check("vsock-listener", CheckStatus::Ok, "listens".into(), None),
            (None, Some(problem)) => check(
                "vsock-listener",
                CheckStatus::Warning,
                problem.clone(),
                Some("Load vhost_vsock, or set listen.vsock = false; then restart vgpud"),
            ),
            (None, None) => check(
                "vsock-listener",
                CheckStatus::Skipped,
                "is switched off".into(),
                None,
            ),
        };
        let unix = if self.problems.is_empty() {
            let open = self.unix.len();
            let open = format!("{open} sockets are open");
            check("unix-listeners", CheckStatus::Ok, open, None)
        } else {
            let problems: Vec<&str> = self.problems.values().map(String::as_str).collect();
            check(
                "unix-listeners",
                CheckStatus::Error,
                problems.join("; "),
                Some(
                    "Make the directories exist and writable by vgpud, register VMs whose path is taken with \
                     another one, then restart vgpud",
                ),
            )
        };
        vec![vsock, unix]
    }

    fn close_path(&mut self, path: &Path, vm_dirs: Option<&Path>, vm_is_gone: bool) {
        if self.unix.remove(path).is_some() {
            sockets::close(path, vm_dirs, vm_is_gone);
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
