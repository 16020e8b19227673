//! The gateway: any bytes as the beginning of a connection, over a real socket.
//!
//! The bytes are either refused with a sentence that fits into a message, or well-formed.
#![no_main]

use std::io::Write;
use std::os::unix::net::UnixStream;

use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::handshake::{HELLO_MAGIC, PROTOCOL, REPLY_PREAMBLE_LEN};
use vgpu_proto::limits::MAX_TEXT;
use vgpu_proto::look::LOOK_MAGIC;
use vgpu_wire::{data_opening, greeting};
use vgpud::gateway::conn::Conn;
use vgpud::gateway::opening::{self, BadOpening, Opening};

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
}

async fn open(bytes: &[u8]) {
    let (mut guest, ours) = UnixStream::pair().expect("a pair of sockets");
    let conn = Conn::new(ours.into()).expect("a connection");
    guest.write_all(bytes).expect("the socket takes it");
    drop(guest);
    match opening::read(&conn).await {
        Ok(Opening::Control(_) | Opening::Look | Opening::Data(_)) | Err(BadOpening::Gone(_)) => {}
        Err(BadOpening::Refuse(code, sentence)) => {
            let reply = opening::refusal(code, &sentence);
            assert!(!sentence.is_empty() && reply.len() <= REPLY_PREAMBLE_LEN + MAX_TEXT);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((which, rest)) = data.split_first() else {
        return;
    };
    // The socket takes this much without a reader.
    let rest = &rest[..rest.len().min(64 * 1024)];
    let bytes = match which % 5 {
        0 => rest.to_vec(),
        // A valid preamble of this version, so that the body remains to be checked.
        1 => greeting(PROTOCOL, FINGERPRINT, rest),
        2 => [&HELLO_MAGIC[..], rest].concat(),
        3 => [&LOOK_MAGIC[..], rest].concat(),
        _ => data_opening(rest),
    };
    RUNTIME.with(|runtime| runtime.block_on(open(&bytes)));
});
