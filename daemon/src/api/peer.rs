//! Identity of the peer of a Unix socket: uid, process and groups, as the kernel reports them
//! (`SO_PEERCRED`, `SO_PEERGROUPS`; unix(7), socket(7)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::libc;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Largest number of groups of a process (NGROUPS_MAX; credentials(7)).
const MOST_GROUPS: usize = 65_536;

/// The caller's identity at the time of connecting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerIdentity {
    pub(super) uid: u32,
    pub(super) pid: Option<u32>,
    pub(super) gids: Vec<u32>,
}

/// Asks the kernel for the peer's identity.
///
/// # Errors
/// If the kernel does not report the identity. vgpud then closes the connection.
pub(super) fn identity(socket: &impl AsFd) -> io::Result<PeerIdentity> {
    let credentials = getsockopt(socket, PeerCredentials)?;
    let mut gids = peer_groups(socket)?;
    gids.push(credentials.gid());
    Ok(PeerIdentity {
        uid: credentials.uid(),
        pid: u32::try_from(credentials.pid()).ok().filter(|&pid| pid > 0),
        gids,
    })
}

fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let bytes = size_of_val(groups.as_slice());
        let mut length = libc::socklen_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: `groups` is valid for writes of `length` bytes. The kernel writes at most
        // `length` bytes, and sets `length` to the size of the list. gid_t is u32 on Linux.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // ERANGE: the buffer is too small, and `length` is the needed size.
        let larger = groups.len() < count && count <= MOST_GROUPS;
        if error.raw_os_error() != Some(libc::ERANGE) || !larger {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_who_we_are() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = identity(&ours).unwrap();
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(peer.pid, Some(std::process::id()));
        assert!(peer.gids.contains(&nix::unistd::getegid().as_raw()));
        for group in nix::unistd::getgroups().unwrap() {
            assert!(peer.gids.contains(&group.as_raw()));
        }
    }
}
