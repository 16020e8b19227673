//! The accept loops of all listeners, which end in one function for every accepted connection.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::io::unix::AsyncFd;
use vsock::VsockListener;

use super::caps::Verdict;
use super::conn::Conn;
use super::rules::SocketOwner;
use super::{Peer, Shared, session};
use crate::events::Report;
use crate::model::VmIdentity;
use crate::system::guarded::{Guarded, Listener};

/// Pause after a failed accept, for example when vgpud has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// First CID of a guest. Smaller CIDs belong to programs of this host that use vsock loopback.
const FIRST_GUEST_CID: u32 = 3;

/// Accepts AF_VSOCK connections and finds the VM by the peer's CID.
pub(super) async fn accept_vsock(
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
                let closer = shared.closers().of(identity.map(|vm| vm.vm_id));
                if closer.is_full() {
                    // The close of this connection is fast, because nothing was read or sent. After
                    // an exchange of bytes, the close might be as slow as the earlier closes.
                    continue;
                }
                let fd = Guarded::plain(stream.into(), closer);
                enter(&shared, fd, Peer::Vsock(cid), identity);
            }
            Err(e) => pause("AF_VSOCK", &e).await,
        }
    }
}

/// Accepts on the socket of one VM.
pub(super) async fn accept_unix(
    listener: Listener,
    shared: Arc<Shared>,
    path: Arc<Path>,
    owner: SocketOwner,
) {
    loop {
        if listener.closer().is_full() {
            wait_for_room(&listener, &shared, &path, &owner).await;
        }
        match listener.accept().await {
            Ok(fd) => {
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
        }
    }
}

/// Waits until vgpud may accept another connection of a VM whose sockets take long to close. Logs
/// and reports the wait once.
async fn wait_for_room(listener: &Listener, shared: &Shared, path: &Path, owner: &SocketOwner) {
    let vm_id = owner.identity.vm_id;
    let message = "no more connections of this VM are accepted until those that ended are closed: what is \
                   attached to them, or waits in them, takes long to close";
    tracing::warn!(vm = vm_id, "{message}");
    shared.events.report(Report::Refused {
        vm_id: Some(vm_id),
        peer: path.display().to_string(),
        code: "busy",
        message: message.to_owned(),
    });
    listener.closer().room().await;
    tracing::info!(vm = vm_id, "connections of the VM are accepted again");
}

/// Refuses a process that connected at a VM's socket as a user other than the registered user.
fn turn_away_foreigner(shared: &Arc<Shared>, fd: Guarded, peer: Peer, owner: &SocketOwner) {
    let Peer::Unix(_, uid) = &peer else { return };
    // The process can connect as often as it likes; the event of the refusal has a limit.
    tracing::debug!(
        vm = owner.identity.vm_id,
        uid,
        "a process of another user connected at {peer}"
    );
    enter(shared, fd, peer, None);
}

/// Counts an accepted connection, then serves or refuses the connection in a task of its own.
fn enter(shared: &Arc<Shared>, fd: Guarded, peer: Peer, identity: Option<VmIdentity>) {
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
