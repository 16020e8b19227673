//! A guest that speaks with vgpud, and with the fake worker behind it.
#![allow(dead_code)] // Each test program uses a part of it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::codec;
use vgpu_proto::handshake::{
    CONTROL_HEADER_LEN, ControlHeader, ControlNote, DATA_MAGIC, HELLO_MAGIC, Hello, PROTOCOL,
    Preamble, REPLY_PREAMBLE_LEN, Refusal, ReplyPreamble, Welcome,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Deadline of every condition, also on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// UUID of the host's only GPU.
pub(crate) const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// Waits until the condition gives a value. Panics after [`SOON`].
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The bytes of a guest's Hello.
pub(crate) fn greeting() -> Vec<u8> {
    let hello = Hello {
        shim_version: "0.1.0".into(),
        cuda_version: 12_040,
        pid: 42,
        program: "test".into(),
    };
    let body = codec::encode(&hello).expect("encodes");
    let preamble = Preamble {
        magic: HELLO_MAGIC,
        protocol: U32::new(PROTOCOL),
        body_len: U32::new(body.len() as u32),
        fingerprint: U64::new(FINGERPRINT),
    };
    [preamble.as_bytes(), &body].concat()
}

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("the socket is open");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream
}

/// Reads vgpud's answer to a Hello.
pub(crate) fn answer(stream: &mut UnixStream) -> Result<Welcome, (Refusal, String)> {
    let mut preamble = [0; REPLY_PREAMBLE_LEN];
    stream.read_exact(&mut preamble).expect("an answer");
    let preamble = ReplyPreamble::read_from_bytes(&preamble).expect("a preamble");
    let mut body = vec![0; preamble.body_len.get() as usize];
    stream.read_exact(&mut body).expect("the whole answer");
    match preamble.code.get() {
        0 => Ok(codec::decode(&body).expect("a Welcome")),
        code => Err((
            Refusal::from_code(code).expect("a known refusal"),
            String::from_utf8(body).expect("a sentence"),
        )),
    }
}

/// A guest with one session.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) control: UnixStream,
    pub(crate) data: UnixStream,
    pub(crate) welcome: Welcome,
}

impl Guest {
    pub(crate) fn connect(socket: &Path) -> Guest {
        Guest::try_connect(socket).unwrap_or_else(|(code, text)| panic!("{code:?}: {text}"))
    }

    pub(crate) fn try_connect(socket: &Path) -> Result<Guest, (Refusal, String)> {
        let mut control = connect(socket);
        control
            .write_all(&greeting())
            .expect("the greeting goes out");
        let welcome = answer(&mut control)?;
        let mut data = connect(socket);
        data.write_all(&[&DATA_MAGIC[..], &welcome.nonce].concat())
            .expect("the nonce goes out");
        Ok(Guest {
            control,
            data,
            welcome,
        })
    }

    /// Sends a command to the worker.
    pub(crate) fn say(&mut self, byte: u8) {
        self.data.write_all(&[byte]).expect("the worker listens");
    }

    /// Reads the worker's next answer.
    pub(crate) fn hear(&mut self) -> u8 {
        let mut got = [0];
        self.data.read_exact(&mut got).expect("the worker answers");
        got[0]
    }

    /// Reads the worker's next answer, which must be this one.
    pub(crate) fn expect(&mut self, byte: u8) {
        assert_eq!(char::from(self.hear()), char::from(byte));
    }

    pub(crate) fn ask(&mut self, byte: u8, answer: u8) {
        self.say(byte);
        self.expect(answer);
    }

    /// Sends a command, and returns the worker's answer.
    pub(crate) fn answer_to(&mut self, byte: u8) -> u8 {
        self.say(byte);
        let mut answer = [0];
        self.data.read_exact(&mut answer).expect("an answer");
        answer[0]
    }

    /// Waits for the next note on the control connection.
    pub(crate) fn note(&mut self) -> (ControlNote, u32, String) {
        let mut header = [0; CONTROL_HEADER_LEN];
        self.control.read_exact(&mut header).expect("a note");
        let header = ControlHeader::read_from_bytes(&header).expect("a header");
        let mut text = vec![0; header.text_len.get() as usize];
        self.control.read_exact(&mut text).expect("the whole note");
        let kind = ControlNote::from_kind(header.kind.get()).expect("a known note");
        (
            kind,
            header.code.get(),
            String::from_utf8(text).expect("a sentence"),
        )
    }
}
