//! A guest that speaks with vgpud, and with the fake worker behind it.
#![allow(dead_code)] // Each test program uses a part of it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use vgpu_proto::codec::Decode;
use vgpu_proto::handshake::{ControlNote, Refusal, Welcome};
pub(crate) use vgpu_wire::SOON;
use vgpu_wire::{Answer, control_note, data_opening, right_greeting};

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

pub(crate) fn connect(socket: &Path) -> UnixStream {
    vgpu_wire::connect(socket).expect("the socket is open")
}

/// Reads vgpud's answer to a Hello, or to a look.
pub(crate) fn answer<T: Decode<()>>(stream: &mut UnixStream) -> Result<T, (Refusal, String)> {
    match vgpu_wire::answer(stream).expect("an answer") {
        Answer::Welcome(content) => Ok(*content),
        Answer::Refused(code, text) => Err((code, text)),
        Answer::Closed => panic!("closed without an answer"),
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
            .write_all(&right_greeting())
            .expect("the greeting goes out");
        let welcome: Welcome = answer(&mut control)?;
        let mut data = connect(socket);
        data.write_all(&data_opening(&welcome.nonce))
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
        let note = control_note(&mut self.control).expect("a known note");
        let (kind, code, text) = note.expect("an open connection");
        (kind, code.0, text)
    }
}
