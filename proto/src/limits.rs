//! Bounds of the wire. A peer that exceeds a bound is refused with a sentence and disconnected.

/// Largest encoded argument block of a frame, in bytes. The largest legitimate block holds a
/// function name (C++ mangled names reach a few KiB).
pub const MAX_ARGS: usize = 64 * 1024;

/// Largest bulk part of a frame, in bytes. Longer data is sent as several frames, so that neither
/// side allocates more than this for an announced length.
pub const MAX_BULK: usize = 1024 * 1024;

/// Longest path of a Unix socket, in bytes (`sun_path` less its NUL; unix(7)).
pub const SOCKET_PATH_LEN: usize = 107;

/// Largest part of a host-device copy in one frame, in bytes. A piece is small enough to be still
/// in the processor's cache when it is passed on, and large enough to hide the cost of a frame.
pub const COPY_PIECE: usize = 256 * 1024;

/// Largest amount of host memory that a worker pins for copies when it starts, in bytes.
pub const PINNED_AT_START: u64 = 28 << 20;

/// Largest parameter block of a kernel, in bytes (CUDA ≥ 12.1 on Volta and later: 32,764).
pub const MAX_KERNEL_PARAMS: usize = 32_764;

/// Most dimensions of a tensor that a tensor map describes (`cuTensorMapEncodeTiled`).
pub const MAX_TENSOR_RANK: u32 = 5;

/// Number of function attributes (`CUfunction_attribute`) that the worker tells, from 0 on. Newer
/// attributes than CUDA 13 has are included.
pub const FUNCTION_ATTRIBUTES: u32 = 18;

/// Largest module image, in bytes. Images are sent in pieces of [`MAX_BULK`] into memory that vgpud
/// accounts for.
pub const MAX_IMAGE: u64 = 2 * 1024 * 1024 * 1024;

/// Largest number of incomplete images of a session.
pub const MAX_UPLOADS: usize = 8;

/// Largest number of inputs of a link.
pub const MAX_LINK_INPUTS: usize = 256;

/// Largest result of a link, in bytes; the worker holds the result until the guest has fetched it.
pub const MAX_LINKED: usize = 64 * 1024 * 1024;

/// Largest number of graphs of a session.
pub const MAX_GRAPHS: usize = 4096;

/// Largest number of nodes in all graphs of a session.
pub const MAX_GRAPH_NODES: usize = 1 << 17;

/// Largest size of the parameters of all kernel nodes of a session, in bytes.
pub const MAX_GRAPH_BYTES: usize = 64 * 1024 * 1024;

/// Largest number of condition handles of a session.
pub const MAX_GRAPH_CONDITIONS: usize = 4096;

/// Largest number of bodies of a conditional node.
pub const MAX_GRAPH_BODIES: usize = 1024;

/// Largest depth of nested conditional nodes.
pub const MAX_GRAPH_DEPTH: usize = 16;

/// Largest number of host functions of a session that have not returned.
pub const MAX_HOST_FUNCTIONS: usize = DEPTH_CALLS as usize;

/// Largest body of a handshake message, in bytes.
pub const MAX_HANDSHAKE: usize = 64 * 1024;

/// Largest text of a refusal or of a session's end, in bytes.
pub const MAX_TEXT: usize = 4 * 1024;

/// Largest message between vgpud and a worker, in bytes (one packet).
pub const MAX_WORKER_MESSAGE: usize = 64 * 1024;

/// Largest number of calls that a guest has sent and the worker has not taken off its queue.
pub const DEPTH_CALLS: u32 = 8 * 1024;

/// Largest number of bulk bytes that a guest has sent and the worker has not taken off its queue.
pub const DEPTH_BYTES: u64 = 16 * 1024 * 1024;

/// Number of calls after which the worker reports progress at the latest.
pub const PROGRESS_CALLS: u32 = DEPTH_CALLS / 4;

/// Number of bulk bytes after which the worker reports progress at the latest.
pub const PROGRESS_BYTES: u64 = DEPTH_BYTES / 4;

/// The guest library writes its buffer to the connection when the buffer holds this number of
/// bytes.
pub const FLUSH_BYTES: usize = 16 * 1024;

/// The guest library writes its buffer to the connection when the oldest buffered call is this old,
/// in µs. During a backlog, the library waits 8 times as long (400 µs).
pub const FLUSH_AFTER_US: u64 = 50;

/// Largest number of devices of a session.
pub const MAX_DEVICES: usize = 64;

/// Largest number of live objects of one kind (streams, events, modules, functions, contexts,
/// allocations) in a session.
pub const MAX_OBJECTS: usize = 1 << 20;

/// Addresses of a program's memory that kernels may reach, the same in the program and in its
/// worker. Loaders, allocators and drivers do not choose these addresses by themselves: they begin
/// near the executable, near the end of the address space, or below 16 TiB, and memory of a
/// software device begins at 32 TiB. So a block of these addresses is free on both sides.
pub const HOST_SPACE: std::ops::Range<u64> = 0x3000_0000_0000..0x3100_0000_0000;

/// Largest number of blocks in the list `of` of one `HostPull`.
pub const MAX_PULLED: usize = 64;

/// Default AF_VSOCK port, and suffix of hybrid-vsock socket names.
pub const VSOCK_PORT: u32 = 9440;
