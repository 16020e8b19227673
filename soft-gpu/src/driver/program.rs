//! The interpreter, as the driver uses it.
//!
//! A stand-in that refuses every module, until `exec::program` is there.

use crate::exec::contract::{
    Device, Fault, GlobalVar, KernelId, KernelInfo, Launch, LoadError, LoadOptions, RunStats,
};

/// A module that cannot exist yet.
pub enum Program {}

#[allow(missing_docs)]
impl Program {
    pub fn load(_ptx: &[u8], _options: &LoadOptions) -> Result<Program, LoadError> {
        Err(LoadError::Unsupported(
            "this build has no interpreter yet".to_owned(),
        ))
    }
    pub fn globals(&self) -> &[GlobalVar] {
        match *self {}
    }
    pub fn link(&mut self, _: &[u64]) -> Vec<(u64, Vec<u8>)> {
        match *self {}
    }
    pub fn kernel(&self, _: &str) -> Option<KernelId> {
        match *self {}
    }
    pub fn kernels(&self) -> impl Iterator<Item = (&str, KernelId)> {
        std::iter::empty()
    }
    pub fn kernel_info(&self, _: KernelId) -> &KernelInfo {
        match *self {}
    }
}

/// Runs nothing.
///
/// # Errors
/// Never: there is no program.
pub fn run(program: &Program, _: &Launch, _: &dyn Device) -> Result<RunStats, Fault> {
    match *program {}
}
