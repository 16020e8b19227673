//! A fake guest, which sends valid and invalid frames.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use vgpu_proto::call::ops::{Call, ImageHash, Progress};
use vgpu_proto::call::{Notice, req};
use vgpu_proto::codec::{Decode, decode, encode};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Event, Func, Module, Stream};
use vgpu_proto::frame::{FLAG_MORE, HEADER_LEN, Header};
use vgpu_proto::limits::{COPY_PIECE, MAX_BULK};

use super::{DEADLINE, ok};

/// A complete reply, with the bulk parts of all its frames joined.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: CuResult,
    pub args: Vec<u8>,
    pub bulk: Vec<u8>,
    /// Number of frames of the reply.
    pub frames: usize,
}

pub struct Guest {
    socket: Option<UnixStream>,
    out: Vec<u8>,
    next_id: u64,
    next_handle: u64,
    partial: HashMap<u64, Reply>,
    replies: HashMap<u64, Reply>,
    /// Ids of replies and notices (0) in order of arrival.
    pub order: Vec<u64>,
    /// (request, status) of asynchronous errors.
    pub errors: Vec<(u64, CuResult)>,
    pub stdout: Vec<u8>,
    /// Bytes of output of device `printf` that the worker dropped.
    pub dropped: u64,
    /// Numbers of the host functions that streams have reached.
    pub called: Vec<u64>,
    /// The last depth credit.
    pub progress: Progress,
    /// Limit of untaken calls and bytes, if the worker announced one.
    pub depth: Option<Progress>,
}

impl Guest {
    pub fn unconnected() -> Guest {
        Guest {
            socket: None,
            out: Vec::new(),
            next_id: 0,
            next_handle: vgpu_proto::cuda::GUEST_HANDLES.start,
            partial: HashMap::new(),
            replies: HashMap::new(),
            order: Vec::new(),
            errors: Vec::new(),
            stdout: Vec::new(),
            dropped: 0,
            called: Vec::new(),
            progress: Progress { calls: 0, bytes: 0 },
            depth: None,
        }
    }

    pub fn new(socket: UnixStream) -> Guest {
        socket.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        socket.set_write_timeout(Some(DEADLINE)).expect("a timeout");
        Guest {
            socket: Some(socket),
            ..Guest::unconnected()
        }
    }

    fn socket(&mut self) -> &mut UnixStream {
        self.socket.as_mut().expect("connected")
    }

    /// Sends raw bytes, valid or not.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.flush();
        self.socket().write_all(bytes).expect("written");
    }

    pub fn close(&mut self) {
        self.socket = None;
    }

    /// Appends a request to the next flush. Returns its id.
    pub fn post_bulk<C: Call>(&mut self, call: &C, bulk: &[u8]) -> u64 {
        let args = encode(call).expect("encodes");
        self.post_args(C::OP as u16, &args, bulk)
    }

    /// Like [`Guest::post_bulk`], for an operation given by its number.
    pub fn post_args(&mut self, op: u16, args: &[u8], bulk: &[u8]) -> u64 {
        self.next_id += 1;
        let header = Header::request(op, self.next_id, args.len(), bulk.len());
        self.out.extend_from_slice(&header.to_bytes());
        self.out.extend_from_slice(args);
        self.out.extend_from_slice(bulk);
        self.next_id
    }

    pub fn post<C: Call>(&mut self, call: &C) -> u64 {
        self.post_bulk(call, &[])
    }

    pub fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        if !out.is_empty() {
            self.socket().write_all(&out).expect("written");
        }
    }

    /// Reads one frame. Returns false if the worker closed the connection.
    pub fn read_frame(&mut self) -> bool {
        let mut head = [0u8; HEADER_LEN];
        if let Err(e) = self.socket().read_exact(&mut head) {
            assert_eq!(e.kind(), std::io::ErrorKind::UnexpectedEof, "{e}");
            return false;
        }
        let header = Header::parse(&head).expect("a header");
        let mut args = vec![0u8; header.args_len()];
        let mut bulk = vec![0u8; header.bulk_len()];
        self.socket().read_exact(&mut args).expect("arguments");
        self.socket().read_exact(&mut bulk).expect("bulk");
        match Notice::from_wire(header.op()) {
            Some(Notice::Progress) => self.progress = decode(&args).expect("progress"),
            Some(Notice::Depth) => self.depth = Some(decode(&args).expect("a depth")),
            Some(Notice::AsyncError) => self.errors.push((header.id(), header.status())),
            Some(Notice::Stdout) => {
                self.stdout.extend(bulk);
                self.dropped += header.id();
            }
            Some(Notice::HostFunc) => self.called.push(header.id()),
            None => {
                let reply = self.partial.entry(header.id()).or_insert_with(|| Reply {
                    status: CuResult::SUCCESS,
                    args: Vec::new(),
                    bulk: Vec::new(),
                    frames: 0,
                });
                reply.status = header.status();
                reply.args = args;
                reply.bulk.extend(bulk);
                reply.frames += 1;
                if header.flags() & FLAG_MORE == 0 {
                    let reply = self.partial.remove(&header.id()).expect("just added");
                    self.order.push(header.id());
                    self.replies.insert(header.id(), reply);
                }
            }
        }
        true
    }

    /// Waits for the reply to a request.
    #[track_caller]
    pub fn wait(&mut self, id: u64) -> Reply {
        self.flush();
        loop {
            if let Some(reply) = self.replies.remove(&id) {
                return reply;
            }
            assert!(self.read_frame(), "the worker closed the connection");
        }
    }

    /// Number of sent requests that are not known to be taken from the worker's queue.
    pub fn outstanding(&self) -> u64 {
        self.next_id - self.progress.calls
    }

    /// Whether the reply to a request has arrived. Reads nothing.
    pub fn has(&self, id: u64) -> bool {
        self.replies.contains_key(&id)
    }

    #[track_caller]
    pub fn call_bulk<C: Call>(&mut self, call: &C, bulk: &[u8]) -> Reply {
        let id = self.post_bulk(call, bulk);
        self.wait(id)
    }

    #[track_caller]
    pub fn call<C: Call>(&mut self, call: &C) -> Reply {
        self.call_bulk(call, &[])
    }

    /// Sends a call and returns the status.
    #[track_caller]
    pub fn status<C: Call>(&mut self, call: &C) -> CuResult {
        self.call(call).status
    }

    /// Sends a call that must succeed, and returns the results.
    #[track_caller]
    pub fn ask<C: Call>(&mut self, call: &C) -> C::Reply
    where
        C::Reply: Decode<()>,
    {
        let reply = self.call(call);
        ok(reply.status);
        decode(&reply.args).expect("results")
    }

    /// The error of an asynchronous call that was just posted; SUCCESS if there is none.
    #[track_caller]
    pub fn outcome(&mut self, id: u64, ctx: Ctx) -> CuResult {
        // A query is answered after all earlier calls were handled.
        let _ = self.call(&req::MemGetInfo { ctx });
        self.errors
            .iter()
            .find(|(e, _)| *e == id)
            .map_or(CuResult::SUCCESS, |(_, code)| *code)
    }

    // Shorthands.

    #[track_caller]
    pub fn alloc(&mut self, ctx: Ctx, size: u64) -> DevPtr {
        self.ask(&req::MemAlloc {
            ctx,
            size,
            collided: None,
        })
        .ptr
    }

    pub fn htod(&mut self, ctx: Ctx, stream: Stream, dst: DevPtr, bytes: &[u8]) {
        for (i, piece) in bytes.chunks(COPY_PIECE).enumerate() {
            let dst = DevPtr(dst.0 + (i * COPY_PIECE) as u64);
            self.post_bulk(&req::MemcpyHtoD { ctx, stream, dst }, piece);
            self.flush();
        }
    }

    #[track_caller]
    pub fn dtoh(&mut self, ctx: Ctx, stream: Stream, src: DevPtr, len: u64) -> Vec<u8> {
        let reply = self.call(&req::MemcpyDtoH {
            ctx,
            stream,
            src,
            len,
        });
        ok(reply.status);
        reply.bulk
    }

    fn handle(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    pub fn stream(&mut self, ctx: Ctx, flags: u32) -> Stream {
        let stream = Stream(self.handle());
        self.post(&req::StreamCreate {
            ctx,
            stream,
            flags,
            priority: 0,
        });
        stream
    }

    /// A new stream handle without a stream.
    pub fn fresh_stream(&mut self) -> Stream {
        Stream(self.handle())
    }

    pub fn event(&mut self, ctx: Ctx, flags: u32) -> Event {
        let event = Event(self.handle());
        self.post(&req::EventCreate { ctx, event, flags });
        event
    }

    pub fn send_image(&mut self, image: &[u8]) -> (ImageHash, u64) {
        let (hash, len) = (*blake3::hash(image).as_bytes(), image.len() as u64);
        for (i, piece) in image.chunks(MAX_BULK).enumerate() {
            let offset = (i * MAX_BULK) as u64;
            self.post_bulk(&req::ImageData { hash, len, offset }, piece);
            self.flush();
        }
        (hash, len)
    }

    pub fn load_call(ctx: Ctx, (hash, len): (ImageHash, u64)) -> req::ModuleLoad {
        req::ModuleLoad {
            ctx,
            hash,
            len,
            options: vec![],
            info_log_len: 0,
            error_log_len: 4096,
        }
    }

    #[track_caller]
    pub fn module(&mut self, ctx: Ctx, image: &[u8]) -> Module {
        let image = self.send_image(image);
        self.ask(&Guest::load_call(ctx, image)).module
    }

    #[track_caller]
    pub fn function(&mut self, module: Module, name: &str) -> Func {
        self.ask(&req::ModuleGetFunction {
            module,
            name: name.to_owned(),
        })
        .func
    }

    /// Launches with a grid and a block of one dimension. Returns the id of the request.
    pub fn launch(
        &mut self,
        (ctx, stream): (Ctx, Stream),
        func: Func,
        (grid, block): (u32, u32),
        params: &[u8],
    ) -> u64 {
        let launch = req::LaunchKernel {
            ctx,
            stream,
            func,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared: 0,
            cooperative: false,
            cluster: [0; 3],
        };
        self.post_bulk(&launch, params)
    }

    #[track_caller]
    pub fn sync(&mut self, ctx: Ctx, stream: Stream) -> CuResult {
        self.status(&req::StreamSynchronize { ctx, stream })
    }
}
