//! What soft-gpu's state file says: which processes are on the device, what memory they hold, how
//! long they used it.
//!
//! The file is soft-gpu's (`soft-gpu/src/driver/share.rs`; a test holds the two together). It is
//! shared by all workers, so a worker that its guest has taken over can write nonsense into it: what
//! is read here is bounded, and only ever counts against the process that it is about.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::processes::DeviceProcess;

/// `softgpu1`.
const MAGIC: [u8; 8] = *b"softgpu1";

/// Bytes before the first slot.
const HEADER: usize = 120;

/// Slots of a device.
const SLOTS: usize = 512;

/// One process's part of the file.
#[derive(Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Slot {
    pid: U32,
    wants: U32,
    used: U64,
    busy_ns: U64,
    kernels: U64,
    pad: [U64; 4],
}

const FILE: usize = HEADER + SLOTS * size_of::<Slot>();

/// The processes that are on device `ordinal`. A device that nobody used yet has none.
///
/// # Errors
/// When the files cannot be read, or are of another soft-gpu version.
pub(super) fn read(dir: &Path, ordinal: u32) -> io::Result<Vec<DeviceProcess>> {
    let path = dir.join(format!("device-{ordinal}.state"));
    let locks = dir.join(format!("device-{ordinal}.lock"));
    let (file, locks) = match (File::open(&path), File::open(&locks)) {
        (Ok(file), Ok(locks)) => (file, locks),
        (Err(e), _) | (_, Err(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        (Err(e), _) | (_, Err(e)) => return Err(e),
    };
    let mut bytes = Vec::with_capacity(FILE + 1);
    file.take(FILE as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.is_empty() || bytes.iter().take(MAGIC.len()).all(|&byte| byte == 0) {
        return Ok(Vec::new());
    }
    let other = || {
        let text = format!("{} is of another soft-gpu version", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    if bytes.len() != FILE || !bytes.starts_with(&MAGIC) {
        return Err(other());
    }
    let slots = <[Slot]>::ref_from_bytes(&bytes[HEADER..]).map_err(|_| other())?;
    let mut found = Vec::new();
    for (index, slot) in slots.iter().enumerate() {
        if slot.pid.get() != 0 && is_locked(&locks, index)? {
            found.push(DeviceProcess {
                pid: slot.pid.get(),
                memory_bytes: slot.used.get(),
                busy_ns: Some(slot.busy_ns.get()),
            });
        }
    }
    Ok(found)
}

/// Whether a process is in a slot: it holds the lock on the slot's byte as long as it lives. Asking
/// takes no lock.
fn is_locked(locks: &File, slot: usize) -> io::Result<bool> {
    // Byte 0 is a mutex; slot n has byte n + 1.
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: slot as libc::off_t + 1,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(locks, FcntlArg::F_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_gpu::driver::share::{Shared, State};
    use std::sync::atomic::Ordering;

    #[test]
    fn the_layout_is_soft_gpus() {
        assert_eq!(size_of::<State>(), FILE);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), 0).unwrap(), [], "nobody was there yet");
        let ours = Shared::join(dir.path(), 0, 1 << 20).unwrap();
        assert!(ours.charge(4_096));
        ours.mine().busy_ns.store(77, Ordering::SeqCst);
        // A process does not see its own locks; another one asks.
        let program = std::env::current_exe().unwrap();
        let name = "probe::soft_state::tests::as_another_process_sees_it";
        let child = std::process::Command::new(program)
            .args(["--exact", name, "--nocapture", "--include-ignored"])
            .env("SOFT_STATE_DIR", dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        let expected = DeviceProcess {
            pid: std::process::id(),
            memory_bytes: 4_096,
            busy_ns: Some(77),
        };
        assert!(said.contains(&format!("{expected:?}")), "{said}");
    }

    #[test]
    #[ignore = "run by another test, as a process of its own"]
    fn as_another_process_sees_it() {
        let Some(dir) = std::env::var_os("SOFT_STATE_DIR") else {
            return;
        };
        println!("{:?}", read(Path::new(&dir), 0).unwrap());
    }

    #[test]
    fn other_files_are_refused_and_empty_ones_are_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("device-3.state");
        File::create(dir.path().join("device-3.lock")).unwrap();
        File::create(&state).unwrap();
        assert_eq!(read(dir.path(), 3).unwrap(), []);
        std::fs::write(&state, b"softgpu2 and more").unwrap();
        let error = read(dir.path(), 3).unwrap_err().to_string();
        assert!(error.contains("device-3.state"), "{error}");
        std::fs::write(&state, [&MAGIC[..], &vec![0; FILE - 8]].concat()).unwrap();
        assert_eq!(read(dir.path(), 3).unwrap(), []);
        std::fs::write(&state, [&MAGIC[..], &vec![0; FILE]].concat()).unwrap();
        assert!(read(dir.path(), 3).is_err(), "too long");
    }
}
