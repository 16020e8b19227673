//! The guest's side of the wire, for tests: messages that are valid or not, without the guest's
//! library.
#![forbid(unsafe_code)]

mod link;
mod opening;

use std::io::{ErrorKind, Read};
use std::time::Duration;

use anyhow::Context;
use zerocopy::{FromBytes, IntoBytes};

pub use link::{Link, Reply, load_call};
pub use opening::{
    Answer, answer, connect, control_note, data_opening, greeting, hello, right_greeting,
    with_timeouts,
};

/// A deadline for conditions that take well under 1 s on an idle machine, and the timeout of every
/// connection of [`with_timeouts`]. Generous, because CI runs on two loaded cores.
pub const SOON: Duration = Duration::from_secs(30);

/// Reads the head of a message. `None`: the peer has closed the connection. A reset counts as a
/// close, because the peer may close with unread bytes.
fn head<T: FromBytes + IntoBytes>(stream: &mut impl Read) -> anyhow::Result<Option<T>> {
    let mut head = T::new_zeroed();
    match stream.read_exact(head.as_mut_bytes()) {
        Ok(()) => Ok(Some(head)),
        Err(e) if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&e.kind()) => {
            Ok(None)
        }
        Err(e) => Err(e).context("waiting for the host"),
    }
}

/// Reads the rest of a message.
fn body(stream: &mut impl Read, len: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).context("half a message")?;
    Ok(bytes)
}
