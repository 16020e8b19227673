//! The functions of cuda.h that are not served. Each returns CUDA_ERROR_NOT_SUPPORTED, and its
//! first call prints its name on stderr.

use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::unserved::{Arguments, wrong};

use crate::driver::driver;
use crate::driver::error::Result;
use crate::driver::stderr::say;
use crate::driver::sync::lock;

static NAMED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

fn unserved(name: &'static str, arguments: &Arguments) -> Result {
    let devices = driver()?.gpus.len() as u32;
    if let Some(code) = wrong(name, arguments, devices) {
        return Err(code);
    }
    if lock(&NAMED).insert(name) {
        say!("{name} is not served: CUDA_ERROR_NOT_SUPPORTED");
    }
    Err(CuResult::NOT_SUPPORTED)
}

fn called(name: &'static str, arguments: &Arguments) -> u32 {
    crate::capi::enter(name, || unserved(name, arguments))
}

include!(concat!(env!("OUT_DIR"), "/refusing.rs"));
