//! The first bytes of a connection: their kind, and whether they are well-formed.
//!
//! Reads exactly the announced bytes. Announced lengths are bounded before memory is allocated. The
//! caller sets the deadline.

use std::io;

use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::codec;
use vgpu_proto::handshake::{
    DATA_MAGIC, HELLO_MAGIC, Hello, NONCE_LEN, PREAMBLE_LEN, PROTOCOL, Preamble,
    REPLY_PREAMBLE_LEN, Refusal, ReplyPreamble, WELCOME_MAGIC, Welcome,
};
use vgpu_proto::limits::{MAX_HANDSHAKE, MAX_TEXT};
use vgpu_proto::look::{LOOK_MAGIC, LOOK_VERSION, Looked};
use vgpu_proto::text::{cut, printable};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::conn::Conn;
use crate::system::guarded::Attached;

/// The first bytes of a connection, if well-formed.
#[derive(Debug)]
pub enum Opening {
    /// The Hello of a guest process on its control connection.
    Control(Hello),
    /// The request of a guest for a description of its VM.
    Look,
    /// A session's data connection.
    Data([u8; NONCE_LEN]),
}

/// First bytes that get a refusal, or no answer.
#[derive(Debug)]
pub enum BadOpening {
    /// Answer with this refusal.
    Refuse(Refusal, String),
    /// The connection failed or ended, so no answer can be sent.
    Gone(io::Error),
}

impl From<io::Error> for BadOpening {
    fn from(e: io::Error) -> Self {
        if Attached::is(&e) {
            return BadOpening::Refuse(Refusal::Malformed, Attached.to_string());
        }
        BadOpening::Gone(e)
    }
}

const MAGIC_LEN: usize = 8;

/// Reads the first bytes of a connection.
///
/// # Errors
/// [`BadOpening`], with the refusal for the guest if there is one.
pub async fn read(conn: &Conn) -> Result<Opening, BadOpening> {
    let mut magic = [0; MAGIC_LEN];
    conn.read_exact(&mut magic).await?;
    if magic == DATA_MAGIC {
        let mut nonce = [0; NONCE_LEN];
        conn.read_exact(&mut nonce).await?;
        return Ok(Opening::Data(nonce));
    }
    if magic != HELLO_MAGIC && magic != LOOK_MAGIC {
        let text =
            "this socket is vgpud's for guests, and what connected does not speak its protocol";
        return Err(BadOpening::Refuse(Refusal::Malformed, text.into()));
    }
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..MAGIC_LEN].copy_from_slice(&magic);
    conn.read_exact(&mut bytes[MAGIC_LEN..]).await?;
    let Ok(preamble) = Preamble::read_from_bytes(&bytes) else {
        return Err(BadOpening::Refuse(
            Refusal::Malformed,
            "the greeting is cut short".into(),
        ));
    };
    match magic {
        LOOK_MAGIC => look(&preamble).map(|()| Opening::Look),
        _ => hello(conn, preamble).await.map(Opening::Control),
    }
}

fn look(preamble: &Preamble) -> Result<(), BadOpening> {
    let version = preamble.protocol.get();
    if version != LOOK_VERSION {
        let text = format!(
            "the guest's library looks in version {version}, and this host's vgpud {} in {LOOK_VERSION}; install \
             the guest's libraries of vgpud {}",
            crate::VERSION,
            crate::VERSION
        );
        return Err(BadOpening::Refuse(Refusal::Version, text));
    }
    if preamble.body_len.get() != 0 || preamble.fingerprint.get() != 0 {
        let text = "a look has no body and no call table".to_owned();
        return Err(BadOpening::Refuse(Refusal::Malformed, text));
    }
    Ok(())
}

async fn hello(conn: &Conn, preamble: Preamble) -> Result<Hello, BadOpening> {
    let announced = preamble.body_len.get() as usize;
    if announced > MAX_HANDSHAKE {
        let text =
            format!("the greeting announces {announced} bytes; at most {MAX_HANDSHAKE} are read");
        return Err(BadOpening::Refuse(Refusal::Malformed, text));
    }
    let mut body = vec![0; announced];
    conn.read_exact(&mut body).await?;
    let hello = codec::decode::<Hello>(&body);
    let (protocol, fingerprint) = (preamble.protocol.get(), preamble.fingerprint.get());
    if protocol != PROTOCOL || fingerprint != FINGERPRINT {
        let shim = hello.ok().map(|h| h.shim_version);
        return Err(BadOpening::Refuse(
            Refusal::Version,
            version_sentence(shim.as_deref(), protocol, fingerprint),
        ));
    }
    hello.map_err(|e| BadOpening::Refuse(Refusal::Malformed, format!("the greeting: {e}")))
}

fn version_sentence(shim: Option<&str>, protocol: u32, fingerprint: u64) -> String {
    let shim = shim
        .map(|v| format!(" {}", printable(v, 32)))
        .unwrap_or_default();
    format!(
        "the guest's libcuda.so.1{shim} speaks protocol {protocol} with call table \
         {fingerprint:016x}; this host's vgpud {} speaks protocol {PROTOCOL} with call table \
         {FINGERPRINT:016x}; install the libcuda.so.1 of vgpud {} in the guest",
        crate::VERSION,
        crate::VERSION
    )
}

/// Encodes a refusal. A longer sentence is cut.
#[must_use]
pub fn refusal(code: Refusal, sentence: &str) -> Vec<u8> {
    let text = cut(sentence, MAX_TEXT);
    reply(code as u32, text.as_bytes())
}

/// Encodes a Welcome.
///
/// # Errors
/// If the Welcome is longer than a message may be, for example because a device has too many
/// attributes.
pub fn welcome(welcome: &Welcome) -> Result<Vec<u8>, codec::CodecError> {
    Ok(reply(0, &codec::encode(welcome)?))
}

/// Encodes the answer to a look.
///
/// # Errors
/// As [`welcome`].
pub fn looked(looked: &Looked) -> Result<Vec<u8>, codec::CodecError> {
    Ok(reply(0, &codec::encode(looked)?))
}

fn reply(code: u32, body: &[u8]) -> Vec<u8> {
    let preamble = ReplyPreamble {
        magic: WELCOME_MAGIC,
        code: U32::new(code),
        body_len: U32::new(u32::try_from(body.len()).unwrap_or(u32::MAX)),
    };
    let mut bytes = Vec::with_capacity(REPLY_PREAMBLE_LEN + body.len());
    bytes.extend_from_slice(preamble.as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use vgpu_wire::{data_opening, greeting, hello, right_greeting};

    async fn open(bytes: &[u8]) -> Result<Opening, BadOpening> {
        let (mut guest, ours) = UnixStream::pair().unwrap();
        let conn = Conn::new(ours.into()).unwrap();
        guest.write_all(bytes).unwrap();
        drop(guest);
        read(&conn).await
    }

    #[tokio::test]
    async fn a_greeting_and_a_nonce_are_understood() {
        match open(&right_greeting()).await {
            Ok(Opening::Control(h)) => assert_eq!(h, hello()),
            other => panic!("{other:?}"),
        }
        let data = data_opening(&[9; NONCE_LEN]);
        assert!(matches!(open(&data).await, Ok(Opening::Data([9, ..]))));
    }

    #[tokio::test]
    async fn another_version_is_refused_naming_both() {
        let body = codec::encode(&hello()).unwrap();
        for bytes in [
            greeting(PROTOCOL + 1, FINGERPRINT, &body),
            greeting(PROTOCOL, !FINGERPRINT, &body),
        ] {
            let Err(BadOpening::Refuse(Refusal::Version, text)) = open(&bytes).await else {
                panic!("not refused");
            };
            let theirs = format!("libcuda.so.1 {} speaks protocol", hello().shim_version);
            assert!(text.contains(&theirs), "{text}");
            assert!(
                text.contains(&format!("speaks protocol {PROTOCOL} with")),
                "{text}"
            );
            assert!(text.contains(&format!("{FINGERPRINT:016x}")), "{text}");
        }
        // A greeting of another protocol version is refused with a sentence, even if its body
        // cannot be decoded.
        let strange = open(&greeting(PROTOCOL + 1, 1, b"\x01\x02")).await;
        assert!(matches!(
            strange,
            Err(BadOpening::Refuse(Refusal::Version, _))
        ));
    }

    #[tokio::test]
    async fn malformed_and_truncated_greetings_are_refused_or_gone() {
        let body = codec::encode(&hello()).unwrap();
        let whole = right_greeting();
        for cut in 0..whole.len() {
            assert!(
                matches!(open(&whole[..cut]).await, Err(BadOpening::Gone(_))),
                "{cut}"
            );
        }
        let trailing = [&body[..], b"x"].concat();
        let malformed = [
            b"GET / HTTP/1.1\r\n".to_vec(),
            greeting(PROTOCOL, FINGERPRINT, &trailing),
            greeting(PROTOCOL, FINGERPRINT, &[0xff; 30]),
        ];
        for bytes in malformed {
            let refused = open(&bytes).await;
            assert!(
                matches!(refused, Err(BadOpening::Refuse(Refusal::Malformed, _))),
                "{refused:?}"
            );
        }
        let mut oversized = greeting(PROTOCOL, FINGERPRINT, b"");
        oversized[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let refused = open(&oversized).await;
        assert!(
            matches!(refused, Err(BadOpening::Refuse(Refusal::Malformed, _))),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn a_look_is_a_preamble_and_nothing_else() {
        let whole = vgpu_proto::look::question();
        assert!(matches!(open(&whole).await, Ok(Opening::Look)));
        for cut in 0..whole.len() {
            let gone = open(&whole[..cut]).await;
            assert!(matches!(gone, Err(BadOpening::Gone(_))), "{cut}");
        }
        let mut newer = whole;
        newer[8] += 1;
        let Err(BadOpening::Refuse(Refusal::Version, text)) = open(&newer).await else {
            panic!("not refused");
        };
        let theirs = format!("looks in version {}", u32::from(newer[8]));
        assert!(text.contains(&theirs), "{text}");
        for at in 12..whole.len() {
            let mut wrong = whole;
            wrong[at] = 0xff;
            let refused = open(&wrong).await;
            assert!(
                matches!(refused, Err(BadOpening::Refuse(Refusal::Malformed, _))),
                "{at}: {refused:?}"
            );
        }
    }

    #[test]
    fn texts_of_guests_are_cut() {
        let bytes = refusal(Refusal::Busy, &"é".repeat(MAX_TEXT));
        assert!(bytes.len() <= REPLY_PREAMBLE_LEN + MAX_TEXT);
    }
}
