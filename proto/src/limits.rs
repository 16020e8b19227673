//! Bounds of the wire. A peer that exceeds one is refused with a sentence and disconnected.

/// Largest encoded argument block of a frame, in bytes. The largest legitimate one is a function
/// name (C++ mangled names reach a few KiB).
pub const MAX_ARGS: usize = 64 * 1024;

/// Largest bulk part of a frame, in bytes. Longer data travels as several frames, so that neither
/// side holds more than this for a peer that merely announced it.
pub const MAX_BULK: usize = 1024 * 1024;

/// Most bytes of one frame of a copy between host and device. Small enough that a piece is still in
/// the processor's cache when it is passed on, large enough that a frame's own cost does not show.
pub const COPY_PIECE: usize = 256 * 1024;

/// Host memory that a worker pins for copies when its program starts, at most, in bytes.
pub const PINNED_AT_START: u64 = 28 << 20;

/// Largest parameter block of a kernel, in bytes (CUDA ≥ 12.1 on Volta and later: 32,764).
pub const MAX_KERNEL_PARAMS: usize = 32_764;

/// Largest module image, in bytes. Streams in [`MAX_BULK`] pieces into memory that vgpud has booked.
pub const MAX_IMAGE: u64 = 2 * 1024 * 1024 * 1024;

/// Images that a session may have begun to send and not sent whole.
pub const MAX_UPLOADS: usize = 8;

/// Most inputs of one link.
pub const MAX_LINK_INPUTS: usize = 256;

/// Largest result of a link, in bytes; the worker holds it until it has been fetched.
pub const MAX_LINKED: usize = 64 * 1024 * 1024;

/// Graphs of a session.
pub const MAX_GRAPHS: usize = 4096;

/// Nodes of all graphs of a session.
pub const MAX_GRAPH_NODES: usize = 1 << 17;

/// Bytes of their kernels' parameters.
pub const MAX_GRAPH_BYTES: usize = 64 * 1024 * 1024;

/// Handles of conditions of a session.
pub const MAX_GRAPH_CONDITIONS: usize = 4096;

/// Bodies of a conditional node.
pub const MAX_GRAPH_BODIES: usize = 1024;

/// How deep conditional nodes may lie within each other.
pub const MAX_GRAPH_DEPTH: usize = 16;

/// Host functions of a session that have not come back.
pub const MAX_HOST_FUNCTIONS: usize = DEPTH_CALLS as usize;

/// Largest body of a handshake message, in bytes.
pub const MAX_HANDSHAKE: usize = 64 * 1024;

/// Largest text of a refusal or of a session's end, in bytes.
pub const MAX_TEXT: usize = 4 * 1024;

/// Largest message between vgpud and a worker, in bytes (one packet).
pub const MAX_WORKER_MESSAGE: usize = 64 * 1024;

/// Calls that a shim may have sent and the worker not yet taken off its queue.
pub const DEPTH_CALLS: u32 = 8 * 1024;

/// Bulk bytes likewise.
pub const DEPTH_BYTES: u64 = 16 * 1024 * 1024;

/// The worker reports progress at least every this many calls.
pub const PROGRESS_CALLS: u32 = DEPTH_CALLS / 4;

/// …or bulk bytes.
pub const PROGRESS_BYTES: u64 = DEPTH_BYTES / 4;

/// The shim writes its buffer when it holds this many bytes.
pub const FLUSH_BYTES: usize = 16 * 1024;

/// …or when the oldest call in it is this old, in microseconds.
pub const FLUSH_AFTER_US: u64 = 50;

/// Devices a session can see.
pub const MAX_DEVICES: usize = 64;

/// Live objects (streams, events, modules, functions, contexts, allocations) of a session.
pub const MAX_OBJECTS: usize = 1 << 20;

/// Where memory of a program lies that kernels may reach, in the program and in its worker alike: addresses
/// that neither loaders nor allocators nor drivers use by themselves (they begin near the executable, near the end
/// of the address space, or below 16 TiB; a software device's memory at 32 TiB), so that a block is free on both
/// sides.
pub const HOST_SPACE: std::ops::Range<u64> = 0x3000_0000_0000..0x3100_0000_0000;

/// Most blocks that a request for changes names one by one.
pub const MAX_PULLED: usize = 64;

/// Default AF_VSOCK port, and the suffix of hybrid-vsock socket names.
pub const VSOCK_PORT: u32 = 9440;
