//! The table of functions that nvidia-smi requests first, by a UUID (docs/interoperability.md
//! describes the table and the sources). nvidia-smi calls two entries of the table, and accepts
//! NVML_ERROR_NOT_SUPPORTED from both.

use std::ffi::c_void;

use crate::ffi::{Code, Ml, exports, get, put};
use crate::state;

/// UUID of the table.
const TABLE_ID: [u8; 16] = [
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
];

/// Number of words in the table.
const WORDS: usize = 82;

/// Index of the entries that nvidia-smi calls.
const CALLED: [usize; 2] = [26, 81];

#[repr(C)]
#[derive(Clone, Copy)]
union Word {
    /// The first word: size of the table in bytes.
    size: usize,
    entry: extern "C" fn() -> u32,
    none: *const c_void,
}

struct Table([Word; WORDS]);

// SAFETY: the table is never written.
unsafe impl Sync for Table {}

extern "C" fn not_supported() -> u32 {
    Code::NOT_SUPPORTED.0
}

static EXPORTS: Table = {
    let none = Word {
        none: std::ptr::null(),
    };
    let mut words = [none; WORDS];
    words[0] = Word {
        size: size_of::<[Word; WORDS]>(),
    };
    let mut n = 0;
    while n < CALLED.len() {
        words[CALLED[n]] = Word {
            entry: not_supported,
        };
        n += 1;
    }
    Table(words)
};

exports! {
    /// Returns the table of this UUID and refuses all others.
    fn nvmlInternalGetExportTable(table: *mut *const c_void, uuid: *const [u8; 16]) {
        state::looked()?;
        // SAFETY: by the contract of the function.
        unsafe { put(table, find(get(uuid)?)?) }
    }
}

fn find(uuid: [u8; 16]) -> Ml<*const c_void> {
    match uuid {
        TABLE_ID => Ok(EXPORTS.0.as_ptr().cast()),
        _ => Err(Code::NOT_FOUND),
    }
}
