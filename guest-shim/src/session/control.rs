//! The control connection after the Welcome: the cause of the session's end, and the goodbye.

use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::handshake::{CONTROL_HEADER_LEN, ControlHeader, ControlNote};
use vgpu_proto::limits::MAX_TEXT;
use zerocopy::IntoBytes as _;

use super::{NO_BULK, Session};
use crate::{lock, log, sys};

/// The control connection, and the bytes of a note that has arrived in part.
#[derive(Debug)]
pub(crate) struct Control {
    fd: RawFd,
    partial: Mutex<Vec<u8>>,
}

impl Control {
    /// Takes over the connection after the handshake.
    pub(crate) fn new(fd: RawFd) -> Control {
        Control {
            fd,
            partial: Mutex::default(),
        }
    }

    /// The descriptor of the connection.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// Reads and handles the available notes; false when the connection is closed or broken.
    pub(crate) fn read(&self, session: &Session) -> bool {
        let mut partial = lock(&self.partial);
        let mut bytes = [0_u8; 1024];
        loop {
            match sys::receive(self.fd, NO_BULK, &mut bytes, false) {
                Ok(0) => {
                    session.end(CuResult::DEVICE_UNAVAILABLE, "vgpud on the host is gone");
                    return false;
                }
                Ok(n) => partial.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) => {
                    let why = format!("the connection to vgpud failed ({e})");
                    session.end(CuResult::DEVICE_UNAVAILABLE, &why);
                    return false;
                }
            }
            if let Err(why) = act(session, &mut partial) {
                session.end(CuResult::SYSTEM_DRIVER_MISMATCH, &why);
                return false;
            }
        }
    }

    /// Waits for a note that ends the session, at most for `limit`.
    pub(crate) fn await_cause(&self, session: &Session, limit: Duration) {
        let end = Instant::now() + limit;
        while session.not_ended().is_ok() {
            let left = end.saturating_duration_since(Instant::now());
            // Short waits: if the pump reads the note instead, this thread must see that soon.
            let step = left.min(Duration::from_millis(20));
            match sys::poll(self.fd, libc::POLLIN, step) {
                Ok(true) => {
                    if !self.read(session) {
                        return;
                    }
                }
                Ok(false) if !left.is_zero() => {}
                _ => return,
            }
        }
    }

    /// Tells vgpud that the process ends normally. Never blocks.
    pub(crate) fn goodbye(&self) {
        let note = ControlHeader {
            kind: (ControlNote::Goodbye as u32).into(),
            code: 0.into(),
            text_len: 0.into(),
        };
        let _ = sys::send(self.fd, note.as_bytes(), NO_BULK);
    }
}

/// Handles the complete notes in `bytes` and removes them.
fn act(session: &Session, bytes: &mut Vec<u8>) -> Result<(), String> {
    while let Some(head) = bytes.first_chunk::<CONTROL_HEADER_LEN>() {
        let header: ControlHeader = zerocopy::transmute!(*head);
        let len = header.text_len.get() as usize;
        if len > MAX_TEXT {
            return Err("vgpud sent a note that is too long".to_owned());
        }
        let Some(text) = bytes.get(CONTROL_HEADER_LEN..CONTROL_HEADER_LEN + len) else {
            return Ok(());
        };
        let text = String::from_utf8_lossy(text).into_owned();
        bytes.drain(..CONTROL_HEADER_LEN + len);
        match ControlNote::from_kind(header.kind.get()) {
            Some(ControlNote::Ended) => session.end(CuResult(header.code.get()), &text),
            Some(ControlNote::Draining) => {
                log::line(log::Level::Info, &format!("the host drains: {text}"));
            }
            Some(ControlNote::Goodbye) | None => {
                return Err("vgpud sent an unknown note".to_owned());
            }
        }
    }
    Ok(())
}
