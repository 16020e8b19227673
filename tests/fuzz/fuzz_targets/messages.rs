//! Messages of a worker to vgpud, and all other messages of the codec: any bytes are either a
//! message or refused.
//!
//! An accepted message has only one encoding, so that no byte goes unexamined.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vgpu_proto::codec::{Decode, Encode, decode, encode};
use vgpu_proto::handshake::{Hello, Welcome};
use vgpu_proto::look::Looked;
use vgpu_proto::worker::{FromWorker, ToWorker};

fn message<T: Encode + Decode<()>>(bytes: &[u8]) {
    if let Ok(value) = decode::<T>(bytes) {
        assert_eq!(encode(&value).expect("what was decoded is encoded"), bytes);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    match which % 8 {
        0..4 => message::<FromWorker>(bytes),
        4 => message::<ToWorker>(bytes),
        5 => message::<Hello>(bytes),
        6 => message::<Welcome>(bytes),
        _ => message::<Looked>(bytes),
    }
});
