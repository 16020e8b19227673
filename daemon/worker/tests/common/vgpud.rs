//! A fake vgpud: grants by its policy and records all messages.

use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair,
};
use nix::unistd::ftruncate;
use vgpu_proto::call::{MemoryLimit, Shortage};
use vgpu_proto::codec::{decode, encode};
use vgpu_proto::lease::{DaemonEnd, GrantTerms, HintPage, LeasePage, PAGE_BYTES, UNLIMITED};
use vgpu_proto::limits::MAX_WORKER_MESSAGE;
use vgpu_proto::worker::{FromWorker, Start, ToWorker};

use super::{DEADLINE, SESSION};

/// Automatic behaviour of the fake vgpud.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Grant a lease whenever the worker is runnable.
    pub grant: bool,
    /// Credit totals: calls, bytes.
    pub credit: (u64, u64),
    /// Hold of an idle lease in ns.
    pub hold_ns: u64,
    /// Device memory of the VM's ledger, in bytes.
    pub memory: u64,
    /// Bytes of the VM's quota that other programs of the VM use.
    pub others: u64,
    /// Whether the answer to a denied request is delayed until memory is freed.
    pub late_denials: bool,
    /// Reason for which memory for images is refused; `None`: memory is granted.
    pub no_images: Option<String>,
    /// Whether complete images are put into the cache.
    pub keep_images: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            grant: true,
            credit: (UNLIMITED, UNLIMITED),
            hold_ns: 100_000,
            memory: u64::MAX,
            others: 0,
            late_denials: false,
            no_images: None,
            keep_images: true,
        }
    }
}

#[derive(Default)]
struct Books {
    heard: Vec<FromWorker>,
    /// Index at which the last wait stopped.
    seen: usize,
    epoch: u64,
    lease: bool,
    used: u64,
    /// The request that was denied and is not answered yet.
    denied: Option<u64>,
    closed: bool,
    /// Quota of the VM in bytes; `None`: no quota.
    quota: Option<u64>,
    image_dir: PathBuf,
    images: HashMap<u64, File>,
}

pub struct Vgpud {
    socket: Arc<OwnedFd>,
    pub pages: DaemonEnd<'static>,
    fds: [OwnedFd; 2],
    policy: Arc<Mutex<Policy>>,
    books: Arc<(Mutex<Books>, Condvar)>,
}

impl Vgpud {
    pub fn new(policy: Policy) -> (Vgpud, OwnedFd) {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .expect("a socket pair");
        let (lease_fd, lease) = page();
        let (hint_fd, hint) = page();
        // SAFETY: a whole zeroed page, mapped for the life of the process; all words are atomics.
        let lease = unsafe { &*lease.cast::<LeasePage>() };
        // SAFETY: as above.
        let hint = unsafe { &*hint.cast::<HintPage>() };
        let pages = DaemonEnd::new(lease, hint);
        pages.name(SESSION);
        let vgpud = Vgpud {
            socket: Arc::new(ours),
            pages,
            fds: [lease_fd, hint_fd],
            policy: Arc::new(Mutex::new(policy)),
            books: Arc::default(),
        };
        vgpud.listen();
        (vgpud, theirs)
    }

    pub fn start(&self, start: &Start) {
        let mut books = self.books.0.lock().expect("books");
        (books.image_dir, books.quota) = (PathBuf::from(&start.image_dir), start.memory_quota);
        drop(books);
        let raw: Vec<RawFd> = self.fds.iter().map(AsRawFd::as_raw_fd).collect();
        send(&self.socket, &ToWorker::Start(start.clone()), &raw);
    }

    pub fn send(&self, message: &ToWorker, fds: &[OwnedFd]) {
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        send(&self.socket, message, &raw);
    }

    /// Closes the control socket, as the end of vgpud does.
    pub fn hang_up(&self) {
        nix::sys::socket::shutdown(self.socket.as_raw_fd(), nix::sys::socket::Shutdown::Both)
            .expect("shutdown");
    }

    pub fn set(&self, change: impl FnOnce(&mut Policy)) {
        change(&mut self.policy.lock().expect("policy"));
    }

    /// Grants a lease now, regardless of the policy. Returns the epoch.
    pub fn grant(&self) -> u64 {
        let policy = self.policy.lock().expect("policy").clone();
        let mut books = self.books.0.lock().expect("books");
        grant(&self.socket, &self.pages, &policy, &mut books)
    }

    /// Revokes the lease as vgpud does: on the lease page, and then with a message unless the lease
    /// was parked. Returns whether the lease was parked.
    pub fn revoke(&self, epoch: u64) -> bool {
        if self.pages.revoke(epoch) && self.pages.reclaim(epoch) {
            self.books.0.lock().expect("books").lease = false;
            return true;
        }
        send(&self.socket, &ToWorker::Revoke { epoch }, &[]);
        false
    }

    /// Waits for a message that arrived after the messages of earlier waits.
    #[track_caller]
    pub fn wait<T>(&self, what: &str, pick: impl Fn(&FromWorker) -> Option<T>) -> T {
        let (lock, changed) = &*self.books;
        let until = Instant::now() + DEADLINE;
        let mut books = lock.lock().expect("books");
        loop {
            while let Some(message) = books.heard.get(books.seen) {
                let picked = pick(message);
                books.seen += 1;
                if let Some(found) = picked {
                    return found;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {what}; heard {:?}", books.heard);
            assert!(
                !books.closed,
                "no {what}: the worker is gone; heard {:?}",
                books.heard
            );
            books = changed.wait_timeout(books, left).expect("books").0;
        }
    }

    /// Bytes of memory that were granted to the worker and not given back.
    pub fn reserved(&self) -> u64 {
        self.books.0.lock().expect("books").used
    }

    pub fn heard(&self) -> Vec<FromWorker> {
        self.books.0.lock().expect("books").heard.clone()
    }

    fn listen(&self) {
        let (socket, pages) = (Arc::clone(&self.socket), self.pages);
        let (policy, books) = (Arc::clone(&self.policy), Arc::clone(&self.books));
        std::thread::spawn(move || {
            let mut buffer = vec![0u8; MAX_WORKER_MESSAGE];
            loop {
                let n = match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                    // As in `vgpud::worker::channel`: the worker's last messages can still be read
                    // after this error.
                    Err(Errno::ECONNRESET) => continue,
                    received => received.unwrap_or(0),
                };
                let (lock, changed) = &*books;
                let mut books = lock.lock().expect("books");
                if n == 0 {
                    books.closed = true;
                    changed.notify_all();
                    return;
                }
                let message: FromWorker = decode(&buffer[..n]).expect("a message");
                let policy = policy.lock().expect("policy").clone();
                answer(&socket, &pages, &policy, &mut books, &message);
                books.heard.push(message);
                changed.notify_all();
            }
        });
    }
}

fn answer(
    socket: &OwnedFd,
    pages: &DaemonEnd<'static>,
    policy: &Policy,
    books: &mut Books,
    message: &FromWorker,
) {
    match message {
        FromWorker::Runnable { .. } if policy.grant && !books.lease => {
            grant(socket, pages, policy, books);
        }
        FromWorker::Released { epoch, calls, .. } => {
            assert_eq!(*epoch, books.epoch, "another lease than the one granted");
            books.lease = false;
            if *calls > 0 && policy.grant {
                grant(socket, pages, policy, books);
            }
        }
        FromWorker::MemReserve {
            request,
            bytes,
            needed,
            ..
        } => {
            let granted = books
                .used
                .checked_add(*bytes)
                .is_some_and(|used| used <= policy.memory);
            if granted {
                books.used += bytes;
            }
            if !granted && policy.late_denials {
                books.denied = Some(*request);
            } else {
                let refused = (policy.memory - books.used, *needed);
                mem_grant(socket, *request, (!granted).then_some(refused));
            }
        }
        FromWorker::MemRelease { bytes, .. } => {
            books.used = books
                .used
                .checked_sub(*bytes)
                .expect("more given back than was granted");
            if let Some(request) = books.denied.take() {
                // The worker no longer counts this refusal, because memory was freed since.
                mem_grant(socket, request, Some((0, 0)));
            }
        }
        FromWorker::MemAsk { .. } => {
            let left = |quota: u64| quota.saturating_sub(books.used + policy.others);
            let bytes = books.quota.map_or(u64::MAX, left);
            send(socket, &ToWorker::MemLeft { bytes }, &[]);
        }
        FromWorker::ImageBegin { image, len } => {
            let refused = policy.no_images.clone();
            let memory = memfd_create(c"image", MFdFlags::MFD_CLOEXEC).expect("a memfd");
            ftruncate(&memory, *len as i64).expect("room");
            let raw = [memory.as_raw_fd()];
            let fds: &[RawFd] = if refused.is_some() { &[] } else { &raw };
            let image = *image;
            send(socket, &ToWorker::ImageRoom { image, refused }, fds);
            books.images.insert(image, File::from(memory));
        }
        FromWorker::ImageWhole { image, hash } => {
            if policy.keep_images {
                let memory = &books.images[image];
                let mut bytes = vec![0; memory.metadata().expect("meta").len() as usize];
                memory.read_exact_at(&mut bytes, 0).expect("read");
                let name = blake3::Hash::from_bytes(*hash).to_hex();
                let [new, name] = [".new", name.as_str()].map(|file| books.image_dir.join(file));
                // The worker may have mapped an image of this name, so a new file replaces it.
                std::fs::write(&new, bytes).expect("write");
                std::fs::rename(new, name).expect("rename");
            }
            send(socket, &ToWorker::ImageKept { image: *image }, &[]);
        }
        FromWorker::ImageDone { image } => {
            books.images.remove(image).expect("an image that was begun");
        }
        _ => {}
    }
}

fn grant(socket: &OwnedFd, pages: &DaemonEnd<'static>, policy: &Policy, books: &mut Books) -> u64 {
    assert!(!books.lease, "a second lease");
    books.epoch += 1;
    books.lease = true;
    let epoch = books.epoch;
    let terms = GrantTerms {
        epoch,
        slice_end_ns: 0,
        hold_ns: policy.hold_ns,
        window_ns: 500_000,
        credit_calls: policy.credit.0,
        credit_bytes: policy.credit.1,
        beside: false,
    };
    pages.grant(&terms, false);
    send(
        socket,
        &ToWorker::Grant {
            epoch,
            slice_ns: 2_000_000,
        },
        &[],
    );
    epoch
}

/// Answers a request for memory. `refused`: the bytes that are left, and those that were asked for.
fn mem_grant(socket: &OwnedFd, request: u64, refused: Option<(u64, u64)>) {
    let refused = refused.map(|(left, asked)| Shortage {
        limit: MemoryLimit::Gpu,
        total: 0,
        left,
        asked,
    });
    send(socket, &ToWorker::MemGrant { request, refused }, &[]);
}

fn send(socket: &OwnedFd, message: &ToWorker, fds: &[RawFd]) {
    let bytes = encode(message).expect("encodes");
    let rights = [ControlMessage::ScmRights(fds)];
    let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    let iov = [IoSlice::new(&bytes)];
    // In some tests the worker has already ended.
    let _ = sendmsg::<()>(
        socket.as_raw_fd(),
        &iov,
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    );
}

fn page() -> (OwnedFd, *const u8) {
    let fd = memfd_create(c"page", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    ftruncate(&fd, PAGE_BYTES as i64).expect("a page");
    let len = NonZeroUsize::new(PAGE_BYTES).expect("not zero");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new shared mapping, never unmapped.
    let at = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, fd.as_fd(), 0) };
    (fd, at.expect("mapped").as_ptr().cast())
}
