//! A worker for vgpud's own tests: speaks the control socket and the lease pages as the real one, has
//! no driver, and does what its guest tells it by single bytes on the data connection.
//!
//! | byte | what it does | answer |
//! |---|---|---|
//! | `E` | nothing | `e` |
//! | `W` | asks for the lease and, when it has it, begins an operation that does not end | `G` |
//! | `D` | ends the operation and gives the lease back | `d` |
//! | `P` | ends the operation and parks the lease | `p` |
//! | `C` | crashes | – |
//! | `F` | reports a device fault and ends | – |
//! | `M` | sends garbage on the control socket | – |
//! | `S` | sends 100,000 messages as fast as it can | – |
//! | `X` | closes its control socket and goes on | – |
//! | `R` | asks for 1 MiB of device memory | `y` or `n` |
//!
//! `FAKE_START` in its environment: `fail`, `exit`, `silent`, or `stubborn` (does not end with vgpud).
#![allow(unsafe_code)]

use std::io::{IoSliceMut, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send};
use vgpu_proto::codec;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::DeviceInfo;
use vgpu_proto::lease::{HintPage, LeasePage, PAGE_BYTES, Parked, WorkerEnd};
use vgpu_proto::worker::{FromWorker, Start, ToWorker};

const CONTROL: RawFd = 3;

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
        // vgpud is gone, or has closed its end; or `X` has.
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

/// What both threads know.
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
    tell(&FromWorker::Ready {
        driver_version: 13_000,
        devices: vec![device(&start)],
        context_bytes: 1 << 20,
    });
    let shared = Arc::new(Shared {
        pages,
        held: Mutex::new(0),
        data: Mutex::new(None),
    });
    let (data_came, data) = mpsc::channel::<UnixStream>();
    let guest = shared.clone();
    std::thread::spawn(move || {
        if let Ok(data) = data.recv() {
            serve(&guest, data);
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
            (ToWorker::MemGrant { granted, .. }, _) => {
                shared.answer(if granted { b'y' } else { b'n' });
            }
            (ToWorker::Shutdown, _) => exit(0),
            // A revoke is honoured only when the guest says so: this is the worker that hangs.
            _ => {}
        }
    }
}

fn serve(shared: &Shared, mut data: UnixStream) {
    let mut byte = [0];
    let epoch = || *shared.held();
    while data.read_exact(&mut byte).is_ok() {
        match byte[0] {
            b'E' => shared.answer(b'e'),
            b'W' => {
                tell(&FromWorker::Runnable { calls: 1, bytes: 0 });
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
                    Parked::Kept => tell(&FromWorker::Idle { epoch: epoch() }),
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
            b'C' => std::process::abort(),
            b'F' => {
                let text = "illegal address 0x10".to_owned();
                tell(&FromWorker::Fault {
                    code: CuResult(700),
                    text,
                });
                exit(1);
            }
            b'M' => {
                let _ = send(CONTROL, &[0xff; 64], MsgFlags::MSG_NOSIGNAL);
            }
            b'S' => {
                for _ in 0..100_000 {
                    tell(&FromWorker::Idle { epoch: 0 });
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
                bytes: 1 << 20,
            }),
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
