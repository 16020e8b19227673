//! The host's side of a guest program's looks, and the state of threads.

use std::io::Read as _;
use std::os::unix::net::{UnixListener, UnixStream};

use vgpu_proto::handshake::PREAMBLE_LEN;
use vgpu_proto::look::question;

/// Accepts the next look and returns its connection. The look is not answered yet.
pub(crate) fn asked(door: &UnixListener) -> UnixStream {
    let (mut guest, _) = door.accept().expect("a guest looks");
    let mut head = [0; PREAMBLE_LEN];
    guest.read_exact(&mut head).expect("it asks");
    assert_eq!(head, question());
    guest
}

/// Whether a thread of this process sleeps.
pub(crate) fn is_asleep(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| stat.contains(") S "))
}
