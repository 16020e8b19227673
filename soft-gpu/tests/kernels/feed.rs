//! Loads hostile modules into the interpreter, and runs those that load for a short time.

use crate::harness::{Arg, Module, load_text};

/// Loads a text. If the text is accepted, runs each kernel for a short time. Returns whether the
/// text was accepted.
pub(crate) fn load_and_run(text: &[u8]) -> bool {
    let Ok(module) = load_text(text) else {
        return false;
    };
    let buffer = module.gpu.zeroed::<u8>(1 << 16).address;
    let kernels: Vec<String> = module
        .program
        .kernels()
        .map(|(name, _)| name.to_owned())
        .collect();
    for kernel in kernels {
        run_briefly(&module, &kernel, buffer);
    }
    true
}

fn run_briefly(module: &Module, kernel: &str, buffer: u64) {
    let info = module.program.kernel_info(module.kernel(kernel));
    if info.param_bytes > 1 << 16 || info.shared_bytes > 48 << 10 || info.required_block.is_some() {
        return;
    }
    let args: Vec<Vec<u8>> = info
        .params
        .iter()
        .map(|&(_, size)| argument(size, buffer))
        .collect();
    let args: Vec<&dyn Arg> = args.iter().map(|a| a as &dyn Arg).collect();
    let block = 40.min(info.max_threads.max(1));
    module.gpu.limit_turns(6);
    // The kernel must end. Its result is ignored.
    let _ = module.try_run(kernel, 2, block, &args);
}

/// The bytes of an argument: a pointer to memory if the argument is large enough, otherwise a small
/// number.
fn argument(size: usize, buffer: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    match size {
        8.. => bytes[..8].copy_from_slice(&buffer.to_le_bytes()),
        1.. => bytes[0] = 32,
        0 => {}
    }
    bytes
}
