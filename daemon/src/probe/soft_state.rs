//! Reads soft-gpu's state file: the processes on the device, their memory, and their GPU time.
//!
//! soft-gpu defines the file (`soft-gpu/src/driver/share.rs`; a test compares the two). All workers
//! share the file, so a worker that its guest controls can write wrong values. Values are bounded
//! here, and only count against the process that they describe.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::model::DeviceProcess;

const MAGIC: [u8; 8] = *b"softgpu1";

/// Bytes before the first slot.
const HEADER: usize = 120;

const SLOTS: usize = 512;

#[derive(Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Slot {
    pid: U32,
    wants: U32,
    used: U64,
    busy_ns: U64,
    kernels: U64,
    open_ns: U64,
    pad: [U64; 3],
}

const FILE: usize = HEADER + SLOTS * size_of::<Slot>();

/// The processes on device `ordinal`. A device that was never used has none.
///
/// # Errors
/// If the files cannot be read, or belong to another soft-gpu version.
pub(super) fn read(dir: &Path, ordinal: u32) -> io::Result<Vec<DeviceProcess>> {
    let path = dir.join(format!("device-{ordinal}.state"));
    let locks = dir.join(format!("device-{ordinal}.lock"));
    let (mut file, locks) = match (File::open(&path), File::open(&locks)) {
        (Ok(file), Ok(locks)) => (file, locks),
        (Err(e), _) | (_, Err(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        (Err(e), _) | (_, Err(e)) => return Err(e),
    };
    // Read twice: unfinished work first, counted time second. In the other order, work that ends
    // between the reads would be in neither.
    let before = whole(&mut file)?;
    let bytes = whole(&mut file)?;
    if bytes.is_empty() || bytes.iter().take(MAGIC.len()).all(|&byte| byte == 0) {
        return Ok(Vec::new());
    }
    let other = || {
        let text = format!("{} is of another soft-gpu version", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    let slots = slots_of(&bytes).ok_or_else(other)?;
    let open = slots_of(&before);
    let mut found = Vec::new();
    for (index, slot) in slots.iter().enumerate() {
        let before = open.and_then(|slots| slots.get(index));
        if slot.pid.get() != 0 && is_locked(&locks, index)? {
            found.push(DeviceProcess {
                pid: slot.pid.get(),
                memory_bytes: slot.used.get(),
                busy_ns: Some(slot.busy_ns.get()),
                open_ns: before
                    .filter(|before| before.pid == slot.pid)
                    .map(|before| before.open_ns.get())
                    .filter(|&at| at != 0),
            });
        }
    }
    Ok(found)
}

fn slots_of(bytes: &[u8]) -> Option<&[Slot]> {
    let ours = bytes.len() == FILE && bytes.starts_with(&MAGIC);
    let slots = bytes.get(HEADER..).filter(|_| ours)?;
    <[Slot]>::ref_from_bytes(slots).ok()
}

fn whole(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(FILE + 1);
    file.rewind()?;
    file.take(FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a living process has a slot: it holds the lock on the slot's byte as long as it lives.
/// The query takes no lock.
fn is_locked(locks: &File, slot: usize) -> io::Result<bool> {
    #[expect(clippy::cast_possible_truncation, reason = "both are below 3")]
    const KIND: (libc::c_short, libc::c_short) = (libc::F_WRLCK as _, libc::SEEK_SET as _);
    // Byte 0 is a mutex; slot n has byte n + 1.
    let mut lock = libc::flock {
        l_type: KIND.0,
        l_whence: KIND.1,
        l_start: libc::off_t::try_from(slot + 1).map_err(io::Error::other)?,
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
        assert_eq!(
            read(dir.path(), 0).unwrap(),
            [],
            "the device was never used"
        );
        let ours = Shared::join(dir.path(), 0, 1 << 20).unwrap();
        assert!(ours.charge(4_096));
        ours.mine().busy_ns.store(77, Ordering::SeqCst);
        ours.mine().open_ns.store(55, Ordering::SeqCst);
        // A process does not see its own locks, so another process asks.
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
            open_ns: Some(55),
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
    fn other_files_are_refused_and_empty_files_have_no_process() {
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
