//! The host's side of a test: the handshake of vgpud, then a worker that the test scripts.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use vgpu_proto::call::ops::{Call, Progress};
use vgpu_proto::call::{FINGERPRINT, Notice, Request, rep, req};
use vgpu_proto::codec;
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Func, Module, WORKER_HANDLES};
use vgpu_proto::frame::{FLAG_MORE, HEADER_LEN, Header};
use vgpu_proto::handshake::*;
use vgpu_proto::limits::{DEPTH_BYTES, DEPTH_CALLS, MAX_BULK, PROGRESS_BYTES};
use vgpu_proto::look::{Looked, question};
use zerocopy::IntoBytes as _;

/// Time limit of every wait of a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// First device address that the fake host returns.
pub(crate) const ARENA: u64 = 0x0000_7e00_0000_0000;
/// The only context of the fake host.
pub(crate) const CTX: u64 = WORKER_HANDLES.start + 1;
/// The only module of the fake host.
pub(crate) const MODULE: u64 = WORKER_HANDLES.start + 2;
/// The only function of the fake host: parameters (0, 8), (8, 4), (16, 8).
pub(crate) const FUNC: u64 = WORKER_HANDLES.start + 3;

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) bulk: Vec<u8>,
}

/// The host's ends of a session's connections.
pub(crate) struct Link {
    pub(crate) data: UnixStream,
    pub(crate) control: UnixStream,
    depth_calls: u32,
    calls: u64,
    bytes: u64,
    bytes_told: u64,
    next: u64,
    memory: BTreeMap<u64, Vec<u8>>,
}

/// What a host has received.
#[derive(Default)]
pub(crate) struct Seen {
    frames: Vec<Frame>,
    hellos: Vec<Hello>,
    sessions_over: usize,
    goodbyes: usize,
    looks: usize,
}

/// Handles a frame. True: the frame was handled; false: the host sends the usual answer.
pub(crate) type Script = Box<dyn FnMut(&Frame, &mut Link) -> bool + Send>;

/// A listening host.
pub(crate) struct Host {
    folder: tempfile::TempDir,
    seen: Arc<(Mutex<Seen>, Condvar)>,
}

/// The Welcome of a host with one ordinary device.
pub(crate) fn welcome() -> Welcome {
    Welcome {
        session: 7,
        nonce: [0x5a; NONCE_LEN],
        daemon_version: "test".into(),
        cuda_version: 12_040,
        devices: vec![device(0)],
        depth_calls: DEPTH_CALLS,
        depth_bytes: DEPTH_BYTES,
    }
}

/// An ordinary device.
pub(crate) fn device(n: u8) -> DeviceInfo {
    let attributes = [
        (1, 1024),
        (2, 1024),
        (3, 1024),
        (4, 64),
        (5, i32::MAX),
        (6, 65_535),
        (7, 65_535),
        (8, 49_152),
        (10, 32),
        (16, 4),
        (39, 2048),
        (75, 8),
        (76, 0),
    ];
    DeviceInfo {
        name: format!("stand-in {n}"),
        uuid: [n; 16],
        total_memory: 1 << 30,
        pci_bus_id: format!("0000:0{n}:00.0"),
        attributes: attributes.to_vec(),
        stream_priorities: (0, -5),
    }
}

impl Host {
    /// A host with the usual answers.
    pub(crate) fn usual() -> Host {
        Host::scripted(|_, _| false)
    }

    /// A host with a scripted worker; all sessions run the same script, one after the other.
    pub(crate) fn scripted(script: impl FnMut(&Frame, &mut Link) -> bool + Send + 'static) -> Host {
        Host::with(welcome(), script)
    }

    /// As [`Host::scripted`], with a Welcome of the test.
    pub(crate) fn with(
        welcome: Welcome,
        script: impl FnMut(&Frame, &mut Link) -> bool + Send + 'static,
    ) -> Host {
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let looked = Looked {
            cuda_version: Some(welcome.cuda_version),
            ..Looked::default()
        };
        Host::serving(Some(looked), move |host, mut control, hello, listener| {
            let body = codec::encode(&welcome).expect("the welcome encodes");
            greet(&mut control, 0, &body);
            let (mut data, _) = listener.accept().expect("the data connection comes");
            let mut opening = [0; DATA_PREAMBLE_LEN];
            data.read_exact(&mut opening)
                .expect("it opens with a nonce");
            assert_eq!(&opening[..8], &DATA_MAGIC);
            assert_eq!(&opening[8..], &welcome.nonce);
            let (seen, changed) = (&host.0, &host.1);
            seen.lock().expect("no panic").hellos.push(hello);
            changed.notify_all();
            let (script, host, depth) = (script.clone(), host.clone(), welcome.depth_calls);
            std::thread::spawn(move || serve(&host, control, data, depth, &script));
        })
    }

    /// A host that answers every Hello with a refusal.
    pub(crate) fn refusing(code: u32, text: &'static str) -> Host {
        Host::answering(move |_, mut control, _, _| greet(&mut control, code, text.as_bytes()))
    }

    /// A host that calls `answer` for each Hello. Looks get no answer.
    pub(crate) fn answering(
        answer: impl FnMut(&Arc<(Mutex<Seen>, Condvar)>, UnixStream, Hello, &UnixListener)
        + Send
        + 'static,
    ) -> Host {
        Host::serving(None, answer)
    }

    fn serving(
        looked: Option<Looked>,
        mut answer: impl FnMut(&Arc<(Mutex<Seen>, Condvar)>, UnixStream, Hello, &UnixListener)
        + Send
        + 'static,
    ) -> Host {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let listener = UnixListener::bind(folder.path().join("vgpu.sock")).expect("a socket");
        let seen: Arc<(Mutex<Seen>, Condvar)> = Arc::default();
        let shared = seen.clone();
        std::thread::spawn(move || {
            while let Ok((mut control, _)) = listener.accept() {
                let mut head = [0; PREAMBLE_LEN];
                if control.read_exact(&mut head).is_err() {
                    continue;
                }
                if head == question() {
                    shared.0.lock().expect("no panic").looks += 1;
                    if let Some(looked) = &looked {
                        let body = codec::encode(looked).expect("the answer encodes");
                        greet(&mut control, 0, &body);
                    }
                    continue;
                }
                let preamble: Preamble = zerocopy::transmute!(head);
                assert_eq!(preamble.magic, HELLO_MAGIC);
                assert_eq!(preamble.protocol.get(), PROTOCOL);
                assert_eq!(preamble.fingerprint.get(), FINGERPRINT);
                let mut body = vec![0; preamble.body_len.get() as usize];
                control
                    .read_exact(&mut body)
                    .expect("the hello comes whole");
                let hello: Hello = codec::decode(&body).expect("the hello decodes");
                answer(&shared, control, hello, &listener);
            }
        });
        Host { folder, seen }
    }

    /// The value of `VGPU_ADDRESS`.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.path().display())
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("vgpu.sock")
    }

    /// Waits until the received frames satisfy a condition, and returns the received frames.
    pub(crate) fn wait(&self, what: &str, condition: impl Fn(&[Frame]) -> bool) -> Vec<Frame> {
        self.wait_seen(what, |seen| {
            condition(&seen.frames).then(|| seen.frames.clone())
        })
    }

    /// Waits until `sessions` sessions have ended, and returns the number of goodbyes.
    pub(crate) fn wait_over(&self, sessions: usize) -> usize {
        self.wait_seen("the end of sessions", |seen| {
            (seen.sessions_over >= sessions).then_some(seen.goodbyes)
        })
    }

    /// Number of looks so far.
    pub(crate) fn looks(&self) -> usize {
        self.seen.0.lock().expect("no panic").looks
    }

    /// All Hellos so far.
    pub(crate) fn hellos(&self) -> Vec<Hello> {
        self.seen.0.lock().expect("no panic").hellos.clone()
    }

    fn wait_seen<T>(&self, what: &str, mut condition: impl FnMut(&Seen) -> Option<T>) -> T {
        let end = Instant::now() + DEADLINE;
        let mut seen = self.seen.0.lock().expect("no panic");
        loop {
            if let Some(value) = condition(&seen) {
                return value;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "no {what} within {DEADLINE:?}; seen: {:?}",
                seen.frames
            );
            seen = self.seen.1.wait_timeout(seen, left).expect("no panic").0;
        }
    }
}

/// Answers a Hello.
pub(crate) fn greet(control: &mut UnixStream, code: u32, body: &[u8]) {
    let reply = ReplyPreamble {
        magic: WELCOME_MAGIC,
        code: code.into(),
        body_len: (body.len() as u32).into(),
    };
    control
        .write_all(reply.as_bytes())
        .expect("the guest listens");
    control.write_all(body).expect("the guest listens");
}

fn serve(
    host: &Arc<(Mutex<Seen>, Condvar)>,
    control: UnixStream,
    data: UnixStream,
    depth_calls: u32,
    script: &Mutex<Script>,
) {
    let mut goodbye = control.try_clone().expect("a descriptor");
    let mut link = Link {
        data,
        control,
        depth_calls,
        calls: 0,
        bytes: 0,
        bytes_told: 0,
        next: ARENA,
        memory: BTreeMap::new(),
    };
    while let Some(frame) = link.read() {
        let handled = (script.lock().expect("no panic"))(&frame, &mut link);
        {
            let mut seen = host.0.lock().expect("no panic");
            seen.frames.push(frame.clone());
            host.1.notify_all();
        }
        if !handled {
            link.usual(&frame);
        }
    }
    // The guest's messages on the control connection before it closed the connection.
    let _ = goodbye.set_read_timeout(Some(DEADLINE));
    let mut said = Vec::new();
    let _ = goodbye.read_to_end(&mut said);
    let mut seen = host.0.lock().expect("no panic");
    seen.sessions_over += 1;
    seen.goodbyes += usize::from(said.first() == Some(&(ControlNote::Goodbye as u8)));
    host.1.notify_all();
}

impl Link {
    /// The next request; `None` when the guest has ended.
    fn read(&mut self) -> Option<Frame> {
        let mut head = [0; HEADER_LEN];
        self.data.read_exact(&mut head).ok()?;
        let header = Header::parse(&head).expect("the guest sends good headers");
        let mut args = vec![0; header.args_len()];
        self.data.read_exact(&mut args).ok()?;
        let mut bulk = vec![0; header.bulk_len()];
        self.data.read_exact(&mut bulk).ok()?;
        if header.id() != 0 {
            self.calls += 1;
            self.bytes += bulk.len() as u64;
            assert_eq!(header.id(), self.calls, "ids are in order, without a gap");
        }
        let request = Request::decode(header.op(), &args, bulk.len()).expect("a good request");
        Some(Frame {
            id: header.id(),
            request,
            bulk,
        })
    }

    /// Sends a reply.
    pub(crate) fn reply<C: Call>(
        &mut self,
        frame: &Frame,
        status: CuResult,
        reply: &impl codec::Encode,
    ) {
        let args = codec::encode(reply).expect("replies encode");
        self.send(C::OP as u16, 0, status, frame.id, &args, &[]);
    }

    /// Sends a reply with a status only.
    pub(crate) fn status(&mut self, frame: &Frame, status: CuResult) {
        self.send(frame.request.op() as u16, 0, status, frame.id, &[], &[]);
    }

    /// Sends a notice.
    pub(crate) fn notice(
        &mut self,
        notice: Notice,
        id: u64,
        status: CuResult,
        args: &[u8],
        bulk: &[u8],
    ) {
        self.send(notice as u16, 0, status, id, args, bulk);
    }

    /// Sends depth credit: everything received so far is taken.
    pub(crate) fn progress(&mut self) {
        self.bytes_told = self.bytes;
        let progress = Progress {
            calls: self.calls,
            bytes: self.bytes,
        };
        let args = codec::encode(&progress).expect("progress encodes");
        self.notice(Notice::Progress, 0, CuResult::SUCCESS, &args, &[]);
    }

    /// Sends the pieces of a copy to the host.
    pub(crate) fn copy_out(&mut self, frame: &Frame, bytes: &[u8], piece: usize) {
        let op = frame.request.op() as u16;
        let mut pieces = bytes.chunks(piece).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_some() {
                FLAG_MORE
            } else {
                0
            };
            self.send(op, flags, CuResult::SUCCESS, frame.id, &[], piece);
        }
    }

    /// Sends a frame.
    pub(crate) fn send(
        &mut self,
        op: u16,
        flags: u16,
        status: CuResult,
        id: u64,
        args: &[u8],
        bulk: &[u8],
    ) {
        let header = Header::reply(op, flags, status, id, args.len(), bulk.len());
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(args);
        bytes.extend_from_slice(bulk);
        // An error is ignored: the guest may have ended, which the test checks.
        let _ = self.data.write_all(&bytes);
    }

    /// Sends the cause of the session's end.
    pub(crate) fn end(&mut self, code: CuResult, text: &str) {
        let note = ControlHeader {
            kind: (ControlNote::Ended as u32).into(),
            code: code.0.into(),
            text_len: (text.len() as u32).into(),
        };
        let mut bytes = note.as_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        let _ = self.control.write_all(&bytes);
    }

    /// Whether no byte arrives within `time`.
    pub(crate) fn is_quiet(&mut self, time: Duration) -> bool {
        let entry = &mut libc::pollfd {
            fd: self.data.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one live entry.
        unsafe { libc::poll(entry, 1, time.as_millis() as i32) == 0 }
    }

    /// Sends the usual answer.
    pub(crate) fn usual(&mut self, frame: &Frame) {
        const OK: CuResult = CuResult::SUCCESS;
        // A test with a small depth limit sends the credit itself.
        let bytes = self.bytes - self.bytes_told >= PROGRESS_BYTES;
        if self.depth_calls > 256 && (self.calls.is_multiple_of(256) || bytes) {
            self.progress();
        }
        match &frame.request {
            Request::ImageQuery(_) => {
                self.reply::<req::ImageQuery>(frame, OK, &rep::ImageQuery { present: false });
            }
            Request::ModuleLoad(_) => {
                let reply = rep::ModuleLoad {
                    module: Module(MODULE),
                    info_log: b"info".to_vec(),
                    error_log: Vec::new(),
                };
                self.reply::<req::ModuleLoad>(frame, OK, &reply);
            }
            Request::ModuleGetFunction(call) if call.name == "kernel" => {
                let reply = rep::ModuleGetFunction {
                    func: Func(FUNC),
                    params: vec![(0, 8), (8, 4), (16, 8)],
                    attributes: vec![(0, 512), (1, 0), (8, 1024)],
                };
                self.reply::<req::ModuleGetFunction>(frame, OK, &reply);
            }
            Request::ModuleGetFunction(_) | Request::ModuleGetGlobal(_) => {
                self.status(frame, CuResult::NOT_FOUND);
            }
            Request::OccupancyBlocks(_) => {
                self.reply::<req::OccupancyBlocks>(frame, OK, &rep::OccupancyBlocks { blocks: 2 });
            }
            Request::PrimaryCtxRetain(_) => {
                self.reply::<req::PrimaryCtxRetain>(
                    frame,
                    OK,
                    &rep::PrimaryCtxRetain { ctx: Ctx(CTX) },
                );
            }
            Request::CtxCreate(_) => {
                self.reply::<req::CtxCreate>(frame, OK, &rep::CtxCreate { ctx: Ctx(CTX) });
            }
            Request::MemAlloc(call) => {
                let ptr = self.next;
                self.next += call.size.next_multiple_of(512);
                self.memory.insert(ptr, vec![0; call.size as usize]);
                self.reply::<req::MemAlloc>(frame, OK, &rep::MemAlloc { ptr: DevPtr(ptr) });
            }
            Request::MemGetInfo(_) => {
                let reply = rep::MemGetInfo {
                    free: 1 << 29,
                    total: 1 << 30,
                };
                self.reply::<req::MemGetInfo>(frame, OK, &reply);
            }
            Request::MemcpyHtoD(call) => {
                let (start, block) = self.block(call.dst.0);
                block[start..start + frame.bulk.len()].copy_from_slice(&frame.bulk);
            }
            Request::MemcpyDtoH(call) => {
                let (start, block) = self.block(call.src.0);
                let bytes = block[start..start + call.len as usize].to_vec();
                self.copy_out(frame, &bytes, MAX_BULK);
            }
            Request::EventElapsedTime(_) => {
                let reply = rep::EventElapsedTime {
                    milliseconds_bits: 1.5_f32.to_bits(),
                };
                self.reply::<req::EventElapsedTime>(frame, OK, &reply);
            }
            other if other.op().class() == vgpu_proto::call::Class::Sync => {
                self.status(frame, OK);
            }
            _ => {}
        }
    }

    /// The usual answer to an allocation, at an address of the test.
    pub(crate) fn usual_at(&mut self, frame: &Frame, ptr: DevPtr) {
        if let Request::MemAlloc(call) = &frame.request {
            self.memory.insert(ptr.0, vec![0; call.size as usize]);
            let reply = rep::MemAlloc { ptr };
            self.reply::<req::MemAlloc>(frame, CuResult::SUCCESS, &reply);
        }
    }

    fn block(&mut self, address: u64) -> (usize, &mut Vec<u8>) {
        let (base, block) = self
            .memory
            .range_mut(..=address)
            .next_back()
            .expect("live memory");
        ((address - base) as usize, block)
    }
}
