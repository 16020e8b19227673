//! A worker for vgpud's own tests. It uses the control socket and the lease pages like the real
//! worker, has no driver, and executes single-byte commands that its guest sends on the data
//! connection.
//!
//! | byte | action | answer |
//! |---|---|---|
//! | `E` | nothing | `e` |
//! | `W` | requests the lease, and begins an endless operation once the lease is granted | `G` |
//! | `D` | ends the operation and releases the lease | `d` |
//! | `P` | ends the operation and parks the lease | `p` |
//! | `C` | crashes | – |
//! | `B` | claims the largest possible number of calls and of copied bytes | `b` |
//! | `I` | reports an image complete whose bytes do not match the hash | `i` |
//! | `F` | reports a device fault and ends | – |
//! | `L` | reports a device fault with a text of 60,000 characters | `l` |
//! | `M` | sends garbage on the control socket | – |
//! | `S` | sends 100,000 messages as fast as it can | – |
//! | `X` | closes its control socket and keeps running | – |
//! | `R` | requests 1 MiB of device memory | `y` or `n` |
//! | `A` | releases all device memory, and more than there is | `a` |
//! | `H` | requests 1 GiB of pinned host memory | `y` or `n` |
//! | `N` | reads the window of its last lease | the window in units of 100 µs, as a digit |
//! | `Z` | reports that it has released an image of 64 MiB, and keeps the memory | `z`: vgpud took the memory away; `r`: the memory could be filled again; `k`: vgpud did not take the memory |
//! | `Q` | begins an image of 4 KiB, and releases it | `y`: it got memory; `n`: it was refused |
//! | `Y` | begins an image of 64 MiB, and releases all pinned memory as if the image were not there | `y` |
//! | `K` | forks a process that nothing but SIGKILL ends | the process number in 4 bytes, then `k` |
//! | `U` | uses the device for 500 ms, by the device's own account | `u` |
//!
//! The variable `FAKE_START`: `fail`, `exit`, `silent`, `stubborn` (does not end with vgpud), or
//! `large` (the worker of VM 1 reports a context of 4 GiB).
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{IoSliceMut, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio, exit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send};
use vgpu_proto::codec;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::DeviceInfo;
use vgpu_proto::lease::{HintPage, LeasePage, PAGE_BYTES, Parked, WorkerEnd};
use vgpu_proto::worker::{FromWorker, Start, ToWorker};

const CONTROL: RawFd = 3;

/// First number of the images of `Z`.
const KEPT: u64 = 100;
/// First number of the images of `Y`, which are never released.
const UNDONE: u64 = 1_000;
/// First number of the images of `Q`.
const SHORT: u64 = 10_000;

fn tell(message: &FromWorker) {
    let bytes = codec::encode(message).expect("encodes");
    if send(CONTROL, &bytes, MsgFlags::MSG_NOSIGNAL).is_err() {
        exit(0);
    }
}

fn hear() -> (ToWorker, Vec<OwnedFd>) {
    let mut buffer = vec![0; 1 << 16];
    let mut iov = [IoSliceMut::new(&mut buffer)];
    let mut space = nix::cmsg_space!([RawFd; 2]);
    let received = recvmsg::<()>(
        CONTROL,
        &mut iov,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    );
    let Ok(received) = received else { exit(0) };
    let mut fds = Vec::new();
    for control in received.cmsgs().expect("control messages") {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just made these descriptors for us.
            fds.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    let length = received.bytes;
    if length == 0 {
        // vgpud has ended or closed its end, or the command `X` has closed this end.
        while std::env::var("FAKE_START").is_ok_and(|mode| mode == "stubborn") {
            std::thread::sleep(Duration::from_secs(1));
        }
        exit(0);
    }
    (codec::decode(&buffer[..length]).expect("a message"), fds)
}

fn map<T>(fd: &OwnedFd, access: ProtFlags) -> &'static T {
    let length = PAGE_BYTES.try_into().expect("a page");
    // SAFETY: a new mapping replaces nothing.
    let at = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, fd, 0) }.expect("mapped");
    // SAFETY: a whole page of atomics, mapped until the process ends.
    unsafe { at.cast::<T>().as_ref() }
}

fn device(start: &Start) -> DeviceInfo {
    DeviceInfo {
        name: format!("Fake (soft) for VM {}", start.vm),
        uuid: [1; 16],
        total_memory: 1 << 30,
        pci_bus_id: "0000:00:00.0".into(),
        attributes: vec![(16, 4)],
        stream_priorities: (0, -5),
    }
}

/// State that both threads share.
struct Shared {
    pages: WorkerEnd<'static>,
    held: Mutex<u64>,
    data: Mutex<Option<UnixStream>>,
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, u64> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, byte: u8) {
        if let Some(data) = self
            .data
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
        {
            let _ = data.write_all(&[byte]);
        }
    }

    fn granted(&self) {
        let mut held = self.held();
        if let Some(epoch) = self.pages.accept(*held) {
            *held = epoch;
            drop(held);
            let _ = self.pages.take(1, 0);
            self.pages.publish_submitted(1);
            self.answer(b'G');
        }
    }
}

/// A file in the directory that processes on software devices share.
fn soft_state(file: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("SOFT_GPU_STATE").expect("a directory")).join(file)
}

/// A slot on device 0, taken as soft-gpu takes it (`soft-gpu/src/driver/share.rs`).
struct Slot {
    state: File,
    at: u64,
    busy_ns: u64,
    /// Open until the process ends: a close would release the lock of the slot.
    _locks: File,
}

impl Slot {
    fn take(vm: u32) -> Slot {
        let open = |name| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(soft_state(name))
        };
        let (state, locks) = (
            open("device-0.state").expect("a state"),
            open("device-0.lock").expect("locks"),
        );
        let lock = nix::libc::flock {
            l_type: nix::libc::F_WRLCK as nix::libc::c_short,
            l_whence: nix::libc::SEEK_SET as nix::libc::c_short,
            l_start: i64::from(vm) + 1,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(&locks, FcntlArg::F_SETLK(&lock)).expect("the place is free");
        state.set_len(120 + 512 * 64).expect("a length");
        state.write_all_at(b"softgpu1", 0).expect("a magic");
        let at = 120 + 64 * u64::from(vm);
        state
            .write_all_at(&own_pid().to_le_bytes(), at)
            .expect("a pid");
        state
            .write_all_at(&0_u64.to_le_bytes(), at + 16)
            .expect("a clock");
        Slot {
            state,
            at,
            busy_ns: 0,
            _locks: locks,
        }
    }

    fn use_for(&mut self, ns: u64) {
        self.busy_ns += ns;
        let clock = self.busy_ns.to_le_bytes();
        self.state
            .write_all_at(&clock, self.at + 16)
            .expect("a clock");
    }
}

/// The number of this process in the host's process namespace, which mounted /proc.
fn own_pid() -> u32 {
    let known = std::fs::read_link("/proc/self").expect("a link");
    known.to_string_lossy().parse().expect("a number")
}

/// Starts a process in a session of its own, without a parent, that ignores all signals but
/// SIGKILL: a process that a guest may leave behind after it took over its worker. Returns the
/// process number in the host's process namespace.
fn fork_survivor() -> u32 {
    let script = "trap '' HUP TERM INT PIPE; (read pid rest < /proc/self/stat; echo $pid; \
                  exec >/dev/null 2>&1; while :; do sleep 1; done) &";
    let mut starter = Command::new("setsid");
    let output = starter
        .args(["sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut said = String::new();
    let mut pipe = output.expect("a child").stdout.take().expect("piped");
    let _ = pipe.read_to_string(&mut said);
    said.trim().parse().expect("a number")
}

/// Fills the memory of an image, reports that the image is released, and keeps the memory. Returns
/// the answer of `Z`.
fn keep_room(image: u64, room: File) -> u8 {
    let len = room.metadata().expect("a memfd").len();
    for at in (0..len).step_by(1 << 20) {
        room.write_all_at(&[7; 1 << 20], at).expect("room");
    }
    tell(&FromWorker::ImageDone { image });
    let deadline = Instant::now() + Duration::from_secs(30);
    while Instant::now() < deadline {
        if room.metadata().expect("a memfd").blocks() == 0 {
            let refilled = room.write_all_at(&[7], 0).is_ok() || room.set_len(len).is_ok();
            // The descriptor stays open until the process ends.
            std::mem::forget(room);
            return if refilled { b'r' } else { b'z' };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    b'k'
}

fn main() {
    let mode = std::env::var("FAKE_START").unwrap_or_default();
    if mode == "exit" {
        exit(7);
    }
    let (ToWorker::Start(start), fds) = hear() else {
        exit(1)
    };
    let lease: &LeasePage = map(&fds[0], ProtFlags::PROT_READ);
    let hints: &HintPage = map(&fds[1], ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let pages = WorkerEnd::new(lease, hints);
    assert_eq!(pages.session(), start.session);
    eprintln!("fake worker of session {} with {mode:?}", start.session);
    match mode.as_str() {
        "fail" => {
            tell(&FromWorker::Failed {
                code: CuResult(999),
                text: "no driver here".into(),
            });
            exit(1);
        }
        "silent" => loop {
            hear();
        },
        _ => {}
    }
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").expect("which devices");
    tell(&FromWorker::Ready {
        driver_version: 13_000,
        devices: vec![device(&start); visible.split(',').count()],
        context_bytes: if mode == "large" && start.vm == 1 {
            4 << 30
        } else {
            0
        },
        pinned_bytes: 1 << 20,
    });
    let shared = Arc::new(Shared {
        pages,
        held: Mutex::new(0),
        data: Mutex::new(None),
    });
    let (data_came, data) = mpsc::channel::<UnixStream>();
    let (guest, vm) = (shared.clone(), start.vm);
    std::thread::spawn(move || {
        if let Ok(data) = data.recv() {
            serve(&guest, data, vm);
        }
    });
    loop {
        match hear() {
            (ToWorker::Data, mut fds) => {
                let stream = UnixStream::from(fds.remove(0));
                *shared.data.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(stream.try_clone().expect("dup"));
                let _ = data_came.send(stream);
            }
            (ToWorker::Grant { .. }, _) => shared.granted(),
            (ToWorker::ImageRoom { image, .. }, mut fds) if (KEPT..UNDONE).contains(&image) => {
                shared.answer(keep_room(image, File::from(fds.remove(0))));
            }
            (ToWorker::ImageRoom { image, refused }, _) if image >= SHORT => {
                if refused.is_none() {
                    tell(&FromWorker::ImageDone { image });
                }
                shared.answer(if refused.is_none() { b'y' } else { b'n' });
            }
            (ToWorker::MemGrant { refused, .. }, _) => {
                shared.answer(if refused.is_none() { b'y' } else { b'n' });
            }
            (ToWorker::Shutdown, _) => exit(0),
            // Revokes are ignored until the guest sends `D`, so this worker can hang.
            _ => {}
        }
    }
}

fn serve(shared: &Shared, mut data: UnixStream, vm: u32) {
    let mut byte = [0];
    let mut slot: Option<Slot> = None;
    let mut images = 0;
    let epoch = || *shared.held();
    while data.read_exact(&mut byte).is_ok() {
        match byte[0] {
            b'E' => shared.answer(b'e'),
            b'W' => {
                tell(&FromWorker::Runnable {
                    calls: 1,
                    bytes: 0,
                    at_ns: u64::MAX,
                });
                shared.granted();
            }
            b'D' => {
                shared.pages.publish_completed(1);
                tell(&FromWorker::Released {
                    epoch: epoch(),
                    calls: 0,
                    bytes: 0,
                });
                shared.answer(b'd');
            }
            b'P' => {
                shared.pages.publish_completed(1);
                match shared.pages.park(epoch()) {
                    Parked::Kept => tell(&FromWorker::Idle {
                        epoch: epoch(),
                        at_ns: u64::MAX,
                    }),
                    Parked::GiveBack => {
                        tell(&FromWorker::Released {
                            epoch: epoch(),
                            calls: 0,
                            bytes: 0,
                        });
                    }
                    Parked::Taken => {}
                }
                shared.answer(b'p');
            }
            b'B' => {
                shared.pages.owe(u64::MAX, u64::MAX);
                shared.pages.count_out(u64::MAX);
                shared.answer(b'b');
            }
            b'I' => {
                let image = 1;
                tell(&FromWorker::ImageBegin { image, len: 4_096 });
                tell(&FromWorker::ImageWhole {
                    image,
                    hash: [7; 32],
                });
                shared.answer(b'i');
            }
            b'Z' => {
                images += 1;
                tell(&FromWorker::ImageBegin {
                    image: KEPT + images,
                    len: 64 << 20,
                });
            }
            b'Q' => {
                images += 1;
                tell(&FromWorker::ImageBegin {
                    image: SHORT + images,
                    len: 4_096,
                });
            }
            // Releases the memory of the image as if it were other pinned memory.
            b'Y' => {
                images += 1;
                tell(&FromWorker::ImageBegin {
                    image: UNDONE + images,
                    len: 64 << 20,
                });
                tell(&FromWorker::MemRelease {
                    device: None,
                    bytes: u64::MAX,
                });
                shared.answer(b'y');
            }
            b'C' => std::process::abort(),
            b'F' => {
                let text = "illegal address 0x10".to_owned();
                tell(&FromWorker::Fault {
                    code: CuResult(700),
                    text,
                });
                exit(1);
            }
            b'L' => {
                tell(&FromWorker::Fault {
                    code: CuResult(700),
                    text: "x".repeat(60_000),
                });
                shared.answer(b'l');
            }
            b'M' => {
                let _ = send(CONTROL, &[0xff; 64], MsgFlags::MSG_NOSIGNAL);
            }
            b'S' => {
                for _ in 0..100_000 {
                    tell(&FromWorker::Idle {
                        epoch: 0,
                        at_ns: u64::MAX,
                    });
                }
            }
            b'X' => {
                let _ = nix::sys::socket::shutdown(CONTROL, nix::sys::socket::Shutdown::Both);
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
            b'R' => tell(&FromWorker::MemReserve {
                request: 1,
                device: Some(0),
                bytes: 1 << 20,
                needed: 1 << 20,
            }),
            b'A' => {
                tell(&FromWorker::MemRelease {
                    device: Some(0),
                    bytes: u64::MAX,
                });
                shared.answer(b'a');
            }
            b'H' => tell(&FromWorker::MemReserve {
                request: 2,
                device: None,
                bytes: 1 << 30,
                needed: 1 << 30,
            }),
            b'N' => {
                let window = shared.pages.window_ns() / 100_000;
                shared.answer(b'0' + u8::try_from(window).unwrap_or(9).min(9));
            }
            b'K' => {
                let pid = fork_survivor();
                for byte in pid.to_le_bytes() {
                    shared.answer(byte);
                }
                shared.answer(b'k');
            }
            b'U' => {
                slot.get_or_insert_with(|| Slot::take(vm))
                    .use_for(500_000_000);
                shared.answer(b'u');
            }
            _ => exit(1),
        }
    }
    let text = "the guest closed its data connection".to_owned();
    tell(&FromWorker::Ended {
        protocol_error: false,
        text,
    });
    std::thread::sleep(Duration::from_millis(20));
    exit(0);
}
