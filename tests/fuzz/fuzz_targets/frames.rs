//! The data connection: any bytes as a sequence of frames for the worker's reader.
//!
//! An accepted frame has lengths within the bounds, and is written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_proto::call::{OPS, Request};
use vgpu_proto::frame::{HEADER_LEN, Header, MAGIC};
use vgpu_proto::limits::{MAX_ARGS, MAX_BULK};

/// Reads one frame from the front; `None` ends the connection.
fn frame(bytes: &[u8]) -> Option<&[u8]> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let mut raw = *header;
    // The target sets the magic number, which a fuzzer finds late; other tests check the
    // comparison.
    raw[..2].copy_from_slice(&MAGIC.to_le_bytes());
    let header = Header::parse(&raw).ok()?;
    assert_eq!(header.to_bytes(), raw);
    assert!(header.args_len() <= MAX_ARGS && header.bulk_len() <= MAX_BULK);
    let (args, rest) = rest.split_at_checked(header.args_len())?;
    request(header.op(), args, header.bulk_len());
    rest.get(header.bulk_len()..)
}

fn request(op: u16, args: &[u8], bulk: usize) {
    if let Ok(request) = Request::decode(op, args, bulk) {
        assert_eq!(request.op() as u16, op);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Some(next) = frame(rest) {
        rest = next;
    }
    // Also as the arguments of an operation, which the first byte selects.
    if let Some((which, args)) = data.split_first() {
        let row = &OPS[usize::from(*which) % OPS.len()];
        request(row.op as u16, args, 0);
    }
});
