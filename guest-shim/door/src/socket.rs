//! A connection to vgpud with one deadline for the whole exchange.

use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrLike, UnixAddr, VsockAddr, connect, recv,
    send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use vgpu_proto::handshake::{REPLY_PREAMBLE_LEN, Refusal, ReplyPreamble, WELCOME_MAGIC};
use vgpu_proto::limits::{MAX_HANDSHAKE, MAX_TEXT};
use vgpu_proto::text::printable;

use crate::address::Address;
use crate::fd::beyond_standard;

/// The reason for which vgpud gave no valid answer.
#[derive(Debug)]
pub enum Failure {
    /// Nothing listens at the address.
    Nobody(String),
    /// This machine or this program lacks a descriptor or memory for the connection.
    Lacking(String),
    /// The connection broke, or the deadline passed.
    Lost(String),
    /// The peer is not a vgpud of this version.
    Garbled(String),
    /// vgpud refused, with a sentence. `None`: this version does not know the number of the
    /// refusal.
    Refused(Option<Refusal>, String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Nobody(text)
            | Failure::Lacking(text)
            | Failure::Lost(text)
            | Failure::Garbled(text) => f.write_str(text),
            Failure::Refused(_, text) => write!(f, "the host refused this program: {text}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A connection. It is closed on drop, so that a failed exchange leaks no descriptor.
#[derive(Debug)]
pub struct Socket<'a> {
    fd: OwnedFd,
    address: &'a Address,
    limit: Duration,
    until: Instant,
}

impl Socket<'_> {
    /// Connects. `limit` covers the connection and the whole exchange through this value.
    ///
    /// # Errors
    /// [`Failure::Nobody`], [`Failure::Lacking`].
    pub fn connect(address: &Address, limit: Duration) -> Result<Socket<'_>, Failure> {
        let until = Instant::now() + limit;
        let connected = match address {
            Address::Vsock { cid, port } => {
                open(AddressFamily::Vsock, &VsockAddr::new(*cid, *port), limit)
            }
            Address::Unix(path) => UnixAddr::new(path.as_bytes())
                .and_then(|place| open(AddressFamily::Unix, &place, limit)),
        };
        let fd = connected.map_err(|e| {
            let text = unconnected(address, e);
            match e {
                Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS => {
                    Failure::Lacking(text)
                }
                _ => Failure::Nobody(text),
            }
        })?;
        Ok(Socket {
            fd,
            address,
            limit,
            until,
        })
    }

    /// Sends all bytes. Never raises SIGPIPE.
    ///
    /// # Errors
    /// [`Failure::Lost`].
    pub fn send(&self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.fd.as_raw_fd(), bytes, flags) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLOUT)?,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(self.lost(&e.into())),
            }
        }
        Ok(())
    }

    /// Receives vgpud's answer to a Hello or a look, and returns its body.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn answer(&self) -> Result<Vec<u8>, Failure> {
        let mut head = [0; REPLY_PREAMBLE_LEN];
        self.receive(&mut head)?;
        let reply: ReplyPreamble = zerocopy::transmute!(head);
        if reply.magic != WELCOME_MAGIC {
            return Err(self.garbled("the answer does not begin as it should"));
        }
        let (code, len) = (reply.code.get(), reply.body_len.get() as usize);
        if len > if code == 0 { MAX_HANDSHAKE } else { MAX_TEXT } {
            return Err(self.garbled("the answer is too long"));
        }
        let mut body = vec![0; len];
        self.receive(&mut body)?;
        if code != 0 {
            let text = printable(&String::from_utf8_lossy(&body), MAX_TEXT);
            return Err(Failure::Refused(Refusal::from_code(code), text));
        }
        Ok(body)
    }

    /// [`Failure::Garbled`]: the peer is not a vgpud of this version. `what` says what is wrong
    /// with the answer.
    #[must_use]
    pub fn garbled(&self, what: &str) -> Failure {
        let address = self.address;
        Failure::Garbled(format!(
            "what answers at {address} is not a vgpud of this version, or no vgpud at all: {what}; VGPU_ADDRESS has to \
             name the VM's vgpu.sock, and library and vgpud have to be of one version"
        ))
    }

    /// Returns the descriptor without the send timeout. The caller closes the descriptor.
    ///
    /// # Errors
    /// [`Failure::Lost`].
    pub fn into_raw(self) -> Result<RawFd, Failure> {
        setsockopt(&self.fd, sockopt::SendTimeout, &TimeVal::new(0, 0))
            .map_err(|e| self.lost(&e.into()))?;
        Ok(self.fd.into_raw_fd())
    }

    fn receive(&self, mut bytes: &mut [u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            match recv(self.fd.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(self.lost(&ErrorKind::UnexpectedEof.into())),
                Ok(got) => bytes = &mut bytes[got..],
                Err(Errno::EAGAIN) => self.wait(PollFlags::POLLIN)?,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(self.lost(&e.into())),
            }
        }
        Ok(())
    }

    fn wait(&self, event: PollFlags) -> Result<(), Failure> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.lost(&ErrorKind::TimedOut.into()));
        }
        let left = PollTimeout::try_from(left + Duration::from_millis(1));
        match poll(
            &mut [PollFd::new(self.fd.as_fd(), event)],
            left.unwrap_or(PollTimeout::MAX),
        ) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(self.lost(&e.into())),
        }
    }

    fn lost(&self, e: &Error) -> Failure {
        let address = self.address;
        let what = match e.kind() {
            ErrorKind::TimedOut => {
                format!("vgpud at {address} did not answer within {:?}", self.limit)
            }
            ErrorKind::UnexpectedEof => format!("vgpud at {address} closed the connection"),
            _ => format!("the connection to vgpud at {address} failed ({e})"),
        };
        Failure::Lost(format!("{what}; see its log on the host"))
    }
}

/// Why no connection was made, with the way out.
fn unconnected(address: &Address, e: Errno) -> String {
    let why = Error::from(e);
    match (address, e) {
        (_, Errno::EACCES | Errno::EPERM) => format!(
            "this user may not connect to {address} ({why}): the socket is another user's; the host's administrator \
             registers the VM with the user's number (vgpu-admin register-vm --peer-uid=...)"
        ),
        (_, Errno::EMFILE) => format!(
            "this program has no free descriptor for the connection to {address} ({why}): close files, or raise the \
             limit (ulimit -n)"
        ),
        (_, Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
            format!(
                "this machine has no room for the connection to {address} ({why}): end other programs"
            )
        }
        (Address::Unix(_), Errno::ENOENT) => format!(
            "no vgpud answers at {address} ({why}): the VM is not registered on the host, the VM's directory of the \
             host is not mounted there, or VGPU_ADDRESS is wrong"
        ),
        (Address::Vsock { .. }, Errno::ENODEV) => format!(
            "this VM has no vsock device, so it cannot reach {address} ({why}): load the module of this VM's \
             hypervisor (modprobe vmw_vsock_virtio_transport), or have the host's administrator give the VM a \
             vsock device"
        ),
        (Address::Vsock { .. }, Errno::EAFNOSUPPORT) => format!(
            "the vsock module is not loaded in this VM, so it cannot reach {address} ({why}): load it \
             (modprobe vsock), or use a kernel that has it"
        ),
        _ => format!(
            "no vgpud answers at {address} ({why}); is it running on the host, and is VGPU_ADDRESS right?"
        ),
    }
}

fn open(family: AddressFamily, place: &dyn SockaddrLike, limit: Duration) -> nix::Result<OwnedFd> {
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let fd = beyond_standard(fd).map_err(|_| Errno::EMFILE)?;
    // `connect` blocks while the listener's queue of connections is full.
    let seconds = limit.as_secs().try_into().unwrap_or(i64::MAX);
    let limit = TimeVal::new(seconds, limit.subsec_micros().into());
    setsockopt(&fd, sockopt::SendTimeout, &limit)?;
    loop {
        match connect(fd.as_raw_fd(), place) {
            Err(Errno::EINTR) => {}
            done => return done.map(|()| fd),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_without_vsock_is_told_apart_from_a_host_without_vgpud() {
        let vsock = Address::Vsock { cid: 2, port: 9440 };
        let device = unconnected(&vsock, Errno::ENODEV);
        assert!(
            device.starts_with("this VM has no vsock device"),
            "{device}"
        );
        let module = unconnected(&vsock, Errno::EAFNOSUPPORT);
        assert!(
            module.starts_with("the vsock module is not loaded"),
            "{module}"
        );
        let full = unconnected(&vsock, Errno::EMFILE);
        assert!(full.contains("ulimit -n"), "{full}");
        for e in [Errno::ECONNREFUSED, Errno::ECONNRESET, Errno::ETIMEDOUT] {
            let nobody = unconnected(&vsock, e);
            assert!(
                nobody.starts_with("no vgpud answers at vsock:2:9440"),
                "{nobody}"
            );
        }
    }
}
