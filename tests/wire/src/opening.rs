//! The opening of a session, and the messages on its control connection.

use std::fmt::Debug;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::codec::{Decode, decode, encode};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::{
    ControlHeader, ControlNote, DATA_MAGIC, HELLO_MAGIC, Hello, PROTOCOL, Preamble, Refusal,
    ReplyPreamble, WELCOME_MAGIC, Welcome,
};
use vgpu_proto::limits::MAX_HANDSHAKE;
use zerocopy::IntoBytes;

use crate::{SOON, body, head};

/// vgpud's answer to a Hello, or to a look.
#[derive(Debug)]
pub enum Answer<T = Welcome> {
    /// The session is open, or the VM is described.
    Welcome(Box<T>),
    /// vgpud refuses, with the code of the refusal and vgpud's sentence for the guest.
    Refused(Refusal, String),
    /// The connection was closed without an answer.
    Closed,
}

impl<T: Debug> Answer<T> {
    /// Returns vgpud's sentence for the guest if this answer is a refusal with `code`.
    ///
    /// # Errors
    /// If this is another answer.
    pub fn refusal(self, code: Refusal) -> Result<String> {
        match self {
            Answer::Refused(found, text) if found == code => Ok(text),
            other => bail!("{code:?} was due; the answer is {other:?}"),
        }
    }
}

/// A bare connection to a socket for guests, with timeouts.
///
/// # Errors
/// If nothing listens there.
pub fn connect(path: &Path) -> Result<UnixStream> {
    let socket = UnixStream::connect(path);
    with_timeouts(socket.with_context(|| format!("connecting to {}", path.display()))?)
}

/// Has reads and writes fail after [`SOON`].
///
/// # Errors
/// If the system refuses.
pub fn with_timeouts(socket: UnixStream) -> Result<UnixStream> {
    socket.set_read_timeout(Some(SOON))?;
    socket.set_write_timeout(Some(SOON))?;
    Ok(socket)
}

/// A valid Hello, of a library whose version no vgpud has.
pub fn hello() -> Hello {
    Hello {
        shim_version: "0.0.7-test".into(),
        cuda_version: 12_040,
        pid: 42,
        program: "test".into(),
    }
}

/// A preamble of any version with any body.
pub fn greeting(protocol: u32, fingerprint: u64, body: &[u8]) -> Vec<u8> {
    let preamble = Preamble {
        magic: HELLO_MAGIC,
        protocol: protocol.into(),
        body_len: (body.len() as u32).into(),
        fingerprint: fingerprint.into(),
    };
    [preamble.as_bytes(), body].concat()
}

/// A valid preamble and Hello.
pub fn right_greeting() -> Vec<u8> {
    let body = encode(&hello()).expect("a short message");
    greeting(PROTOCOL, FINGERPRINT, &body)
}

/// The begin of a data connection.
pub fn data_opening(nonce: &[u8]) -> Vec<u8> {
    [&DATA_MAGIC[..], nonce].concat()
}

/// Reads vgpud's answer.
///
/// # Errors
/// If the answer is invalid or does not arrive.
pub fn answer<T: Decode<()>>(stream: &mut impl Read) -> Result<Answer<T>> {
    let Some(head) = head::<ReplyPreamble>(stream)? else {
        return Ok(Answer::Closed);
    };
    ensure!(head.magic == WELCOME_MAGIC, "not an answer: {head:?}");
    let (code, len) = (head.code.get(), head.body_len.get() as usize);
    ensure!(len <= MAX_HANDSHAKE, "an answer of {len} bytes");
    let body = body(stream, len)?;
    match Refusal::from_code(code) {
        Some(refusal) => Ok(Answer::Refused(refusal, String::from_utf8(body)?)),
        None if code == 0 => Ok(Answer::Welcome(Box::new(decode(&body)?))),
        None => bail!("an answer with code {code}"),
    }
}

/// A message on the control connection: kind, code and text. `None`: the connection ended.
///
/// # Errors
/// If the message is invalid or does not arrive.
pub fn control_note(stream: &mut impl Read) -> Result<Option<(ControlNote, CuResult, String)>> {
    let Some(head) = head::<ControlHeader>(stream)? else {
        return Ok(None);
    };
    let kind = ControlNote::from_kind(head.kind.get()).context("an unknown message")?;
    let text = String::from_utf8(body(stream, head.text_len.get() as usize)?)?;
    Ok(Some((kind, CuResult(head.code.get()), text)))
}
