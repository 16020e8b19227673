//! Messages with attached descriptors: each is the last reference of a socket with SO_LINGER, so
//! the thread that drops the reference sleeps.

use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, setsockopt, sockopt};
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use vgpu_proto::handshake::{DATA_MAGIC, Welcome};
use vgpu_proto::look::question;
use vgpu_tests::host::Host;
use vgpu_tests::hostile::{Session, connect};
use vgpu_tests::wait::{SOON, until};
use vgpu_wire::{Answer, answer};

use super::Scene;

/// Time for which a thread sleeps that drops such a reference, in s: twice the time that anything
/// below may take.
const LINGERS_S: i32 = 2 * SOON.as_secs() as i32;

const SO_PASSRIGHTS: libc::c_int = 83;
sockopt_impl!(
    /// Whether peers may attach descriptors to messages for a socket (since Linux 6.16).
    PassRights,
    Both,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    bool
);

/// Sends bytes with the last reference of a socket with SO_LINGER. Returns the peer of that socket,
/// or `None` if the kernel refuses the descriptor.
fn attach(socket: &UnixStream, bytes: &[u8], flags: MsgFlags) -> Result<Option<TcpStream>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    setsockopt(&listener, sockopt::RcvBuf, &4_096)?;
    let mut lingering = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    lingering.set_nonblocking(true)?;
    while lingering.write(&[0; 65_536]).is_ok() {}
    let linger = |seconds| libc::linger {
        l_onoff: 1,
        l_linger: seconds,
    };
    setsockopt(&lingering, sockopt::Linger, &linger(LINGERS_S))?;
    let rights = [lingering.as_raw_fd()];
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::ScmRights(&rights)],
        flags | MsgFlags::MSG_NOSIGNAL,
        None,
    );
    if sent.is_err() {
        setsockopt(&lingering, sockopt::Linger, &linger(0))?;
    }
    close_before_forks(lingering)?;
    match sent {
        Ok(_) => Ok(Some(peer)),
        Err(nix::Error::EPERM) => Ok(None),
        Err(e) => Err(e).context("attaching a descriptor"),
    }
}

/// Closes a socket that lingers, in a thread of its own: if vgpud has closed the connection by now,
/// this is the last reference, and the thread sleeps. Returns when the descriptor is closed. A
/// child that the test forks earlier would inherit the descriptor and sleep itself when its `exec`
/// closes the last reference.
fn close_before_forks(lingering: TcpStream) -> Result<()> {
    let descriptor = format!("/proc/self/fd/{}", lingering.as_raw_fd());
    let socket = std::fs::read_link(&descriptor)?;
    std::thread::spawn(move || drop(lingering));
    until("the descriptor is closed", SOON, || {
        let open = std::fs::read_link(&descriptor).is_ok_and(|to| to == socket);
        (!open).then_some(())
    })
}

/// Has vgpud's Unix listeners take descriptors, as on a kernel that cannot refuse them. False: the
/// kernel is one.
fn as_on_an_old_kernel(host: &Host) -> Result<bool> {
    let pid = i32::try_from(host.pid())?;
    let vgpud = pidfd_open(
        Pid::from_raw(pid).context("a process")?,
        PidfdFlags::empty(),
    )?;
    let mut changed = false;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let is_socket = |to: &Path| to.to_string_lossy().starts_with("socket:");
        if !std::fs::read_link(entry.path()).is_ok_and(|to| is_socket(&to)) {
            continue;
        }
        let number = entry.file_name().to_string_lossy().parse()?;
        let fd = pidfd_getfd(&vgpud, number, PidfdGetfdFlags::empty())?;
        if getsockopt(&fd, sockopt::AcceptConn) == Ok(true)
            && nix::sys::socket::getsockname::<nix::sys::socket::UnixAddr>(fd.as_raw_fd()).is_ok()
        {
            changed |= setsockopt(&fd.as_fd(), PassRights, &true).is_ok();
        }
    }
    Ok(changed)
}

/// VM 1 and a caller of the admin API attach lingering sockets in every way, while VM 2 and
/// administrators are served. Returns the number of descriptors that the kernel accepted.
fn attack(scene: &Scene) -> Result<usize> {
    let host = &scene.host;
    let begun = Instant::now();
    let look = question();
    let [first, rest] = [&look[..1], &look[1..]];
    let mut held = Vec::new();
    for round in 0..4 {
        for (before, with, flags, behind) in [
            // Attached to the first bytes of a message, and to later bytes.
            (&[][..], &look[..], MsgFlags::empty(), &[][..]),
            (first, rest, MsgFlags::empty(), &[]),
            // Attached to bytes that vgpud does not read, or reads together with other bytes.
            (&look, &[0], MsgFlags::empty(), &[]),
            (&[], &[0], MsgFlags::MSG_OOB, &look),
            (&[], &DATA_MAGIC, MsgFlags::empty(), &[0; 16]),
        ] {
            let mut socket = connect(host, 1)?;
            // vgpud may have closed the connection by now.
            let _ = socket.write_all(before);
            let attached = attach(&socket, with, flags);
            let _ = socket.write_all(behind);
            held.extend(attached.ok().flatten().map(|peer| (peer, round, socket)));
        }
        let caller = UnixStream::connect(host.admin_socket())?;
        let attached = attach(&caller, b"G", MsgFlags::empty())?;
        held.extend(attached.map(|peer| (peer, round, caller)));
        host.admin("status")?;
        let mut session = Session::open(host, 2)?;
        session.primary()?;
    }
    if let Some((_, _, socket)) = held.first_mut()
        && let Answer::Refused(_, text) = answer::<Welcome>(socket)?
    {
        ensure!(text.contains("descriptors are attached"), "{text}");
    }
    ensure!(begun.elapsed() < 2 * SOON, "somebody slept");
    Ok(held.len())
}

#[test]
fn sockets_that_linger_and_are_attached_hold_up_nobody_else() -> Result<()> {
    let scene = Scene::new()?;
    let doctor = scene.host.admin("doctor")?;
    ensure!(doctor.contains("attached-descriptors"), "{doctor}");
    attack(&scene)?;
    scene.unharmed()
}

#[test]
fn sockets_that_linger_hold_up_nobody_else_on_a_kernel_that_lets_them_through() -> Result<()> {
    let scene = Scene::new()?;
    let through = |scene| attack(scene).map(|through| through > 0);
    match as_on_an_old_kernel(&scene.host) {
        Err(e) => {
            eprintln!("SKIPPED: vgpud's listeners cannot be changed here: {e:#}");
            return Ok(());
        }
        Ok(_) => ensure!(through(&scene)?, "the kernel lets nothing through"),
    }
    scene.unharmed()
}
