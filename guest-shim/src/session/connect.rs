//! Opening a session: control connection, handshake, data connection.

use std::io::{Error, ErrorKind};
use std::os::fd::RawFd;
use std::time::Duration;

use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::codec;
use vgpu_proto::cuda::{CuResult, OFFERED_CUDA_VERSION};
use vgpu_proto::handshake::{
    DATA_MAGIC, HELLO_MAGIC, Hello, PROTOCOL, Preamble, REPLY_PREAMBLE_LEN, Refusal, ReplyPreamble,
    WELCOME_MAGIC, Welcome,
};
use vgpu_proto::limits::{MAX_DEVICES, MAX_HANDSHAKE, MAX_TEXT};
use zerocopy::IntoBytes as _;

use super::address::Address;
use super::sys::{self, UserMemory};

/// How long the host may take to answer: it starts a worker, and the driver may take seconds.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(60);

/// Why there is no session.
#[derive(Debug)]
pub(crate) struct NoSession {
    /// What cuInit returns.
    pub(crate) code: CuResult,
    /// A sentence for standard error.
    pub(crate) text: String,
}

impl NoSession {
    fn unavailable(text: String) -> NoSession {
        NoSession {
            code: CuResult::DEVICE_UNAVAILABLE,
            text,
        }
    }
}

/// A session's connections, and what the daemon told.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Stays with vgpud.
    pub(crate) control: RawFd,
    /// Goes to the worker.
    pub(crate) data: RawFd,
    /// The daemon's answer.
    pub(crate) welcome: Welcome,
}

/// Closes on drop unless taken: a handshake that fails leaves no descriptor behind.
struct Socket(RawFd);

impl Socket {
    fn take(mut self) -> RawFd {
        std::mem::replace(&mut self.0, -1)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.0 >= 0 {
            sys::close(self.0);
        }
    }
}

/// Opens a session at `address`.
///
/// # Errors
/// [`NoSession`]: a refusal with the daemon's sentence, or CUDA_ERROR_DEVICE_UNAVAILABLE when there
/// is nobody to answer.
pub(crate) fn open(address: &Address) -> Result<Opened, NoSession> {
    let control = connect(address)?;
    let welcome = greet(&control, address)?;
    let data = connect(address)?;
    let mut opening = Vec::with_capacity(64);
    opening.extend_from_slice(&DATA_MAGIC);
    opening.extend_from_slice(&welcome.nonce);
    send_all(&data, &opening).map_err(|e| lost(address, &e))?;
    for socket in [&control, &data] {
        sys::set_timeouts(socket.0, Duration::ZERO).map_err(|e| lost(address, &e))?;
    }
    Ok(Opened {
        control: control.take(),
        data: data.take(),
        welcome,
    })
}

fn connect(address: &Address) -> Result<Socket, NoSession> {
    let family = match address {
        Address::Vsock { .. } => libc::AF_VSOCK,
        Address::Unix(_) => libc::AF_UNIX,
    };
    let attempt = || -> Result<Socket, Error> {
        let socket = Socket(sys::socket(family)?);
        sys::set_timeouts(socket.0, HANDSHAKE_LIMIT)?;
        match address {
            Address::Vsock { cid, port } => sys::connect_vsock(socket.0, *cid, *port)?,
            Address::Unix(path) => sys::connect_unix(socket.0, path.as_bytes())?,
        }
        Ok(socket)
    };
    attempt().map_err(|e| {
        NoSession::unavailable(format!(
            "no vgpud answers at {address} ({e}); is it running on the host, and is VGPU_ADDRESS right?"
        ))
    })
}

fn greet(control: &Socket, address: &Address) -> Result<Welcome, NoSession> {
    let body = codec::encode(&hello()).map_err(|e| NoSession {
        code: CuResult::OPERATING_SYSTEM,
        text: e.to_string(),
    })?;
    let preamble = Preamble {
        magic: HELLO_MAGIC,
        protocol: PROTOCOL.into(),
        body_len: (body.len() as u32).into(),
        fingerprint: FINGERPRINT.into(),
    };
    let mut message = preamble.as_bytes().to_vec();
    message.extend_from_slice(&body);
    send_all(control, &message).map_err(|e| lost(address, &e))?;

    let mut head = [0_u8; REPLY_PREAMBLE_LEN];
    receive_all(control, &mut head).map_err(|e| lost(address, &e))?;
    let reply: ReplyPreamble = zerocopy::transmute!(head);
    let garbled = |what: &str| NoSession {
        code: CuResult::SYSTEM_DRIVER_MISMATCH,
        text: format!("what answers at {address} is not a vgpud of this version: {what}"),
    };
    if reply.magic != WELCOME_MAGIC {
        return Err(garbled("the answer does not begin as it should"));
    }
    let (code, len) = (reply.code.get(), reply.body_len.get() as usize);
    if len > if code == 0 { MAX_HANDSHAKE } else { MAX_TEXT } {
        return Err(garbled("the answer is too long"));
    }
    let mut body = vec![0; len];
    receive_all(control, &mut body).map_err(|e| lost(address, &e))?;
    if code != 0 {
        let text = String::from_utf8_lossy(&body).into_owned();
        let code = Refusal::from_code(code).map_or(CuResult::OPERATING_SYSTEM, Refusal::cu_result);
        return Err(NoSession {
            code,
            text: format!("the host refused this program: {text}"),
        });
    }
    let welcome: Welcome = codec::decode(&body).map_err(|e| garbled(&e.to_string()))?;
    if welcome.devices.len() > MAX_DEVICES {
        return Err(garbled("it offers too many devices"));
    }
    Ok(welcome)
}

fn hello() -> Hello {
    let program = std::env::current_exe()
        .ok()
        .and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| "unknown".to_owned());
    Hello {
        shim_version: env!("CARGO_PKG_VERSION").to_owned(),
        cuda_version: OFFERED_CUDA_VERSION,
        pid: std::process::id(),
        program: program.chars().take(256).collect(),
    }
}

fn lost(address: &Address, e: &Error) -> NoSession {
    let what = match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("vgpud at {address} did not answer within {HANDSHAKE_LIMIT:?}")
        }
        ErrorKind::UnexpectedEof => format!("vgpud at {address} closed the connection"),
        _ => format!("the connection to vgpud at {address} failed ({e})"),
    };
    NoSession::unavailable(format!("{what}; see its log on the host"))
}

fn send_all(socket: &Socket, mut bytes: &[u8]) -> Result<(), Error> {
    let none = UserMemory {
        at: std::ptr::null_mut(),
        len: 0,
    };
    while !bytes.is_empty() {
        match sys::send(socket.0, bytes, none) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if !sys::poll(socket.0, libc::POLLOUT, HANDSHAKE_LIMIT)? {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive_all(socket: &Socket, mut bytes: &mut [u8]) -> Result<(), Error> {
    let none = UserMemory {
        at: std::ptr::null_mut(),
        len: 0,
    };
    while !bytes.is_empty() {
        match sys::receive(socket.0, none, bytes, true)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => bytes = &mut bytes[n..],
        }
    }
    Ok(())
}
