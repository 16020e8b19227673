//! The runtime's self-check. The runtime requests a digest of facts that both sides know from the
//! driver, and goes on only if its own digest is equal. `docs/interoperability.md` gives the
//! sources and the purpose.

use std::ffi::c_void;

use hmac::{Hmac, KeyInit, Mac};
use md2::Md2;

use crate::Device;

/// The facts in the digest.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// The result of `cuDriverGetVersion`.
    pub(crate) driver_version: u32,
    /// The runtime's own version plus the number of the request.
    pub(crate) version: u32,
    pub(crate) process: u32,
    /// The low half of `pthread_self()`.
    pub(crate) thread: u32,
    pub(crate) cudart_table: *const c_void,
    pub(crate) check_table: *const c_void,
    /// The function in the self-check's table that the runtime calls.
    pub(crate) function: *const c_void,
    pub(crate) unix_seconds: u64,
    pub(crate) devices: &'a [Device],
}

const KEY: [u8; 16] = 0x146a_ddae_53a9_a752_aa08_4136_0bf5_5a9f_u128.to_be_bytes();

/// The answers to the first two requests, which are constants.
const FIXED: [[u64; 2]; 2] = [
    [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
    [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
];

/// The digest: HMAC-MD2 (RFC 2104, RFC 1319) of the fields in order, in the machine's byte order.
pub(crate) fn digest(asked: &Asked<'_>) -> [u64; 2] {
    if let Some(fixed) = FIXED.get(asked.version as usize % 10) {
        return *fixed;
    }
    // HMAC accepts a key of any length.
    let Ok(mut mac) = Hmac::<Md2>::new_from_slice(&KEY) else {
        return [0; 2];
    };
    for number in [
        asked.driver_version,
        asked.version,
        asked.process,
        asked.thread,
    ] {
        mac.update(&number.to_ne_bytes());
    }
    for address in [asked.cudart_table, asked.check_table, asked.function] {
        mac.update(&address.addr().to_ne_bytes());
    }
    mac.update(&asked.unix_seconds.to_ne_bytes());
    for device in asked.devices {
        mac.update(&device.uuid);
        for number in device.pci {
            mac.update(&number.to_ne_bytes());
        }
    }
    let bytes: [u8; 16] = mac.finalize().into_bytes().into();
    let (low, high) = bytes.split_at(8);
    let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    [half(low), half(high)]
}

/// The low half of `pthread_self()`.
pub(crate) fn thread() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::pthread_self() as u32 }
}
