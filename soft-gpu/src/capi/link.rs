//! The JIT linker, for one PTX input: the "cubin" that it gives is the PTX itself.

use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use super::module::{JitOptions, read_image};
use super::types::{In, Out, Text};
use crate::driver::error::{CuError, Result};
use crate::driver::handle::{Kind, Table};
use crate::driver::sync::lock;
use crate::driver::{context, gpu, healthy, image};

/// A CUlinkState: NUL-terminated PTX, once it was added.
struct Link {
    handle: u64,
    text: Mutex<Vec<u8>>,
}

static LINKS: Table<Link> = Table::new(Kind::Link);

/// CUjitInputType.
const CUBIN: u32 = 0;
const PTX: u32 = 1;
const FATBIN: u32 = 2;

fn create(out: Out<u64>) -> Result {
    healthy()?;
    context::current()?;
    out.check()?;
    out.set(
        LINKS
            .insert(|handle| {
                Arc::new(Link {
                    handle,
                    text: Mutex::default(),
                })
            })
            .handle,
    )
}

fn add(handle: u64, kind: u32, bytes: &[u8], options: &JitOptions) -> Result {
    let link = LINKS.get(handle)?;
    let refuse = |code, why: &str| Err((code, why.to_owned()));
    let outcome = match kind {
        PTX => Ok(bytes.to_vec()),
        FATBIN => image::fatbin_ptx(bytes, gpu(0)?.compute_capability),
        CUBIN => refuse(
            CuError::NO_BINARY_FOR_GPU,
            "cubins cannot be linked: give PTX",
        ),
        _ => refuse(CuError::NOT_SUPPORTED, "only PTX can be linked"),
    };
    let mut text = lock(&link.text);
    let outcome = match outcome {
        Ok(_) if !text.is_empty() => refuse(
            CuError::NOT_SUPPORTED,
            "linking several PTX inputs is not served",
        ),
        other => other,
    };
    let mut ptx = options.report(outcome)?;
    if ptx.last() != Some(&0) {
        ptx.push(0);
    }
    *text = ptx;
    Ok(())
}

fn add_data(handle: u64, kind: u32, data: In<u8>, size: usize, options: &JitOptions) -> Result {
    if data.is_null() || size == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the API's contract: `data` has `size` bytes.
    add(
        handle,
        kind,
        unsafe { std::slice::from_raw_parts(data.0, size) },
        options,
    )
}

exports! {
    fn cuLinkCreate(_count: u32, _keys: In<u32>, _values: Out<*mut c_void>, out: Out<u64>) {
        create(out)
    }

    fn cuLinkCreate_v2(_count: u32, _keys: In<u32>, _values: Out<*mut c_void>, out: Out<u64>) {
        create(out)
    }

    fn cuLinkAddData(
        handle: u64, kind: u32, data: In<u8>, size: usize, _name: Text,
        count: u32, keys: In<u32>, values: Out<*mut c_void>,
    ) {
        add_data(handle, kind, data, size, &JitOptions { count, keys, values })
    }

    fn cuLinkAddData_v2(
        handle: u64, kind: u32, data: In<u8>, size: usize, _name: Text,
        count: u32, keys: In<u32>, values: Out<*mut c_void>,
    ) {
        add_data(handle, kind, data, size, &JitOptions { count, keys, values })
    }

    fn cuLinkAddFile_v2(
        handle: u64, kind: u32, path: Text, count: u32, keys: In<u32>, values: Out<*mut c_void>,
    ) {
        add(handle, kind, &read_image(path)?, &JitOptions { count, keys, values })
    }

    fn cuLinkComplete(handle: u64, cubin: Out<*const u8>, size: Out<usize>) {
        let link = LINKS.get(handle)?;
        let text = lock(&link.text);
        if text.is_empty() {
            return Err(CuError::INVALID_VALUE);
        }
        // The bytes live until cuLinkDestroy: nothing is added after this.
        cubin.set(text.as_ptr())?;
        size.set_if_wanted(text.len());
        Ok(())
    }

    fn cuLinkDestroy(handle: u64) {
        LINKS.remove(handle).map(|_| ())
    }
}
