//! Descriptors that a peer attaches to what it sends over a Unix socket (`SCM_RIGHTS`, unix(7)).
//!
//! vgpud takes none. But the kernel keeps them with the bytes, and who reads without room for them,
//! or closes the socket with them unread, may drop their last references: with a TCP socket that
//! lingers (`SO_LINGER`, socket(7)) that thread sleeps as long as the peer likes.

use std::os::fd::AsFd;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, getsockopt, setsockopt, socket, sockopt::OobInline,
};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

/// linux/include/uapi/asm-generic/socket.h, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

sockopt_impl!(
    /// Whether peers may attach descriptors to what they send to this socket.
    PassRights,
    Both,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    bool
);

/// Has the kernel refuse descriptors that are attached to what is sent to this socket: the sender
/// gets EPERM. What a listener accepts is like the listener; it must be told before it listens.
/// Older kernels cannot: then nothing changes.
pub(crate) fn refuse(socket: &impl AsFd) {
    // ENOPROTOOPT: an older kernel. Who reads and closes asks whether it was done.
    let _ = setsockopt(socket, PassRights, &false);
}

/// Whether the kernel has refused descriptors to this socket since before a peer had it.
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

/// Urgent bytes become bytes like others, in their place. Otherwise the kernel skips them when it
/// shows what there is, and releases them, with the descriptors attached to them, at the next read.
pub(super) fn show_urgent_bytes(socket: &impl AsFd) {
    // Every socket has this option.
    let _ = setsockopt(socket, OobInline, &true);
}

/// As on a kernel that cannot refuse descriptors.
#[cfg(test)]
pub(crate) fn allow(socket: &impl AsFd) {
    let _ = setsockopt(socket, PassRights, &true);
}
