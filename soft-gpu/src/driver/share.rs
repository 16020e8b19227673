//! The state of one device that processes share: a mapped file with one slot per process.
//!
//! A process claims a slot with a POSIX record lock on one byte of a lock file. The kernel drops
//! the lock when the process dies, and a forked child does not inherit the lock, so the lock shows
//! whether the process is alive. All counters are single words, so a crash leaves no half-written
//! state. The lock file is separate from the state file, because a process loses its record locks
//! on a file when it closes *any* descriptor of that file. Readers open only the state file.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::sync::lock;

/// Most processes on one device at a time.
pub const SLOTS: usize = 512;

const MAGIC: u64 = u64::from_le_bytes(*b"softgpu1");

/// The head of the state file.
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    /// Bytes of device memory. The first process sets the value.
    pub memory: AtomicU64,
    /// The process that has the compute turn: its slot + 1, or 0.
    pub owner: AtomicU32,
    /// Futex word, incremented at each change of `owner`.
    pub seq: AtomicU32,
    /// End of the last reservation on the device timeline (CLOCK_MONOTONIC ns).
    pub free_at: AtomicU64,
    /// Number of times that the compute turn went to another process.
    pub handovers: AtomicU64,
    /// Device time in ns of ended processes whose slots other processes use now.
    pub retired_ns: AtomicU64,
    /// Number of processes that wait for the turn. The number may be too high, because a process
    /// that was killed while it waited stays counted. It is never 0 while a process waits.
    pub waiting: AtomicU32,
    pad: [u32; 17],
}

/// State of one process.
#[repr(C)]
pub struct Slot {
    /// Process id; 0 in a slot that was never used.
    pub pid: AtomicU32,
    /// 1 while the process waits for the compute turn.
    pub wants: AtomicU32,
    /// Bytes of device memory that the process holds.
    pub used: AtomicU64,
    /// Device time that the process really used, in ns. Tests compare other accounts with this
    /// value.
    pub busy_ns: AtomicU64,
    /// Number of finished kernels.
    pub kernels: AtomicU64,
    /// Submission time of the oldest unfinished work (CLOCK_MONOTONIC ns). Device time since then
    /// may be missing in `busy_ns`. 0: all work is finished and counted.
    pub open_ns: AtomicU64,
    pad: [u64; 3],
}

/// Layout of the state file.
#[repr(C)]
pub struct State {
    /// Head of the file.
    pub header: Header,
    /// One slot per process.
    pub slots: [Slot; SLOTS],
}

/// The state of one process, as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// Process id.
    pub pid: u32,
    /// Bytes of device memory.
    pub used: u64,
    /// Device time, in ns.
    pub busy_ns: u64,
    /// Kernels finished.
    pub kernels: u64,
}

/// This process's view of one device.
pub struct Shared {
    state: *const State,
    file: Option<File>,
    me: usize,
    mutex: Mutex<()>,
}

// SAFETY: the mapping lives as long as the process and is only touched through atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Opens or creates a file in the state directory. A new file has the read and write permissions of
/// the directory, because workers of one device may run as several users.
fn open(dir: &Path, path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let mode = std::fs::metadata(dir)?.permissions().mode() & 0o666;
    // Fails if another process created the file, because only the owner may set permissions. That
    // process sets them.
    let _ = file.set_permissions(Permissions::from_mode(mode));
    Ok(file)
}

/// This process's id in the namespace of /proc, which is the host's. In a namespace of its own, the
/// process has another id.
fn own_pid() -> u32 {
    let known = std::fs::read_link("/proc/self").ok();
    let number = known.and_then(|path| path.to_str()?.parse().ok());
    number.unwrap_or_else(std::process::id)
}

/// Path of the state file of physical device `device` in `dir`.
pub fn state_path(dir: &Path, device: usize) -> PathBuf {
    dir.join(format!("device-{device}.state"))
}

fn map_state(file: Option<&File>, write: bool) -> io::Result<*const State> {
    let prot = if write {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    let (flags, fd) = match file {
        Some(f) => (libc::MAP_SHARED, f.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<State>(), prot, flags, fd, 0) };
    if p == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(p.cast())
    }
}

impl Shared {
    /// The state of a device that only this process uses.
    ///
    /// # Errors
    /// The error of the operating system if there is no memory for the state.
    pub fn private(memory: u64) -> io::Result<Shared> {
        let state = map_state(None, true)?;
        let shared = Shared {
            state,
            file: None,
            me: 0,
            mutex: Mutex::new(()),
        };
        shared.header().memory.store(memory, Ordering::SeqCst);
        shared.slots()[0].pid.store(own_pid(), Ordering::SeqCst);
        Ok(shared)
    }

    /// Joins the processes that share physical device `device` in the directory `dir`. The first
    /// one creates the files.
    ///
    /// # Errors
    /// The directory cannot be used, the file is of another version, or all slots are taken.
    pub fn join(dir: &Path, device: usize, memory: u64) -> io::Result<Shared> {
        std::fs::create_dir_all(dir)?;
        let locks = open(dir, &dir.join(format!("device-{device}.lock")))?;
        record_lock(&locks, libc::F_SETLKW, libc::F_WRLCK, 0)?;
        let joined = Self::join_locked(dir, device, memory, &locks);
        record_lock(&locks, libc::F_SETLK, libc::F_UNLCK, 0)?;
        let (state, me) = joined?;
        Ok(Shared {
            state,
            file: Some(locks),
            me,
            mutex: Mutex::new(()),
        })
    }

    fn join_locked(
        dir: &Path,
        device: usize,
        memory: u64,
        locks: &File,
    ) -> io::Result<(*const State, usize)> {
        let path = state_path(dir, device);
        let file = open(dir, &path)?;
        let size = size_of::<State>() as u64;
        let fresh = file.metadata()?.len() == 0;
        if fresh {
            file.set_len(size)?;
        } else if file.metadata()?.len() != size {
            return Err(wrong_version(&path));
        }
        let pointer = map_state(Some(&file), true)?;
        // SAFETY: the file is exactly one State long, mapped shared for the process's life.
        let state = unsafe { &*pointer };
        let magic = state.header.magic.load(Ordering::SeqCst);
        if magic == 0 {
            state.header.memory.store(memory, Ordering::SeqCst);
            state.header.magic.store(MAGIC, Ordering::SeqCst);
        } else if magic != MAGIC {
            return Err(wrong_version(&path));
        }
        let me = claim(state, locks)?;
        if !others_alive(state, locks, me) {
            // No other process is alive, so the old state is discarded: the memory size may differ,
            // and after a reboot the clock of the timeline starts again.
            state.header.memory.store(memory, Ordering::SeqCst);
            state.header.free_at.store(0, Ordering::SeqCst);
            state.header.owner.store(0, Ordering::SeqCst);
            state.header.waiting.store(0, Ordering::SeqCst);
        }
        Ok((pointer, me))
    }

    /// The mapped state file.
    pub fn state(&self) -> &State {
        // SAFETY: mapped for the process's life; all fields are atomics.
        unsafe { &*self.state }
    }

    /// The head of the state.
    pub fn header(&self) -> &Header {
        &self.state().header
    }

    /// All slots.
    pub fn slots(&self) -> &[Slot; SLOTS] {
        &self.state().slots
    }

    /// This process's slot.
    pub fn mine(&self) -> &Slot {
        &self.slots()[self.me]
    }

    /// The value of [`Header::owner`] for this process.
    pub fn my_turn(&self) -> u32 {
        self.me as u32 + 1
    }

    /// Whether the process of that slot is alive.
    pub fn alive(&self, slot: usize) -> bool {
        match &self.file {
            _ if slot == self.me => true,
            Some(file) => locked_by_other(file, slot as i64 + 1).unwrap_or(true),
            None => false,
        }
    }

    /// Charges `bytes` to the account of the device. Returns false if less memory is free.
    pub fn charge(&self, bytes: u64) -> bool {
        let _guard = lock(&self.mutex);
        let _lock = self.file.as_ref().map(MutexByte::hold);
        let free = self
            .header()
            .memory
            .load(Ordering::SeqCst)
            .saturating_sub(self.total_used());
        let fits = bytes <= free;
        if fits {
            self.mine().used.fetch_add(bytes, Ordering::SeqCst);
        }
        fits
    }

    /// Releases charged bytes.
    pub fn release(&self, bytes: u64) {
        self.mine().used.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// (free, total) bytes of the device.
    pub fn memory(&self) -> (u64, u64) {
        let total = self.header().memory.load(Ordering::SeqCst);
        let used = {
            let _guard = lock(&self.mutex);
            let _lock = self.file.as_ref().map(MutexByte::hold);
            self.total_used()
        };
        (total.saturating_sub(used), total)
    }

    /// Sum of the memory of all processes. Sets the memory of dead processes to 0. The caller holds
    /// the lock.
    fn total_used(&self) -> u64 {
        let mut sum = 0;
        for (i, slot) in self.slots().iter().enumerate() {
            let used = slot.used.load(Ordering::SeqCst);
            if used != 0 && !self.alive(i) {
                slot.used.store(0, Ordering::SeqCst);
            } else {
                sum += used;
            }
        }
        sum
    }

    /// Waits until the futex word `seq` differs from `seen`, for at most `ms` milliseconds. May
    /// return early.
    pub fn wait(&self, seen: u32, ms: u64) {
        let t = libc::timespec {
            tv_sec: (ms / 1000) as libc::time_t,
            tv_nsec: (ms % 1000 * 1_000_000) as libc::c_long,
        };
        // SAFETY: the futex word is mapped and aligned; `t` is a valid relative timeout.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                &raw const self.header().seq,
                libc::FUTEX_WAIT,
                seen,
                &t,
            )
        };
    }

    /// Wakes all processes that wait for `seq`.
    pub fn wake(&self) {
        // SAFETY: the futex word is mapped and aligned.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                &raw const self.header().seq,
                libc::FUTEX_WAKE,
                i32::MAX,
            )
        };
    }
}

fn wrong_version(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "{} is of another soft-gpu version: remove it or name another directory",
            path.display()
        ),
    )
}

/// Claims a slot. Slots that no process used yet are preferred, so that the figures of ended
/// processes stay readable.
fn claim(state: &State, locks: &File) -> io::Result<usize> {
    let unused = |used: bool| {
        (0..SLOTS).filter(move |i| (state.slots[*i].pid.load(Ordering::SeqCst) != 0) == used)
    };
    for i in unused(false).chain(unused(true)) {
        if record_lock(locks, libc::F_SETLK, libc::F_WRLCK, i as i64 + 1).is_err() {
            continue;
        }
        let slot = &state.slots[i];
        slot.used.store(0, Ordering::SeqCst);
        slot.wants.store(0, Ordering::SeqCst);
        slot.kernels.store(0, Ordering::SeqCst);
        slot.open_ns.store(0, Ordering::SeqCst);
        let old = slot.busy_ns.swap(0, Ordering::SeqCst);
        state.header.retired_ns.fetch_add(old, Ordering::SeqCst);
        slot.pid.store(own_pid(), Ordering::SeqCst);
        // The former process of the slot may have died with the turn. Then nobody has the turn.
        let turn = i as u32 + 1;
        let _ = state
            .header
            .owner
            .compare_exchange(turn, 0, Ordering::SeqCst, Ordering::SeqCst);
        return Ok(i);
    }
    Err(io::Error::other("every slot of the soft device is taken"))
}

fn others_alive(state: &State, locks: &File, me: usize) -> bool {
    (0..SLOTS).any(|i| {
        i != me
            && state.slots[i].pid.load(Ordering::SeqCst) != 0
            && locked_by_other(locks, i as i64 + 1).unwrap_or(true)
    })
}

/// Byte 0 of the lock file, used as a mutex between processes.
struct MutexByte<'a>(&'a File);

impl<'a> MutexByte<'a> {
    fn hold(file: &'a File) -> Self {
        // Errors (deadlock detection) are ignored: without the lock, only this account may be
        // inexact.
        let _ = record_lock(file, libc::F_SETLKW, libc::F_WRLCK, 0);
        MutexByte(file)
    }
}

impl Drop for MutexByte<'_> {
    fn drop(&mut self) {
        let _ = record_lock(self.0, libc::F_SETLK, libc::F_UNLCK, 0);
    }
}

fn flock(kind: i32, byte: i64) -> libc::flock {
    // SAFETY: flock is plain data, and all zeros is a valid value.
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = kind as libc::c_short;
    l.l_whence = libc::SEEK_SET as libc::c_short;
    l.l_start = byte;
    l.l_len = 1;
    l
}

fn record_lock(file: &File, command: i32, kind: i32, byte: i64) -> io::Result<()> {
    let l = flock(kind, byte);
    loop {
        // SAFETY: a valid descriptor and a valid flock.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &l) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn locked_by_other(file: &File, byte: i64) -> io::Result<bool> {
    let mut l = flock(libc::F_WRLCK, byte);
    // SAFETY: a valid descriptor, and a valid flock for the result.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut l) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(l.l_type) != libc::F_UNLCK)
}

/// Reads the used slots of a device, including those of dead processes.
///
/// # Errors
/// No such device in `dir`, or a file of another version.
pub fn read_slots(dir: &Path, device: usize) -> io::Result<Vec<SlotView>> {
    let path = state_path(dir, device);
    let file = File::open(&path)?;
    if file.metadata()?.len() != size_of::<State>() as u64 {
        return Err(wrong_version(&path));
    }
    let pointer = map_state(Some(&file), false)?;
    // SAFETY: the file is one State long, and mapped until the munmap below. The mapping is only
    // read.
    let state = unsafe { &*pointer };
    let views = state
        .slots
        .iter()
        .filter(|s| s.pid.load(Ordering::SeqCst) != 0)
        .map(|s| SlotView {
            pid: s.pid.load(Ordering::SeqCst),
            used: s.used.load(Ordering::SeqCst),
            busy_ns: s.busy_ns.load(Ordering::SeqCst),
            kernels: s.kernels.load(Ordering::SeqCst),
        })
        .collect();
    // SAFETY: the range was mapped above with this size, and no reference to it is used afterwards.
    unsafe { libc::munmap(pointer.cast_mut().cast(), size_of::<State>()) };
    Ok(views)
}
