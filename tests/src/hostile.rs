//! A guest that uses the wire directly, correctly or not, without the guest library.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use anyhow::{Context, bail, ensure};
use vgpu_proto::call::ops::{Call, ImageHash, Progress};
use vgpu_proto::call::{Class, FINGERPRINT, Notice, Op, req};
use vgpu_proto::codec::{decode, encode};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Event, Func, GUEST_HANDLES, Module, Stream};
use vgpu_proto::frame::{FLAG_MORE, HEADER_LEN, Header};
use vgpu_proto::handshake::{
    CONTROL_HEADER_LEN, DATA_MAGIC, HELLO_MAGIC, Hello, PROTOCOL, REPLY_PREAMBLE_LEN, Refusal,
    WELCOME_MAGIC, Welcome,
};
use vgpu_proto::limits::{MAX_BULK, MAX_HANDSHAKE};

use crate::host::Host;
use crate::wait::SOON;

/// vgpud's answer to a Hello.
#[derive(Debug)]
pub enum Answer {
    /// The session is open.
    Welcome(Box<Welcome>),
    /// vgpud refuses the session, with the code of the refusal and vgpud's sentence for the guest.
    Refused(Refusal, String),
    /// The connection was closed without an answer.
    Closed,
}

impl Answer {
    /// Returns vgpud's sentence for the guest if this answer is a refusal with `code`.
    ///
    /// # Errors
    /// If the session is open, the connection was closed, or the refusal has another code.
    pub fn refusal(self, code: Refusal) -> anyhow::Result<String> {
        match self {
            Answer::Refused(found, text) if found == code => Ok(text),
            other => bail!("{code:?} was due; the answer is {other:?}"),
        }
    }
}

/// A bare connection to a VM's socket.
///
/// # Errors
/// If nothing listens there.
pub fn connect(host: &Host, vm: u32) -> anyhow::Result<UnixStream> {
    let path = host.vm_socket(vm);
    let socket =
        UnixStream::connect(&path).with_context(|| format!("connecting to {}", path.display()))?;
    socket.set_read_timeout(Some(SOON))?;
    socket.set_write_timeout(Some(SOON))?;
    Ok(socket)
}

/// A preamble of any version with any body.
pub fn greeting(protocol: u32, fingerprint: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = HELLO_MAGIC.to_vec();
    bytes.extend(protocol.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(fingerprint.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// The body of a valid Hello.
///
/// # Errors
/// Never, in practice: the Hello is encodable.
pub fn hello() -> anyhow::Result<Vec<u8>> {
    Ok(encode(&Hello {
        shim_version: "0.0.7-hostile".into(),
        cuda_version: 12_040,
        pid: std::process::id(),
        program: "hostile".into(),
    })?)
}

/// A valid preamble and Hello.
///
/// # Errors
/// As [`hello`].
pub fn right_greeting() -> anyhow::Result<Vec<u8>> {
    Ok(greeting(PROTOCOL, FINGERPRINT, &hello()?))
}

/// The begin of a data connection.
pub fn data_opening(nonce: &[u8]) -> Vec<u8> {
    [&DATA_MAGIC[..], nonce].concat()
}

/// Reads vgpud's answer to a Hello.
///
/// # Errors
/// If the answer is invalid or does not arrive.
pub fn answer(socket: &mut UnixStream) -> anyhow::Result<Answer> {
    let mut head = [0; REPLY_PREAMBLE_LEN];
    if let Err(e) = socket.read_exact(&mut head) {
        return match e.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
                Ok(Answer::Closed)
            }
            _ => Err(e).context("waiting for vgpud's answer"),
        };
    }
    ensure!(head[..8] == WELCOME_MAGIC, "not an answer: {head:?}");
    let word = |at: usize| -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&head[at..at + 4]);
        u32::from_le_bytes(bytes)
    };
    let (code, len) = (word(8), word(12) as usize);
    ensure!(len <= MAX_HANDSHAKE, "an answer of {len} bytes");
    let mut body = vec![0; len];
    socket.read_exact(&mut body)?;
    match Refusal::from_code(code) {
        Some(refusal) => Ok(Answer::Refused(refusal, String::from_utf8(body)?)),
        None if code == 0 => Ok(Answer::Welcome(Box::new(decode(&body)?))),
        None => bail!("an answer with code {code}"),
    }
}

/// Connects, sends these bytes and reads the answer.
///
/// # Errors
/// As [`connect`] and [`answer`].
pub fn knock(host: &Host, vm: u32, bytes: &[u8]) -> anyhow::Result<Answer> {
    let mut socket = connect(host, vm)?;
    socket.write_all(bytes)?;
    answer(&mut socket)
}

/// Opens a control connection.
///
/// # Errors
/// If the guest is refused.
pub fn open_control(host: &Host, vm: u32) -> anyhow::Result<(UnixStream, Welcome)> {
    let mut socket = connect(host, vm)?;
    socket.write_all(&right_greeting()?)?;
    match answer(&mut socket)? {
        Answer::Welcome(welcome) => Ok((socket, *welcome)),
        other => bail!("not welcome: {other:?}; the log:\n{}", host.log()),
    }
}

/// A message on the control connection: kind, code and text. `None`: the connection ended.
///
/// # Errors
/// If no message arrives.
pub fn control_note(socket: &mut UnixStream) -> anyhow::Result<Option<(u32, CuResult, String)>> {
    let mut head = [0; CONTROL_HEADER_LEN];
    if let Err(e) = socket.read_exact(&mut head) {
        return match e.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => Ok(None),
            _ => Err(e).context("waiting for a note on the control connection"),
        };
    }
    let mut words = head.chunks_exact(4).map(|w| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(w);
        u32::from_le_bytes(bytes)
    });
    let mut word = || words.next().unwrap_or(0);
    let (kind, code, len) = (word(), word(), word());
    let mut text = vec![0; len as usize];
    socket.read_exact(&mut text)?;
    Ok(Some((kind, CuResult(code), String::from_utf8(text)?)))
}

/// A complete reply, with the bulk parts of all its frames.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Result code.
    pub status: CuResult,
    /// Encoded results.
    pub args: Vec<u8>,
    /// Bulk bytes.
    pub bulk: Vec<u8>,
}

/// An open session.
#[derive(Debug)]
pub struct Session {
    /// vgpud's first answer.
    pub welcome: Welcome,
    /// The control connection.
    pub control: UnixStream,
    /// The data connection.
    pub data: UnixStream,
    next_id: u64,
    next_handle: u64,
    partial: HashMap<u64, Reply>,
    replies: HashMap<u64, Reply>,
    /// (request, error) of asynchronous calls.
    pub errors: Vec<(u64, CuResult)>,
    /// The last depth credit.
    pub progress: Progress,
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// If the guest is refused.
    pub fn open(host: &Host, vm: u32) -> anyhow::Result<Session> {
        let opened = open_control(host, vm)?;
        Session::of(host, vm, opened)
    }

    /// Opens the data connection of a session that has its control connection.
    ///
    /// # Errors
    /// If nothing listens there.
    pub fn of(
        host: &Host,
        vm: u32,
        (control, welcome): (UnixStream, Welcome),
    ) -> anyhow::Result<Session> {
        let mut data = connect(host, vm)?;
        data.write_all(&data_opening(&welcome.nonce))?;
        Ok(Session {
            welcome,
            control,
            data,
            next_id: 1,
            next_handle: GUEST_HANDLES.start,
            partial: HashMap::new(),
            replies: HashMap::new(),
            errors: Vec::new(),
            progress: Progress { calls: 0, bytes: 0 },
        })
    }

    /// The bytes of a frame with the next number.
    pub fn frame(&mut self, op: Op, args: &[u8], bulk: &[u8]) -> (u64, Vec<u8>) {
        let id = self.next_id;
        self.next_id += 1;
        let mut bytes = Header::request(op as u16, id, args.len(), bulk.len())
            .to_bytes()
            .to_vec();
        bytes.extend(args);
        bytes.extend(bulk);
        (id, bytes)
    }

    /// Sends a request and returns its number.
    ///
    /// # Errors
    /// If the host closed the connection, or does not read.
    pub fn send_raw(&mut self, op: Op, args: &[u8], bulk: &[u8]) -> anyhow::Result<u64> {
        let (id, bytes) = self.frame(op, args, bulk);
        self.data.write_all(&bytes).context("sending a request")?;
        Ok(id)
    }

    /// Sends a request and returns its number.
    ///
    /// # Errors
    /// As [`Session::send_raw`].
    pub fn send<C: Call>(&mut self, call: &C, bulk: &[u8]) -> anyhow::Result<u64> {
        self.send_raw(C::OP, &encode(call)?, bulk)
    }

    /// Reads one frame. False: the host closed the connection.
    ///
    /// # Errors
    /// If nothing arrives, or the bytes are not a frame.
    pub fn read_frame(&mut self) -> anyhow::Result<bool> {
        let mut head = [0; HEADER_LEN];
        if let Err(e) = self.data.read_exact(&mut head) {
            return match e.kind() {
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
                    Ok(false)
                }
                _ => Err(e).context("waiting for a frame"),
            };
        }
        let header = Header::parse(&head)?;
        let mut args = vec![0; header.args_len()];
        let mut bulk = vec![0; header.bulk_len()];
        self.data.read_exact(&mut args)?;
        self.data.read_exact(&mut bulk)?;
        match Notice::from_wire(header.op()) {
            Some(Notice::Progress) => self.progress = decode(&args)?,
            Some(Notice::AsyncError) => self.errors.push((header.id(), header.status())),
            Some(Notice::Stdout | Notice::HostFunc | Notice::Depth) => {}
            None => {
                let reply = self.partial.entry(header.id()).or_insert_with(|| Reply {
                    status: CuResult::SUCCESS,
                    args: Vec::new(),
                    bulk: Vec::new(),
                });
                reply.status = header.status();
                reply.args = args;
                reply.bulk.extend(bulk);
                if header.flags() & FLAG_MORE == 0
                    && let Some(reply) = self.partial.remove(&header.id())
                {
                    self.replies.insert(header.id(), reply);
                }
            }
        }
        Ok(true)
    }

    /// Waits for the reply to a request.
    ///
    /// # Errors
    /// If the host closes the connection, or no reply arrives.
    pub fn wait(&mut self, id: u64) -> anyhow::Result<Reply> {
        loop {
            if let Some(reply) = self.replies.remove(&id) {
                return Ok(reply);
            }
            ensure!(
                self.read_frame()?,
                "the host closed the data connection; on the control connection: {:?}",
                control_note(&mut self.control)
            );
        }
    }

    /// The result of any request: the status of its reply, or its asynchronous error, which a later
    /// query reveals.
    ///
    /// # Errors
    /// As [`Session::wait`].
    pub fn outcome(&mut self, op: Op, args: &[u8], bulk: &[u8]) -> anyhow::Result<CuResult> {
        let id = self.send_raw(op, args, bulk)?;
        if op.class() == Class::Sync {
            return Ok(self.wait(id)?.status);
        }
        let query = self.send(
            &req::ImageQuery {
                hash: [0; 32],
                len: 1,
            },
            &[],
        )?;
        self.wait(query)?;
        let error = self.errors.iter().find(|(request, _)| *request == id);
        Ok(error.map_or(CuResult::SUCCESS, |(_, code)| *code))
    }

    /// As [`Session::outcome`] of a typed call.
    ///
    /// # Errors
    /// As [`Session::wait`].
    pub fn status<C: Call>(&mut self, call: &C, bulk: &[u8]) -> anyhow::Result<CuResult> {
        self.outcome(C::OP, &encode(call)?, bulk)
    }

    /// The results of a call that must succeed.
    ///
    /// # Errors
    /// If the call fails.
    pub fn ask<C: Call>(&mut self, call: &C) -> anyhow::Result<C::Reply> {
        let id = self.send(call, &[])?;
        let reply = self.wait(id)?;
        ensure!(reply.status.is_ok(), "{}: {}", C::OP.name(), reply.status);
        Ok(decode(&reply.args)?)
    }

    /// The primary context of device 0.
    ///
    /// # Errors
    /// As [`Session::ask`].
    pub fn primary(&mut self) -> anyhow::Result<Ctx> {
        Ok(self.ask(&req::PrimaryCtxRetain { device: 0 })?.ctx)
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// As [`Session::ask`].
    pub fn alloc(&mut self, ctx: Ctx, size: u64) -> anyhow::Result<DevPtr> {
        let collided = None;
        Ok(self
            .ask(&req::MemAlloc {
                ctx,
                size,
                collided,
            })?
            .ptr)
    }

    /// A handle that this session has not used yet.
    pub fn fresh(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// If the request cannot be sent.
    pub fn stream(&mut self, ctx: Ctx) -> anyhow::Result<Stream> {
        let stream = Stream(self.fresh());
        let (flags, priority) = (0, 0);
        self.send(
            &req::StreamCreate {
                ctx,
                stream,
                flags,
                priority,
            },
            &[],
        )?;
        Ok(stream)
    }

    /// Creates an event.
    ///
    /// # Errors
    /// If the request cannot be sent.
    pub fn event(&mut self, ctx: Ctx) -> anyhow::Result<Event> {
        let event = Event(self.fresh());
        let flags = 0;
        self.send(&req::EventCreate { ctx, event, flags }, &[])?;
        Ok(event)
    }

    /// Sends a complete image.
    ///
    /// # Errors
    /// If the image cannot be sent.
    pub fn send_image(&mut self, image: &[u8]) -> anyhow::Result<(ImageHash, u64)> {
        let (hash, len) = (*blake3::hash(image).as_bytes(), image.len() as u64);
        for (piece, offset) in image.chunks(MAX_BULK).zip((0..).step_by(MAX_BULK)) {
            self.send(&req::ImageData { hash, len, offset }, piece)?;
        }
        Ok((hash, len))
    }

    /// Loads a module.
    ///
    /// # Errors
    /// As [`Session::ask`].
    pub fn module(&mut self, ctx: Ctx, image: &[u8]) -> anyhow::Result<Module> {
        let image = self.send_image(image)?;
        Ok(self.ask(&load_call(ctx, image))?.module)
    }

    /// A function of a module.
    ///
    /// # Errors
    /// As [`Session::ask`].
    pub fn function(&mut self, module: Module, name: &str) -> anyhow::Result<Func> {
        let name = name.to_owned();
        Ok(self.ask(&req::ModuleGetFunction { module, name })?.func)
    }

    /// Waits until the host has closed both connections. Returns its message on the control
    /// connection.
    ///
    /// # Errors
    /// If the host does not, or closes without a message.
    pub fn ended(&mut self) -> anyhow::Result<(CuResult, String)> {
        let note = control_note(&mut self.control)?;
        while self.read_frame()? {}
        match note {
            Some((1, code, text)) => Ok((code, text)),
            other => bail!("the session's end was due on the control connection: {other:?}"),
        }
    }

    /// Closes the data connection.
    pub fn hang_up(&self) {
        // An error means that the host has already closed it.
        let _ = self.data.shutdown(Shutdown::Both);
    }
}

/// The call that loads a sent image.
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
