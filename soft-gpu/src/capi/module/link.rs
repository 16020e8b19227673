//! The JIT linker.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::numbers::jit_input::{CUBIN, FATBINARY as FATBIN, LIBRARY, OBJECT, PTX};

use crate::capi::module::load::{JitLog, JitOptions, read_image};
use crate::driver::error::Result;
use crate::driver::handle::{Kind, Table};
use crate::driver::link::{self, Link};
use crate::driver::module::Refusal;
use crate::driver::{gpu, image};

/// The log buffers of each link, which the program gives to cuLinkCreate.
static LOGS: Table<JitLog> = Table::new(Kind::Link);

fn create(count: u32, keys: In<u32>, values: Out<Out<c_void>>, out: Out<u64>) -> Result {
    out.check()?;
    let options = JitOptions {
        count,
        keys,
        values,
    };
    let log = JitLog::of(&options)?;
    let made = link::create(options.max_registers())?;
    LOGS.put(made.handle, std::sync::Arc::new(log));
    out.set(made.handle)
}

/// Writes an error to the log of the link, and the outcome to the log of this call.
fn tell<T>(
    link: &Link,
    options: &JitOptions,
    outcome: std::result::Result<T, Refusal>,
) -> Result<T> {
    if let (Err((_, why)), Some(log)) = (&outcome, LOGS.find(link.handle)) {
        log.error(why);
    }
    options.report(outcome)
}

fn refuse(code: CuResult, why: &str) -> std::result::Result<(), Refusal> {
    Err((code, why.to_owned()))
}

fn take(link: &Link, kind: u32, name: &str, bytes: &[u8]) -> std::result::Result<(), Refusal> {
    let machine_code = bytes.starts_with(b"\x7fELF");
    match kind {
        PTX => {
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            link.add(name, bytes[..end].to_vec())
        }
        FATBIN => {
            let cc = gpu(0).map_err(|e| (e, e.to_string()))?.compute_capability;
            match image::part_ptx(bytes, cc)? {
                Some(text) => link.add(name, text),
                None => link.pass_over(name),
            }
        }
        // The "cubin" that a previous link returned is not ELF: it holds the PTX of its inputs.
        CUBIN | OBJECT if !machine_code => match crate::driver::linker::unpack(trimmed(bytes)) {
            Some(linked) => {
                let mut inputs = linked.inputs.into_iter();
                inputs.try_for_each(|i| link.add(&i.name, i.text))
            }
            None => link.add(name, trimmed(bytes).to_vec()),
        },
        CUBIN => refuse(
            CuResult::NO_BINARY_FOR_GPU,
            "cubins cannot be linked: this device runs PTX only",
        ),
        // Machine code is skipped: build tools often pass the library of the device runtime
        // although the program does not use it.
        OBJECT | LIBRARY => link.pass_over(name),
        5 => refuse(
            CuResult::NOT_SUPPORTED,
            "NVVM IR cannot be linked: give PTX",
        ),
        _ => refuse(CuResult::INVALID_VALUE, "unknown kind of input"),
    }
}

fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

fn add(handle: u64, kind: u32, name: &str, bytes: &[u8], options: &JitOptions) -> Result {
    let link = link::get(handle)?;
    tell(&link, options, take(&link, kind, name, bytes))
}

fn add_data(
    handle: u64,
    kind: u32,
    data: In<u8>,
    size: usize,
    name: Text,
    options: &JitOptions,
) -> Result {
    if data.is_null() || size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let name = name.lossy().unwrap_or_default();
    // SAFETY: CUDA's contract: `data` has `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data.pointer(), size) };
    add(handle, kind, &name, bytes, options)
}

fn add_file(handle: u64, kind: u32, path: Text, options: &JitOptions) -> Result {
    let bytes = read_image(path)?;
    add(handle, kind, &path.lossy()?, &bytes, options)
}

exports! {
    fn cuLinkCreate(count: u32, keys: In<u32>, values: Out<Out<c_void>>, out: Out<u64>) {
        create(count, keys, values, out)
    }

    fn cuLinkCreate_v2(count: u32, keys: In<u32>, values: Out<Out<c_void>>, out: Out<u64>) {
        create(count, keys, values, out)
    }

    fn cuLinkAddData(
        handle: u64, kind: u32, data: In<u8>, size: usize, name: Text,
        count: u32, keys: In<u32>, values: Out<Out<c_void>>,
    ) {
        add_data(handle, kind, data, size, name, &JitOptions { count, keys, values })
    }

    fn cuLinkAddData_v2(
        handle: u64, kind: u32, data: In<u8>, size: usize, name: Text,
        count: u32, keys: In<u32>, values: Out<Out<c_void>>,
    ) {
        add_data(handle, kind, data, size, name, &JitOptions { count, keys, values })
    }

    fn cuLinkAddFile(
        handle: u64, kind: u32, path: Text, count: u32, keys: In<u32>, values: Out<Out<c_void>>,
    ) {
        add_file(handle, kind, path, &JitOptions { count, keys, values })
    }

    fn cuLinkAddFile_v2(
        handle: u64, kind: u32, path: Text, count: u32, keys: In<u32>, values: Out<Out<c_void>>,
    ) {
        add_file(handle, kind, path, &JitOptions { count, keys, values })
    }

    fn cuLinkComplete(handle: u64, cubin: Out<*const u8>, size: Out<usize>) {
        cubin.check()?;
        let link = link::get(handle)?;
        let image = tell(&link, &JitOptions::NONE, link.complete())?;
        // The link keeps the bytes at this address until the link is destroyed.
        cubin.set(image.as_ptr())?;
        size.set_if_wanted(image.len());
        Ok(())
    }

    fn cuLinkDestroy(handle: u64) {
        link::destroy(handle)?;
        LOGS.remove(handle).map(|_| ())
    }
}
