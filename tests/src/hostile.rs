//! A guest that uses the wire directly, correctly or not, without the guest library.

use std::io::Write;
use std::net::Shutdown;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;

use anyhow::{Result, bail};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::{ControlNote, Welcome};
use vgpu_wire::{Answer, Link, answer, data_opening, right_greeting};

use crate::host::Host;

/// A bare connection to a VM's socket.
///
/// # Errors
/// If nothing listens there.
pub fn connect(host: &Host, vm: u32) -> Result<UnixStream> {
    vgpu_wire::connect(&host.vm_socket(vm))
}

/// Connects, sends these bytes and reads the answer.
///
/// # Errors
/// As [`connect`] and [`answer`].
pub fn knock(host: &Host, vm: u32, bytes: &[u8]) -> Result<Answer> {
    let mut socket = connect(host, vm)?;
    socket.write_all(bytes)?;
    answer(&mut socket)
}

/// Opens a control connection.
///
/// # Errors
/// If the guest is refused.
pub fn open_control(host: &Host, vm: u32) -> Result<(UnixStream, Welcome)> {
    let mut socket = connect(host, vm)?;
    socket.write_all(&right_greeting())?;
    match answer(&mut socket)? {
        Answer::Welcome(welcome) => Ok((socket, *welcome)),
        other => bail!("not welcome: {other:?}; the log:\n{}", host.log()),
    }
}

/// An open session.
#[derive(Debug)]
pub struct Session {
    /// vgpud's first answer.
    pub welcome: Welcome,
    link: Link,
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// If the guest is refused.
    pub fn open(host: &Host, vm: u32) -> Result<Session> {
        let opened = open_control(host, vm)?;
        Session::of(host, vm, opened)
    }

    /// Opens the data connection of a session that has its control connection.
    ///
    /// # Errors
    /// If nothing listens there.
    pub fn of(host: &Host, vm: u32, (control, welcome): (UnixStream, Welcome)) -> Result<Session> {
        let mut data = connect(host, vm)?;
        data.write_all(&data_opening(&welcome.nonce))?;
        let link = Link::new(data, Some(control));
        Ok(Session { welcome, link })
    }

    /// Waits until the host has closed both connections. Returns its message on the control
    /// connection.
    ///
    /// # Errors
    /// If the host does not, or closes without a message.
    pub fn ended(&mut self) -> Result<(CuResult, String)> {
        let note = self.note()?;
        while self.read_frame()? {}
        match note {
            Some((ControlNote::Ended, code, text)) => Ok((code, text)),
            other => bail!("the session's end was due on the control connection: {other:?}"),
        }
    }

    /// Closes the data connection.
    pub fn hang_up(&self) {
        // An error means that the host has already closed it.
        let _ = self.data.shutdown(Shutdown::Both);
    }
}

impl Deref for Session {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}
