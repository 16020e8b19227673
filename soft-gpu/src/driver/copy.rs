//! Copies and memsets of one to three dimensions, with CUDA's rules for the host: pageable source
//! memory is read before the call returns, and a copy to pageable memory is complete when the call
//! returns. Copies between device memory, and memsets, are only queued.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::{Copy3D, MemsetNodeParams};

use super::digest::{self, Ticket};
use super::error::Result;
use super::graph::node::Action;
use super::graph::{block, capture};
use super::memory::Place;
use super::stream::{Running, Stream};
use super::streaming;
use super::sync::{now_ns, sleep_until};
use super::transfer::{extent, resolve};
use super::{Driver, healthy};

/// The size of a copy: bytes per row, rows per slice, slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes per row.
    pub width: u64,
    /// Rows per slice.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

/// The addresses of the rows of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// First address.
    pub addr: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes from a slice to the next.
    pub slice: u64,
}

/// The kind of memory that the caller declares for an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Device memory.
    Device,
    /// Host memory (which may lie in the arena).
    Host,
    /// The kind of memory follows from the address.
    Unified,
}

/// Whether the copy must be complete when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A synchronous function.
    Sync,
    /// An …Async function.
    Async,
}

/// Rows of device memory of at least this many bytes are written past the processor's cache, as a
/// copy engine does: reading each cache line before it is overwritten would cost as much as the
/// copy.
const STREAMED: usize = 64 << 10;

/// Work of up to this many bytes may run on the calling thread if the stream is idle, because
/// waking the stream's thread takes longer than the work.
const QUICK: u64 = 512 << 10;

impl Extent {
    fn bytes(self) -> Option<u64> {
        self.width.checked_mul(self.height)?.checked_mul(self.depth)
    }
}

impl Layout {
    /// Bytes from the first byte of the first row to the last byte of the last row; `None` if the
    /// range leaves the address space. `e` is not empty.
    fn span(self, e: Extent) -> Option<u64> {
        let rows = (e.height - 1).checked_mul(self.pitch)?;
        let slices = (e.depth - 1).checked_mul(self.slice)?;
        rows.checked_add(slices)?
            .checked_add(e.width)
            .filter(|n| self.addr.checked_add(*n).is_some())
    }

    fn rows(self, e: Extent) -> impl Iterator<Item = u64> {
        (0..e.depth).flat_map(move |z| {
            (0..e.height).map(move |y| self.addr + z * self.slice + y * self.pitch)
        })
    }
}

fn place(driver: &Driver, layout: Layout, e: Extent, side: Side, of: Planned) -> Result<Place> {
    if layout.pitch < e.width && e.height > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    let span = layout.span(e).ok_or(CuResult::INVALID_VALUE)?;
    if of == Planned::Later
        && let Some(device) = block::device_of(layout.addr, span)
    {
        return Ok(Place::Device(device));
    }
    match side {
        // The device address of registered memory is its host address.
        Side::Device if driver.memory.mapped(layout.addr, span) => Ok(Place::Pinned),
        Side::Device => driver
            .memory
            .device_range(layout.addr, span)
            .map(Place::Device),
        Side::Host | Side::Unified => driver.memory.place(driver, layout.addr, span),
    }
}

/// The time at which an operation runs, which decides the checks of its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planned {
    /// During this call, or queued by this call.
    Now,
    /// At a launch of the graph, when memory of the graph's allocation nodes exists.
    Later,
}

/// A checked copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    dst: Layout,
    src: Layout,
    e: Extent,
    bytes: u64,
    /// Memory of the destination.
    pub to: Place,
    /// Memory of the source.
    pub from: Place,
}

impl Transfer {
    /// Checks a copy; `None` for an empty copy.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an invalid address or pitch (strict mode aborts on an address);
    /// the sticky error of a poisoned process.
    pub fn new(c: &Copy3D, of: Planned) -> Result<Option<Transfer>> {
        let driver = healthy()?;
        let dst = resolve(&c.dst, c.width, c.height, c.depth)?;
        let src = resolve(&c.src, c.width, c.height, c.depth)?;
        let e = extent(c);
        if e.width == 0 || e.height == 0 || e.depth == 0 {
            return Ok(None);
        }
        let bytes = e.bytes().ok_or(CuResult::INVALID_VALUE)?;
        Ok(Some(Transfer {
            to: place(driver, dst.1, e, dst.0, of)?,
            from: place(driver, src.1, e, src.0, of)?,
            dst: dst.1,
            src: src.1,
            e,
            bytes,
        }))
    }

    /// Sleeps for the modelled time of the copy, then copies the bytes, both on the calling thread.
    pub fn run(&self, driver: &Driver, running: &Running<'_>, ticket: Option<&Ticket>) {
        self.run_from(self.src, driver, running, ticket);
    }

    /// As [`run`](Self::run), but reads the rows from `src`, to which they were staged.
    fn run_from(
        &self,
        src: Layout,
        driver: &Driver,
        running: &Running<'_>,
        ticket: Option<&Ticket>,
    ) {
        spend(driver, running, self.bytes);
        move_rows(self.dst, src, self.e, self.to);
        if let Some(ticket) = ticket {
            let (to, from) = ((self.to, self.dst), (self.from, self.src));
            ticket.copied(driver, to, from, self.e);
        }
    }

    /// Whether the device memory of both sides is still live.
    pub fn live(&self, driver: &Driver) -> bool {
        is_live(driver, self.to, self.dst, self.e) && is_live(driver, self.from, self.src, self.e)
    }
}

fn is_live(driver: &Driver, place: Place, layout: Layout, e: Extent) -> bool {
    match place {
        Place::Device(device) => layout
            .span(e)
            .is_some_and(|span| driver.arena.live(device, layout.addr, span)),
        Place::Pinned | Place::Pageable => true,
    }
}

/// Whether copies take their real time, because no setting gives them a modelled time.
fn unmodelled(driver: &Driver) -> bool {
    let c = &driver.config;
    c.copy_latency_ns == 0 && c.copy_ns_per_byte == 0.0 && !c.clock.active()
}

/// Sleeps for the modelled time of a copy. With a device clock, the time counts from the stream's
/// last modelled operation, and the stream's time moves to the end of the copy.
fn spend(driver: &Driver, running: &Running<'_>, bytes: u64) {
    let c = &driver.config;
    let ns = c.copy_latency_ns + (bytes as f64 * c.copy_ns_per_byte) as u64;
    if ns > 0 {
        use std::sync::atomic::Ordering::Relaxed;
        let modelled = running.core.time_ns.load(Relaxed);
        let start = if c.clock.active() {
            running.submitted_ns.max(modelled)
        } else {
            now_ns()
        };
        if c.clock.active() {
            running.core.time_ns.store(start + ns, Relaxed);
        }
        sleep_until(start + ns);
    }
}

fn move_rows(dst: Layout, src: Layout, e: Extent, to: Place) {
    let n = e.width as usize;
    let past_the_cache = matches!(to, Place::Device(_)) && n >= STREAMED;
    for (d, s) in dst.rows(e).zip(src.rows(e)) {
        let (d, s) = (d as *mut u8, s as *const u8);
        // SAFETY: the call checked both ranges. Pages of the arena stay readable and writable until
        // the process ends. CUDA requires the caller to keep host memory valid until the copy is
        // done. `ptr::copy` allows the ranges to overlap.
        unsafe {
            if past_the_cache && (d as usize).abs_diff(s as usize) >= n {
                streaming::copy(d, s, n);
            } else {
                std::ptr::copy(s, d, n);
            }
        }
    }
}

/// Copies, or adds a node to the graph that `stream` captures into.
///
/// # Errors
/// As [`Transfer::new`]; a synchronous copy that the capture does not allow.
pub fn copy(c: &Copy3D, mode: Mode, stream: &Arc<Stream>) -> Result {
    let driver = healthy()?;
    if mode == Mode::Sync {
        capture::forbid_sync(stream)?;
    } else if capture::recording(stream)? {
        let context = stream.owner()?.handle;
        return capture::add(stream, || Action::memcpy(c, context));
    }
    let Some(t) = Transfer::new(c, Planned::Now)? else {
        return Ok(());
    };
    let bytes = t.bytes;
    let ticket = digest::ticket(stream);
    let between_devices = matches!((t.to, t.from), (Place::Device(_), Place::Device(_)));
    if mode == Mode::Async && t.from == Place::Pageable && t.to != Place::Pageable {
        let staged = stage(t.src, t.e, bytes);
        let work = move |running: &Running<'_>| {
            let packed = Layout {
                addr: staged.as_ptr() as u64,
                pitch: t.e.width,
                slice: t.e.width * t.e.height,
            };
            t.run_from(packed, driver, running, ticket.as_ref());
        };
        return stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ());
    }
    let work = Box::new(move |running: &Running<'_>| t.run(driver, running, ticket.as_ref()));
    match mode {
        Mode::Sync if between_devices => stream.start(bytes <= QUICK, work).map(|_| ()),
        Mode::Sync => stream.run(work),
        Mode::Async if t.to == Place::Pageable => stream.run(work),
        Mode::Async => stream
            .start(bytes <= QUICK && unmodelled(driver), work)
            .map(|_| ()),
    }
}

/// Copies pageable source memory to a buffer, because the program may change it when the call
/// returns.
fn stage(src: Layout, e: Extent, bytes: u64) -> Vec<u8> {
    let mut staged = Vec::with_capacity(bytes as usize);
    for row in src.rows(e) {
        // SAFETY: host memory of the caller, which is valid during the call.
        staged.extend_from_slice(unsafe {
            std::slice::from_raw_parts(row as *const u8, e.width as usize)
        });
    }
    staged
}

/// A checked memset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    layout: Layout,
    e: Extent,
    value: u32,
    size: u64,
    place: Place,
}

impl Fill {
    /// Checks a memset; `None` for an empty memset.
    ///
    /// # Errors
    /// As [`Transfer::new`]; CUDA_ERROR_INVALID_VALUE for an address or pitch that is not a
    /// multiple of the element size.
    pub fn new(m: &MemsetNodeParams, of: Planned) -> Result<Option<Fill>> {
        let driver = healthy()?;
        let (size, pitch) = (u64::from(m.element), m.pitch as u64);
        if m.width == 0 || m.height == 0 {
            return Ok(None);
        }
        if !m.dst.is_multiple_of(size) || (m.height > 1 && !pitch.is_multiple_of(size)) {
            return Err(CuResult::INVALID_VALUE);
        }
        let row = (m.width as u64)
            .checked_mul(size)
            .ok_or(CuResult::INVALID_VALUE)?;
        let e = Extent {
            width: row,
            height: m.height as u64,
            depth: 1,
        };
        let layout = Layout {
            addr: m.dst,
            pitch,
            slice: 0,
        };
        Ok(Some(Fill {
            place: place(driver, layout, e, Side::Device, of)?,
            layout,
            e,
            value: m.value,
            size,
        }))
    }

    /// Writes the elements now.
    pub fn run(&self) {
        fill(self.layout, self.e, self.value, self.size);
    }

    /// Writes the memset to the digest.
    pub fn tell(&self, driver: &Driver, ticket: Option<&Ticket>) {
        if let Some(ticket) = ticket {
            ticket.filled(driver, self.layout, self.e, self.value, self.size);
        }
    }

    /// Whether the memory is still live.
    pub fn live(&self, driver: &Driver) -> bool {
        is_live(driver, self.place, self.layout, self.e)
    }
}

/// Sets memory, or adds a node to the graph that `stream` captures into.
///
/// # Errors
/// As [`Fill::new`]; a synchronous call that the capture does not allow.
pub fn set(m: &MemsetNodeParams, mode: Mode, stream: &Arc<Stream>) -> Result {
    let driver = healthy()?;
    if mode == Mode::Sync {
        capture::forbid_sync(stream)?;
    } else if capture::recording(stream)? {
        let context = stream.owner()?.handle;
        return capture::add(stream, || Action::memset(m, context));
    }
    let Some(f) = Fill::new(m, Planned::Now)? else {
        return Ok(());
    };
    f.tell(driver, digest::ticket(stream).as_ref());
    let work = Box::new(move |_: &Running<'_>| f.run());
    match mode {
        Mode::Sync => stream
            .start(f.e.width.saturating_mul(f.e.height) <= QUICK, work)
            .map(|_| ()),
        Mode::Async => stream.submit(Vec::new(), Some(work)).map(|_| ()),
    }
}

fn fill(layout: Layout, e: Extent, value: u32, size: u64) {
    let n = (e.width / size) as usize;
    for row in layout.rows(e) {
        // SAFETY: the call checked the range (see `move_rows`). Rows are aligned to `size`, because
        // the address and the pitch are.
        unsafe {
            match size {
                1 => std::ptr::write_bytes(row as *mut u8, value as u8, n),
                2 => (0..n).for_each(|i| (row as *mut u16).add(i).write(value as u16)),
                _ => (0..n).for_each(|i| (row as *mut u32).add(i).write(value)),
            }
        }
    }
}
