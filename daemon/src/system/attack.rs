//! Test helpers: messages with an attached socket, whose last reference takes long to drop.

use std::io::{self, IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};

/// Time for which a thread sleeps that drops the last reference, in s. Longer than any test waits.
const LINGERS_S: i32 = 120;

/// Time within which a thread that does not sleep finishes, also on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A TCP socket with unsent data that lingers, and its other end, which never reads.
pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    setsockopt(&listener, sockopt::RcvBuf, &4_096).unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 65_536]).is_ok() {}
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: LINGERS_S,
    };
    setsockopt(&ours, sockopt::Linger, &linger).unwrap();
    (ours.into(), theirs)
}

/// Sends bytes with the last reference of a lingering socket.
///
/// # Errors
/// If the kernel refuses descriptors for the socket.
pub(crate) fn attach(socket: &impl AsFd, bytes: &[u8], flags: MsgFlags) -> io::Result<TcpStream> {
    let (lingering, theirs) = lingering();
    let rights = [lingering.as_raw_fd()];
    let sent = sendmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::ScmRights(&rights)],
        flags | MsgFlags::MSG_NOSIGNAL,
        None,
    );
    if sent.is_err() {
        // This thread must not drop the last reference either.
        std::mem::forget(lingering);
    }
    sent?;
    Ok(theirs)
}

/// Runs `work` on a thread of its own and returns the result.
///
/// # Panics
/// If that thread sleeps.
pub(crate) fn does_not_sleep<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    is_done.recv_timeout(SOON).expect("the thread sleeps")
}

#[test]
fn what_tests_attach_does_make_a_thread_sleep() {
    let (lingering, _theirs) = lingering();
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        drop(lingering);
        let _ = done.send(());
    });
    let asleep = is_done.recv_timeout(Duration::from_secs(2));
    assert_eq!(asleep, Err(mpsc::RecvTimeoutError::Timeout));
}
