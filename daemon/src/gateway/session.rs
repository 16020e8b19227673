//! Serves one connection from its first byte to its end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use vgpu_proto::cuda::OFFERED_CUDA_VERSION;
use vgpu_proto::handshake::{
    CONTROL_HEADER_LEN, ControlHeader, ControlNote, DATA_MAGIC, DATA_PREAMBLE_LEN, DeviceInfo,
    Hello, NONCE_LEN, Refusal, Welcome,
};
use vgpu_proto::limits::MAX_TEXT;
use vgpu_proto::text::cut;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::caps::{LOOKS_PER_S, Permit};
use super::conn::Conn;
use super::nonces::Issued;
use super::opening::{self, BadOpening, Opening};
use super::{Peer, Shared};
use crate::events::Report;
use crate::mediator::{AdmitRequest, GuestEnd, Note, Refused};
use crate::model::VmIdentity;
use crate::supervisor::Started;
use crate::system::guarded::{Attached, Guarded};
use crate::system::set_nonblocking;

/// Time that a guest has to read a refusal or a note.
const TELL_DEADLINE: Duration = Duration::from_secs(2);

/// Longest time for which a connection stays open after the last message, so that the guest can
/// read the message.
const LINGER: Duration = Duration::from_secs(2);

/// Most notes that may wait to be sent. Further notes are lost.
const NOTES: usize = 4;

/// Serves one connection until it is over.
pub(super) async fn serve(
    shared: Arc<Shared>,
    conn: Conn,
    peer: Peer,
    identity: Option<VmIdentity>,
    mut permit: Permit,
) {
    let opening = match timeout(shared.handshake_deadline(), opening::read(&conn)).await {
        Ok(Ok(opening)) => opening,
        Ok(Err(BadOpening::Gone(_))) => return,
        Ok(Err(BadOpening::Refuse(code, text))) => {
            return refuse(&shared, &conn, &peer, identity, Refused { code, text }).await;
        }
        Err(_late) => {
            let text = format!(
                "the guest did not introduce itself within {} ms (limits.handshake_deadline_ms)",
                shared.handshake_deadline().as_millis()
            );
            let refused = Refused {
                code: Refusal::Malformed,
                text,
            };
            return refuse(&shared, &conn, &peer, identity, refused).await;
        }
    };
    let redeemed = match (&opening, identity) {
        (Opening::Data(nonce), Some(identity)) => shared.nonces.redeem(nonce, identity),
        _ => None,
    };
    match permit.introduced(redeemed.is_some()) {
        Ok(()) => {}
        Err(Some(text)) => return turn_away(shared, conn, peer, identity, text, permit).await,
        Err(None) => return,
    }
    let Some(identity) = identity else {
        return refuse(&shared, &conn, &peer, None, unknown_vm(&peer)).await;
    };
    match opening {
        Opening::Data(_) => data(&shared, conn, &peer, identity, redeemed).await,
        Opening::Look => {
            if let Err(refused) = look(&shared, &conn, identity).await {
                refuse(&shared, &conn, &peer, Some(identity), refused).await;
            }
        }
        Opening::Control(hello) => {
            if let Err(refused) = control(&shared, &conn, &peer, identity, hello).await {
                refuse(&shared, &conn, &peer, Some(identity), refused).await;
            }
        }
    }
}

/// Refuses a connection that exceeds the limits, without reading from the connection.
pub(super) async fn turn_away(
    shared: Arc<Shared>,
    conn: Conn,
    peer: Peer,
    identity: Option<VmIdentity>,
    text: String,
    permit: Permit,
) {
    refuse(
        &shared,
        &conn,
        &peer,
        identity,
        Refused {
            code: Refusal::Busy,
            text,
        },
    )
    .await;
    drop(permit);
}

fn unknown_vm(peer: &Peer) -> Refused {
    let text = match peer {
        Peer::Vsock(cid) => format!(
            "no VM is registered for CID {cid}; the host's administrator can register the VM \
             (vgpu-admin register-vm --vm-id=<n> --pool=<pool> --cid={cid})"
        ),
        Peer::Unix(path, uid) => format!(
            "{} belongs to a VM whose processes run as another user than {uid}; the host's \
             administrator can see which (vgpu-admin vm show)",
            path.display()
        ),
    };
    Refused {
        code: Refusal::UnknownVm,
        text,
    }
}

async fn refuse(
    shared: &Shared,
    conn: &Conn,
    peer: &Peer,
    identity: Option<VmIdentity>,
    refused: Refused,
) {
    let vm_id = identity.map(|vm| vm.vm_id);
    shared.events.report(Report::Refused {
        vm_id,
        peer: peer.to_string(),
        code: code_name(refused.code),
        message: refused.text.clone(),
    });
    if let Some(vm) = identity {
        let mut delta = crate::model::UsageDelta::default();
        delta.add.refusals = 1;
        shared.events.usage(vm.vm_id, vm.generation, &delta);
    }
    let bytes = opening::refusal(refused.code, &refused.text);
    if let Ok(Ok(())) = timeout(TELL_DEADLINE, conn.write_all(&bytes)).await {
        linger(conn).await;
    }
}

/// Waits until the peer has read the last message or closed the connection. If vgpud closed a
/// socket with unread input, the kernel would reset the connection, and the peer could lose the
/// message.
async fn linger(conn: &Conn) {
    let mut scratch = [0; 4096];
    let drain = async {
        let mut left = 64 * 1024_usize;
        while let Ok(n) = conn.read(&mut scratch).await {
            left = left.saturating_sub(n);
            if n == 0 || left == 0 {
                return;
            }
        }
    };
    let _ = timeout(LINGER, drain).await;
}

fn code_name(code: Refusal) -> &'static str {
    match code {
        Refusal::Malformed => "malformed",
        Refusal::Version => "version",
        Refusal::UnknownVm => "unknown_vm",
        Refusal::Quarantined => "quarantined",
        Refusal::SessionLimit => "session_limit",
        Refusal::Busy => "busy",
        Refusal::NoGpu => "no_gpu",
        Refusal::Draining => "draining",
        Refusal::HostFailure => "host_failure",
        Refusal::BadNonce => "bad_nonce",
        Refusal::Pinned => "pinned",
    }
}

/// Redeems a data connection whose first bytes have all arrived, without waiting. This is the usual
/// case, and keeps the order in which connections were accepted. `None`: the caller serves the
/// connection in a task.
pub(super) fn take_data(shared: &Shared, fd: &Guarded, identity: VmIdentity) -> Option<u64> {
    let mut opening = [0; DATA_PREAMBLE_LEN];
    if fd.look(&mut opening).ok() != Some(opening.len()) {
        return None;
    }
    let nonce: &[u8; NONCE_LEN] = opening.strip_prefix(&DATA_MAGIC)?.try_into().ok()?;
    let session = shared.nonces.redeem(nonce, identity)?;
    // The bytes of the preamble are in the socket. The bytes after the preamble are for the worker.
    match fd.read(&mut opening) {
        Ok(n) if n == opening.len() && set_nonblocking(fd, false).is_ok() => Some(session),
        _ => {
            shared.mediator.guest_gone(session, GuestEnd::NoData);
            None
        }
    }
}

/// Answers a look with the description of the VM that the mediator has. Starts no session and no
/// worker.
async fn look(shared: &Shared, conn: &Conn, identity: VmIdentity) -> Result<(), Refused> {
    if !shared.caps.may_look(identity.vm_id) {
        return Err(Refused {
            code: Refusal::Busy,
            text: format!("this VM looks at itself more often than {LOOKS_PER_S} times a second"),
        });
    }
    let looked = shared.mediator.look(identity).await;
    let looked = looked.map_err(|_| Refused::draining())?;
    let looked = looked.ok_or_else(|| Refused {
        code: Refusal::UnknownVm,
        text: format!("VM {} is not registered on this host", identity.vm_id),
    })?;
    let bytes = opening::looked(&looked).map_err(|e| Refused {
        code: Refusal::HostFailure,
        text: format!("the answer to a look cannot be written: {e}"),
    })?;
    if let Ok(Ok(())) = timeout(TELL_DEADLINE, conn.write_all(&bytes)).await {
        linger(conn).await;
    }
    Ok(())
}

async fn data(
    shared: &Shared,
    conn: Conn,
    peer: &Peer,
    identity: VmIdentity,
    redeemed: Option<u64>,
) {
    let Some(session) = redeemed else {
        let text = "the data connection's nonce is unknown, used, or another VM's".to_owned();
        let refused = Refused {
            code: Refusal::BadNonce,
            text,
        };
        return refuse(shared, &conn, peer, Some(identity), refused).await;
    };
    match conn.into_fd() {
        Ok(fd) => shared.mediator.data(session, fd),
        Err(e) => {
            tracing::warn!(session, "the data connection cannot be handed over: {e}");
            shared.mediator.guest_gone(session, GuestEnd::NoData);
        }
    }
}

/// Has a worker started, sends the Welcome, and serves the control connection until its end.
async fn control(
    shared: &Arc<Shared>,
    conn: &Conn,
    peer: &Peer,
    identity: VmIdentity,
    hello: Hello,
) -> Result<(), Refused> {
    let (notes, mut noted) = mpsc::channel(NOTES);
    let request = AdmitRequest {
        identity,
        hello,
        peer: peer.to_string(),
        notes,
    };
    let there = conn.presence();
    let there = there.map_err(|e| Refused::host_failure(&e.to_string()))?;
    let Some(started) = shared.supervisor.start(request, there).await? else {
        return Ok(());
    };
    let session = started.admitted.session;
    let welcomed = welcome(shared, conn, identity, started).await;
    match welcomed {
        Ok(issued) => {
            serve_control(shared, conn, session, &mut noted, issued).await;
            Ok(())
        }
        Err(e) => {
            tracing::debug!(session, "the guest was gone before its Welcome: {e}");
            shared.mediator.guest_gone(session, GuestEnd::Vanished);
            Ok(())
        }
    }
}

async fn welcome(
    shared: &Shared,
    conn: &Conn,
    identity: VmIdentity,
    Started { admitted, ready }: Started,
) -> io::Result<Issued> {
    let issued = shared.nonces.issue(admitted.session, identity)?;
    let quota = admitted.memory_quota;
    let within_quota = |mut device: DeviceInfo| {
        if let Some(quota) = quota {
            device.total_memory = device.total_memory.min(quota);
        }
        device
    };
    let welcome = Welcome {
        session: admitted.session,
        nonce: issued.nonce(),
        daemon_version: crate::VERSION.to_owned(),
        cuda_version: ready.driver_version.min(OFFERED_CUDA_VERSION),
        devices: ready.devices.into_iter().map(within_quota).collect(),
        depth_calls: admitted.depth_calls,
        depth_bytes: admitted.depth_bytes,
    };
    let bytes = opening::welcome(&welcome).map_err(io::Error::other)?;
    match timeout(TELL_DEADLINE, conn.write_all(&bytes)).await {
        Ok(written) => written.map(|()| issued),
        Err(_late) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Serves the control connection until the session or the connection ends.
async fn serve_control(
    shared: &Shared,
    conn: &Conn,
    session: u64,
    noted: &mut mpsc::Receiver<Note>,
    issued: Issued,
) {
    let mut incoming = Incoming::default();
    // The handshake deadline also covers the data connection.
    let data_due = tokio::time::sleep(shared.handshake_deadline());
    tokio::pin!(data_due);
    let (mut over, mut data_came) = (false, false);
    loop {
        let end = tokio::select! {
            note = noted.recv() => match note {
                Some(Note::Draining(text)) => {
                    match send_note(conn, ControlNote::Draining, 0, &text).await {
                        Ok(()) => continue,
                        Err(_) => GuestEnd::Vanished,
                    }
                }
                Some(Note::Ended(code, text)) => {
                    drop(issued);
                    if send_note(conn, ControlNote::Ended, code.0, &text).await.is_ok() {
                        linger(conn).await;
                    }
                    return;
                }
                // The notes end without an `Ended`, because the guest itself ended the session. The
                // guest may still be exiting: if vgpud closed first, the guest would report that
                // the host ended the session.
                None => {
                    drop(issued);
                    return linger(conn).await;
                }
            },
            end = incoming.next(conn), if !over => end,
            () = &mut data_due, if !over && !data_came => {
                data_came = true;
                if !issued.is_open() {
                    continue;
                }
                GuestEnd::NoData
            }
        };
        shared.mediator.guest_gone(session, end);
        if end == GuestEnd::Vanished {
            return;
        }
        // The mediator answers with a note or closes the channel of notes.
        over = true;
    }
}

async fn send_note(conn: &Conn, kind: ControlNote, code: u32, text: &str) -> io::Result<()> {
    let text = cut(text, MAX_TEXT);
    let header = ControlHeader {
        kind: U32::new(kind as u32),
        code: U32::new(code),
        text_len: U32::new(u32::try_from(text.len()).unwrap_or(0)),
    };
    let bytes = [header.as_bytes(), text.as_bytes()].concat();
    match timeout(TELL_DEADLINE, conn.write_all(&bytes)).await {
        Ok(written) => written,
        Err(_late) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Reads the guest's messages after the Hello: at most one Goodbye. Keeps a part that was read when
/// `select!` drops the read.
#[derive(Debug, Default)]
struct Incoming {
    header: [u8; CONTROL_HEADER_LEN],
    filled: usize,
}

impl Incoming {
    async fn next(&mut self, conn: &Conn) -> GuestEnd {
        while self.filled < self.header.len() {
            match conn.read(&mut self.header[self.filled..]).await {
                Err(e) if Attached::is(&e) => return GuestEnd::Broken,
                Ok(0) | Err(_) => return GuestEnd::Vanished,
                Ok(n) => self.filled += n,
            }
        }
        let kind = ControlHeader::read_from_bytes(&self.header).map(|h| h.kind.get());
        match kind.ok().and_then(ControlNote::from_kind) {
            Some(ControlNote::Goodbye) => GuestEnd::Goodbye,
            _ => GuestEnd::Broken,
        }
    }
}
