//! Shared parts of the library's tests. Each test runs its body in a separate process, which loads
//! the library.

use std::process::Command;

use libloading::Library;
use vgpu_proto::handshake::{ReplyPreamble, WELCOME_MAGIC};
use zerocopy::IntoBytes as _;

/// Environment variable of a test's separate process, with the name of the test.
const MARK: &str = "VGPU_TEST_GUEST";

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const UNINITIALIZED: u32 = 1;
pub(crate) const DRIVER_NOT_LOADED: u32 = 9;

/// The loaded library.
pub(crate) struct Nvml(Library);

impl Nvml {
    fn load() -> Nvml {
        let exe = std::env::current_exe().expect("a test has a binary");
        // SAFETY: the library under test; loading it only registers fork handlers.
        Nvml(unsafe { Library::new(exe.with_file_name("libnvidia_ml.so")) }.expect("it was built"))
    }

    pub(crate) fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the tests name the types of `nvml.h`.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// The library, if this is the separate process of test `name`.
pub(crate) fn guest(name: &str) -> Option<Nvml> {
    (std::env::var(MARK).as_deref() == Ok(name)).then(Nvml::load)
}

/// Runs the body of test `name` in a separate process. Returns its standard error.
pub(crate) fn run(name: &str, address: &str) -> String {
    let exe = std::env::current_exe().expect("a test has a binary");
    let output = Command::new(exe)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(MARK, name)
        .env("VGPU_ADDRESS", address)
        .env("VGPU_LOG", "warn")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// The bytes with which vgpud answers a look.
pub(crate) fn reply(code: u32, body: &[u8]) -> Vec<u8> {
    let preamble = ReplyPreamble {
        magic: WELCOME_MAGIC,
        code: code.into(),
        body_len: (body.len() as u32).into(),
    };
    [preamble.as_bytes(), body].concat()
}
