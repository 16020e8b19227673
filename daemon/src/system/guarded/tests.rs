use std::io::Write;
use std::time::Instant;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::*;
use crate::system::attack::{SOON, attach, does_not_sleep};

const PLAIN: MsgFlags = MsgFlags::empty();

/// A socket pair: the peer's end, and vgpud's end as on a kernel that cannot refuse descriptors.
fn pair(kind: SockType) -> (OwnedFd, Guarded) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
    rights::allow(&ours);
    (theirs, Guarded::new(ours, Arc::default()))
}

fn is_attached(read: &io::Result<usize>) -> bool {
    matches!(read, Err(e) if Attached::is(e))
}

/// Drops the socket and waits until the closer has closed it.
fn closes(socket: Guarded) {
    let closer = socket.closer.clone();
    does_not_sleep(move || drop(socket));
    let deadline = Instant::now() + SOON;
    while !closer.is_idle() {
        assert!(Instant::now() < deadline, "the closer sleeps");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_peer_that_attaches_descriptors_is_refused_by_the_kernel() {
    if !rights::can_be_refused() {
        eprintln!("SKIPPED: this kernel cannot refuse descriptors (Linux 6.16 can)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = crate::system::bind_closed(&path).unwrap();
    listener.set_nonblocking(false).unwrap();
    let peer = UnixStream::connect(&path).unwrap();
    let before = attach(&peer, b"x", PLAIN).unwrap_err();
    let accepted = Guarded::new(listener.accept().unwrap().0.into(), Arc::default());
    let after = attach(&peer, b"x", PLAIN).unwrap_err();
    for refused in [before, after] {
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
    assert!(!accepted.attached, "it needs no closer");
}

#[test]
fn what_is_attached_stays_unread() {
    let (peer, ours) = pair(SockType::Stream);
    let mut writes = UnixStream::from(peer.try_clone().unwrap());
    writes.write_all(b"before").unwrap();
    let mut buffer = [0; 64];
    assert_eq!(ours.look(&mut buffer).unwrap(), 6);
    assert_eq!(ours.read(&mut buffer[..2]).unwrap(), 2);
    let _theirs = attach(&peer, b"with", PLAIN).unwrap();
    writes.write_all(b"behind").unwrap();
    let ours = does_not_sleep(move || {
        let mut buffer = [0; 64];
        for _ in 0..2 {
            assert!(is_attached(&ours.look(&mut buffer)));
            assert!(is_attached(&ours.read(&mut buffer)));
        }
        ours
    });
    closes(ours);
}

#[test]
fn what_is_attached_to_an_urgent_byte_is_seen() {
    let (peer, ours) = pair(SockType::Stream);
    let _theirs = match attach(&peer, b"!", MsgFlags::MSG_OOB) {
        Err(e) => return eprintln!("SKIPPED: this kernel has no urgent bytes: {e}"),
        Ok(theirs) => theirs,
    };
    UnixStream::from(peer).write_all(b"behind").unwrap();
    let ours = does_not_sleep(move || {
        for _ in 0..2 {
            let read = ours.read(&mut [0; 64]);
            assert!(is_attached(&read), "{read:?}");
        }
        ours
    });
    closes(ours);
}

#[test]
fn what_is_attached_to_a_packet_is_seen() {
    for sent in [&b"packet"[..], b""] {
        let (peer, ours) = pair(SockType::SeqPacket);
        let _theirs = attach(&peer, sent, PLAIN).unwrap();
        let ours = does_not_sleep(move || {
            assert!(is_attached(&ours.read_packet(&mut [0; 64])), "{sent:?}");
            ours
        });
        closes(ours);
    }
}

#[test]
fn packets_are_read_whole_and_longer_ones_are_told_apart() {
    let (peer, ours) = pair(SockType::SeqPacket);
    send(peer.as_raw_fd(), &[7; 9], PLAIN).unwrap();
    send(peer.as_raw_fd(), &[8; 3], PLAIN).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(ours.read_packet(&mut buffer).unwrap(), 9);
    assert_eq!(ours.read_packet(&mut buffer).unwrap(), 3);
    assert_eq!(buffer, [8, 8, 8, 7]);
    let empty = ours.read_packet(&mut buffer).unwrap_err();
    assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    drop(peer);
    assert_eq!(ours.read_packet(&mut buffer).unwrap(), 0);
}

#[test]
fn a_socket_that_others_hold_is_closed_by_the_closer() {
    let (lingering, _theirs) = crate::system::attack::lingering();
    let mut ours = Guarded::plain(lingering, Arc::default());
    ours.share();
    closes(ours);
}

#[tokio::test]
async fn what_a_listener_did_not_accept_is_closed_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = crate::system::bind_closed(&path).unwrap();
    let listener = Listener::new(listener, Arc::default()).unwrap();
    listener.allow_rights();
    let peer = UnixStream::connect(&path).unwrap();
    let _theirs = attach(&peer, b"x", PLAIN).unwrap();
    let closer = listener.closer().clone();
    drop(listener);
    let deadline = Instant::now() + SOON;
    while !closer.is_idle() {
        assert!(Instant::now() < deadline, "the closer sleeps");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn nobody_is_accepted_while_the_closer_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = crate::system::bind_closed(&path).unwrap();
    let listener = Listener::new(listener, Arc::default()).unwrap();
    let _peer = UnixStream::connect(&path).unwrap();
    listener.closer().pretend(crate::system::closer::MOST);
    let mut accepting = Box::pin(listener.accept());
    let waits = at_once(&mut accepting).await;
    assert!(waits.is_none(), "it is full");
    listener.closer().pretend(0);
    accepting.await.unwrap();
}

/// The value of a future if it is ready now.
async fn at_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = std::future::ready(()) => None,
    }
}
