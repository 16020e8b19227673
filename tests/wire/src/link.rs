//! The frames of a data connection, as a guest sends and reads them.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use vgpu_proto::call::ops::{Call, ImageHash, Progress};
use vgpu_proto::call::{Class, Notice, Op, req};
use vgpu_proto::changes::LINE;
use vgpu_proto::codec::{decode, encode};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Event, Func, GUEST_HANDLES, Module, Stream};
use vgpu_proto::frame::{FLAG_MORE, HEADER_LEN, Header};
use vgpu_proto::handshake::ControlNote;
use vgpu_proto::limits::{COPY_PIECE, MAX_BULK};

use crate::{body, control_note, head};

/// A reply, with the bulk parts of all its frames joined.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Result code.
    pub status: CuResult,
    /// Encoded results.
    pub args: Vec<u8>,
    /// Bulk bytes.
    pub bulk: Vec<u8>,
    /// Number of frames of the reply.
    pub frames: usize,
    complete: bool,
}

/// A guest's end of a data connection. `post*`, `launch`, `stream` and `event` only append
/// requests. [`Link::flush`] sends them, and so does every method that returns a `Result`, except
/// [`Link::read_frame`] and [`Link::note`].
///
/// # Errors
/// Calls fail if the host closes the connection, does not read or answer within the timeouts of the
/// connection, or sends bytes that are not a frame. Calls that return the results of a request fail
/// if the request fails.
#[derive(Debug)]
pub struct Link {
    /// The data connection.
    pub data: UnixStream,
    /// The session's control connection, if the test has one.
    pub control: Option<UnixStream>,
    /// The bytes that the next flush sends.
    pub out: Vec<u8>,
    last_id: u64,
    last_handle: u64,
    replies: HashMap<u64, Reply>,
    /// Numbers of the requests whose replies are complete, in order of arrival.
    pub order: Vec<u64>,
    /// (request, error) of asynchronous calls.
    pub errors: Vec<(u64, CuResult)>,
    /// Output of device `printf`.
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

impl Link {
    /// A data connection whose opening was sent, and the control connection of its session.
    pub fn new(data: UnixStream, control: Option<UnixStream>) -> Link {
        Link {
            data,
            control,
            out: Vec::new(),
            last_id: 0,
            last_handle: GUEST_HANDLES.start,
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

    fn append(&mut self, op: u16, id: u64, args: &[u8], bulk: &[u8]) {
        let header = Header::request(op, id, args.len(), bulk.len());
        for part in [&header.to_bytes()[..], args, bulk] {
            self.out.extend_from_slice(part);
        }
    }

    /// Appends a request of an operation given by its number. Returns the number of the request.
    pub fn post_args(&mut self, op: u16, args: &[u8], bulk: &[u8]) -> u64 {
        self.last_id += 1;
        self.append(op, self.last_id, args, bulk);
        self.last_id
    }

    /// Appends a request with bulk bytes. Returns the number of the request.
    pub fn post_bulk<C: Call>(&mut self, call: &C, bulk: &[u8]) -> u64 {
        let args = encode(call).expect("arguments within the bound");
        self.post_args(C::OP as u16, &args, bulk)
    }

    /// Appends a request. Returns the number of the request.
    pub fn post<C: Call>(&mut self, call: &C) -> u64 {
        self.post_bulk(call, &[])
    }

    /// Sends the appended requests. An error drops those that were not sent.
    pub fn flush(&mut self) -> Result<()> {
        let out = std::mem::take(&mut self.out);
        self.data.write_all(&out).context("sending requests")
    }

    /// Sends a request with bulk bytes. Returns the number of the request.
    pub fn send_bulk<C: Call>(&mut self, call: &C, bulk: &[u8]) -> Result<u64> {
        let id = self.post_bulk(call, bulk);
        self.flush().map(|()| id)
    }

    /// Sends a request. Returns the number of the request.
    pub fn send<C: Call>(&mut self, call: &C) -> Result<u64> {
        self.send_bulk(call, &[])
    }

    /// Tells the worker that `lines` lines of mapped memory are full of `value` now, as the guest's
    /// library does: in a frame without a number. Returns the frame's bulk bytes.
    pub fn push(&mut self, at: DevPtr, lines: u16, value: u8) -> Result<u64> {
        let mut bytes = Vec::new();
        if let Some(more) = lines.checked_sub(1) {
            bytes.extend([at.0, u64::MAX].map(u64::to_le_bytes).concat());
            bytes.extend(more.to_le_bytes());
            bytes.resize(bytes.len() + usize::from(lines) * LINE, value);
        }
        self.append(Op::HostPush as u16, 0, &[], &bytes);
        self.flush().map(|()| bytes.len() as u64)
    }

    /// Reads one frame. False: the host closed the connection.
    pub fn read_frame(&mut self) -> Result<bool> {
        let Some(head) = head::<[u8; HEADER_LEN]>(&mut self.data)? else {
            return Ok(false);
        };
        let header = Header::parse(&head)?;
        let args = body(&mut self.data, header.args_len())?;
        let bulk = body(&mut self.data, header.bulk_len())?;
        match Notice::from_wire(header.op()) {
            Some(Notice::Progress) => self.progress = decode(&args)?,
            Some(Notice::Depth) => self.depth = Some(decode(&args)?),
            Some(Notice::AsyncError) => self.errors.push((header.id(), header.status())),
            Some(Notice::Stdout) => {
                self.stdout.extend(bulk);
                self.dropped += header.id();
            }
            Some(Notice::HostFunc) => self.called.push(header.id()),
            None => self.part(&header, args, &bulk),
        }
        Ok(true)
    }

    fn part(&mut self, header: &Header, args: Vec<u8>, bulk: &[u8]) {
        let reply = self.replies.entry(header.id()).or_insert(Reply {
            status: CuResult::SUCCESS,
            args: Vec::new(),
            bulk: Vec::new(),
            frames: 0,
            complete: false,
        });
        reply.status = header.status();
        reply.args = args;
        reply.bulk.extend(bulk);
        reply.frames += 1;
        if header.flags() & FLAG_MORE == 0 {
            reply.complete = true;
            self.order.push(header.id());
        }
    }

    /// Whether the reply to a request has arrived. Reads nothing.
    pub fn has(&self, id: u64) -> bool {
        self.replies.get(&id).is_some_and(|reply| reply.complete)
    }

    /// Number of requests that are not known to be taken from the worker's queue.
    pub fn outstanding(&self) -> u64 {
        self.last_id - self.progress.calls
    }

    /// Waits for the reply to a request.
    pub fn wait(&mut self, id: u64) -> Result<Reply> {
        self.flush()?;
        while !self.has(id) {
            ensure!(
                self.read_frame()?,
                "the host closed the data connection; on the control connection: {:?}",
                self.note()
            );
        }
        self.replies.remove(&id).context("a reply")
    }

    /// The next message on the control connection. `None`: the connection ended.
    pub fn note(&mut self) -> Result<Option<(ControlNote, CuResult, String)>> {
        control_note(self.control.as_mut().context("no control connection")?)
    }

    /// The reply to a request.
    pub fn call<C: Call>(&mut self, call: &C) -> Result<Reply> {
        let id = self.post(call);
        self.wait(id)
    }

    /// The results of a request that must succeed.
    pub fn ask<C: Call>(&mut self, call: &C) -> Result<C::Reply> {
        let reply = self.call(call)?;
        ensure!(reply.status.is_ok(), "{}: {}", C::OP.name(), reply.status);
        Ok(decode(&reply.args)?)
    }

    /// The result of any request: the status of its reply, or its asynchronous error.
    pub fn status_args(&mut self, op: Op, args: &[u8], bulk: &[u8]) -> Result<CuResult> {
        let id = self.post_args(op as u16, args, bulk);
        match op.class() {
            Class::Sync => Ok(self.wait(id)?.status),
            Class::Async => self.outcome(id),
        }
    }

    /// As [`Link::status_args`], of a typed request with bulk bytes.
    pub fn status_bulk<C: Call>(&mut self, call: &C, bulk: &[u8]) -> Result<CuResult> {
        self.status_args(C::OP, &encode(call)?, bulk)
    }

    /// As [`Link::status_args`], of a typed request.
    pub fn status<C: Call>(&mut self, call: &C) -> Result<CuResult> {
        self.status_bulk(call, &[])
    }

    /// The error of an asynchronous request that was just posted; SUCCESS if there is none.
    pub fn outcome(&mut self, id: u64) -> Result<CuResult> {
        // The worker takes requests in order. Errors of the GPU may come later.
        let (hash, len) = ([0; 32], 1);
        self.call(&req::ImageQuery { hash, len })?;
        let error = self.errors.iter().find(|(request, _)| *request == id);
        Ok(error.map_or(CuResult::SUCCESS, |(_, code)| *code))
    }

    /// A handle that this guest has not used yet.
    pub fn fresh(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    /// Creates a stream.
    pub fn stream(&mut self, ctx: Ctx, flags: u32) -> Stream {
        let (stream, priority) = (Stream(self.fresh()), 0);
        self.post(&req::StreamCreate {
            ctx,
            stream,
            flags,
            priority,
        });
        stream
    }

    /// Creates an event.
    pub fn event(&mut self, ctx: Ctx, flags: u32) -> Event {
        let event = Event(self.fresh());
        self.post(&req::EventCreate { ctx, event, flags });
        event
    }

    /// Appends a launch with a grid and a block of one dimension. Returns the request's number.
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

    /// Waits for the work of a stream. Returns the status.
    pub fn sync(&mut self, ctx: Ctx, stream: Stream) -> Result<CuResult> {
        self.status(&req::StreamSynchronize { ctx, stream })
    }

    /// The primary context of device 0.
    pub fn primary(&mut self) -> Result<Ctx> {
        Ok(self.ask(&req::PrimaryCtxRetain { device: 0 })?.ctx)
    }

    /// Allocates device memory of `size` bytes.
    pub fn alloc(&mut self, ctx: Ctx, size: u64) -> Result<DevPtr> {
        let collided = None;
        let alloc = req::MemAlloc {
            ctx,
            size,
            collided,
        };
        Ok(self.ask(&alloc)?.ptr)
    }

    /// Sends copies to the device, in pieces.
    pub fn htod(&mut self, ctx: Ctx, stream: Stream, dst: DevPtr, bytes: &[u8]) -> Result<()> {
        for (piece, at) in bytes.chunks(COPY_PIECE).zip((dst.0..).step_by(COPY_PIECE)) {
            let dst = DevPtr(at);
            self.send_bulk(&req::MemcpyHtoD { ctx, stream, dst }, piece)?;
        }
        Ok(())
    }

    /// Copies `len` bytes from the device.
    pub fn dtoh(&mut self, ctx: Ctx, stream: Stream, src: DevPtr, len: u64) -> Result<Vec<u8>> {
        let reply = self.call(&req::MemcpyDtoH {
            ctx,
            stream,
            src,
            len,
        })?;
        ensure!(reply.status.is_ok(), "{}", reply.status);
        Ok(reply.bulk)
    }

    /// Sends a complete image. Returns its hash and its length in bytes.
    pub fn send_image(&mut self, image: &[u8]) -> Result<(ImageHash, u64)> {
        let (hash, len) = (*blake3::hash(image).as_bytes(), image.len() as u64);
        for (piece, offset) in image.chunks(MAX_BULK).zip((0..).step_by(MAX_BULK)) {
            self.send_bulk(&req::ImageData { hash, len, offset }, piece)?;
        }
        Ok((hash, len))
    }

    /// Loads a module.
    pub fn module(&mut self, ctx: Ctx, image: &[u8]) -> Result<Module> {
        let image = self.send_image(image)?;
        Ok(self.ask(&load_call(ctx, image))?.module)
    }

    /// A function of a module.
    pub fn function(&mut self, module: Module, name: &str) -> Result<Func> {
        let name = name.to_owned();
        Ok(self.ask(&req::ModuleGetFunction { module, name })?.func)
    }
}

/// The request that loads a sent image.
pub fn load_call(ctx: Ctx, (hash, len): (ImageHash, u64)) -> req::ModuleLoad {
    req::ModuleLoad {
        ctx,
        hash,
        len,
        options: Vec::new(),
        info_log_len: 0,
        error_log_len: 4096,
    }
}
