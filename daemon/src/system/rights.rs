//! Descriptors that a peer attaches to the bytes that the peer sends over a Unix socket
//! (`SCM_RIGHTS`, unix(7)).
//!
//! vgpud accepts no descriptors from a guest. The kernel nevertheless queues sent descriptors with
//! the bytes. A thread that reads the bytes without room for descriptors, or closes the socket with
//! unread bytes, may drop the last reference of a descriptor. If that is a TCP socket with
//! `SO_LINGER` (socket(7)), the thread sleeps for a time that the peer chose.

use std::os::fd::AsFd;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, getsockopt, setsockopt, socket, sockopt::OobInline,
};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

/// linux/include/uapi/asm-generic/socket.h, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

sockopt_impl!(
    /// Whether peers may attach descriptors to the bytes that they send to this socket.
    PassRights,
    Both,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    bool
);

/// Tells the kernel to refuse descriptors that peers attach to messages for this socket: the sender
/// gets EPERM. Accepted sockets inherit the setting, so a listener needs the setting before
/// listen(2). Has no effect on kernels before Linux 6.16.
pub(crate) fn refuse(socket: &impl AsFd) {
    // ENOPROTOOPT: an older kernel. Readers and closers check with `are_refused`.
    let _ = setsockopt(socket, PassRights, &false);
}

/// Whether the kernel refuses descriptors for this socket.
pub(crate) fn are_refused(socket: &impl AsFd) -> bool {
    getsockopt(socket, PassRights) == Ok(false)
}

/// Whether this kernel can refuse descriptors.
pub(crate) fn can_be_refused() -> bool {
    let asked = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    );
    asked.is_ok_and(|socket| {
        refuse(&socket);
        are_refused(&socket)
    })
}

/// Puts urgent bytes in line with the other bytes. Otherwise a peek skips urgent bytes, and the
/// next read releases the urgent bytes and the descriptors attached to the urgent bytes.
pub(super) fn show_urgent_bytes(socket: &impl AsFd) {
    // Every socket has this option.
    let _ = setsockopt(socket, OobInline, &true);
}

/// Lets descriptors through, as a kernel before Linux 6.16 does.
#[cfg(test)]
pub(crate) fn allow(socket: &impl AsFd) {
    let _ = setsockopt(socket, PassRights, &true);
}
