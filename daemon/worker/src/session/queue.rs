//! The session's queue: operations that keep their order, checked and with every handle resolved when
//! they were received, so that what a guest frees afterwards does no harm to what came before.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use vgpu_proto::call::{Need, Op};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::COPY_PIECE;
use vgpu_sched::Depth;
use vgpu_sched::gate::{self, Direction, Key};

use super::Session;
use super::conditions::Conditional;
use super::graphs::GraphWork;
use super::parking::Parking;
use super::staging::Bulk;
use crate::driver::{Array, DeviceMemory, Function, Result, Rows, Side, Word};

/// A launch, as checked.
#[derive(Debug)]
pub(super) struct LaunchWork {
    /// What to run. Keeps its module loaded.
    pub function: Arc<Function>,
    /// What its duration is remembered by.
    pub key: Key,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// All blocks resident at once.
    pub cooperative: bool,
    /// The parameter block.
    pub params: Bulk,
}

/// A fill, as checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct FillWork {
    /// First address.
    pub dst: u64,
    /// The element.
    pub value: u32,
    /// Its bytes.
    pub width: u8,
    /// Elements of a row.
    pub columns: u64,
    /// (rows, bytes between their beginnings), if there are several.
    pub rows: Option<(u64, u64)>,
}

impl FillWork {
    fn bytes(&self) -> u64 {
        let row = self.columns.saturating_mul(u64::from(self.width));
        row.saturating_mul(self.rows.map_or(1, |(rows, _)| rows))
    }
}

/// Rows of `width` bytes in device memory, `pitch` apart, where data is not in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of a row, never 0 and at most [`COPY_PIECE`].
    pub width: u64,
    /// Bytes between the beginnings of two.
    pub pitch: u64,
}

/// A place in an array.
#[derive(Debug, Clone)]
pub(super) struct InArray {
    /// Which, if it is still there.
    pub array: Weak<Array>,
    /// Byte of a row, row, slice.
    pub at: [u64; 3],
}

impl InArray {
    /// The array.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if it is gone.
    pub(super) fn array(&self) -> Result<Arc<Array>> {
        self.array.upgrade().ok_or(CuResult::INVALID_HANDLE)
    }
}

/// Where data that travels lies on the device.
#[derive(Debug, Clone)]
pub(super) enum Region {
    /// In one piece, from here on.
    Line(u64),
    /// In rows, the first of them here.
    Rows(u64, Shape),
    /// In rows of so many bytes, never 0 and at most [`COPY_PIECE`], of one slice of an array.
    Array(InArray, u64),
}

impl Region {
    /// Bytes of a piece: whole rows where there are some.
    fn piece(&self) -> u64 {
        let most = COPY_PIECE as u64;
        match self {
            Region::Line(_) => most,
            Region::Rows(_, Shape { width, .. }) | Region::Array(_, width) => most / width * width,
        }
    }

    /// The device memory from its first byte to the last of `len`: (address, bytes).
    fn range(&self, len: u64) -> Option<(u64, u64)> {
        match self {
            Region::Line(at) => Some((*at, len)),
            Region::Rows(at, Shape { width, pitch }) => {
                let (at, pitch) = (*at, *pitch);
                area(&Rows { at, pitch }, (*width, len / width))
            }
            Region::Array(..) => None,
        }
    }

    /// What is left of it after `done` bytes.
    pub(super) fn after(&self, done: u64) -> Region {
        match self {
            Region::Line(at) => Region::Line(at + done),
            Region::Rows(at, shape) => Region::Rows(at + done / shape.width * shape.pitch, *shape),
            Region::Array(InArray { array, at }, width) => {
                let array = Weak::clone(array);
                let at = [at[0], at[1] + done / width, at[2]];
                Region::Array(InArray { array, at }, *width)
            }
        }
    }
}

/// From the first byte of so many rows of so many bytes to the last: (address, bytes).
fn area(rows: &Rows, (width, n): (u64, u64)) -> Option<(u64, u64)> {
    let before = rows.pitch.saturating_mul(n.saturating_sub(1));
    Some((rows.at, before.saturating_add(width)))
}

/// Data that is fetched from the device.
#[derive(Debug, Clone)]
pub(super) struct FetchWork {
    /// From where.
    pub from: Region,
    /// How much; whole rows where there are some.
    pub len: u64,
    /// How much of it has been submitted.
    pub done: u64,
}

impl FetchWork {
    /// Bytes of the next piece.
    pub(super) fn piece(&self) -> u64 {
        (self.len - self.done).min(self.from.piece())
    }

    /// Where the next piece begins.
    pub(super) fn next(&self) -> Region {
        self.from.after(self.done)
    }
}

/// What a queued operation does. Streams and events are our own handles.
#[derive(Debug)]
pub(super) enum Work {
    /// A piece of data to the device.
    HtoD {
        /// To where.
        to: Region,
        /// The data; whole rows where there are some.
        data: Bulk,
    },
    /// Data from the device.
    DtoH(FetchWork),
    /// Within the device.
    DtoD {
        /// To where.
        dst: u64,
        /// From where.
        src: u64,
        /// How much.
        len: u64,
    },
    /// Rows within the device.
    Rows {
        /// To where.
        dst: Rows,
        /// From where.
        src: Rows,
        /// Bytes of a row, and how many there are.
        size: (u64, u64),
    },
    /// A box between device memory and arrays.
    Box {
        /// To where.
        dst: Side,
        /// From where.
        src: Side,
        /// Bytes of a row, rows, slices.
        size: [u64; 3],
    },
    /// `cuMemFreeAsync` of stream-ordered memory.
    Free {
        /// The memory.
        memory: DeviceMemory,
        /// Its device, and bytes that the VM's ledger gets back.
        charged: (usize, u64),
    },
    /// `cuStreamWriteValue`.
    WriteWord(Word),
    /// `cuStreamWaitValue`.
    WaitWord(Word),
    /// `cuLaunchHostFunc`: the guest's number of it.
    HostFunc(u64),
    /// A fill.
    Fill(FillWork),
    /// A kernel.
    Launch(LaunchWork),
    /// What a graph has recorded.
    Graph(Arc<GraphWork>),
    /// A conditional node, in a recording only.
    Conditional(Conditional),
    /// `cuStreamDestroy`.
    StreamDestroy,
    /// `cuStreamWaitEvent`.
    StreamWait {
        /// Which event.
        event: u64,
        /// Flags.
        flags: u32,
    },
    /// `cuEventRecord`.
    EventRecord {
        /// Which event.
        event: u64,
        /// Flags.
        flags: u32,
    },
    /// `cuEventDestroy`.
    EventDestroy {
        /// Which event.
        event: u64,
    },
}

impl Work {
    /// Bytes that it copies between host and device, for credit.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Work::HtoD { data, .. } => data.bytes().len() as u64,
            Work::DtoH(fetch) => fetch.len,
            _ => 0,
        }
    }

    /// Bytes of parameters that it holds.
    pub(super) fn held(&self) -> usize {
        match self {
            Work::Launch(launch) => launch.params.bytes().len(),
            _ => 0,
        }
    }

    /// Looks at all device memory that it names.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if `there` does not know some of it: (address, bytes).
    pub(super) fn look(&self, there: &impl Fn(u64, u64) -> bool) -> Result<()> {
        if let Work::Graph(graph) = self {
            return graph.each(&mut |work| work.look(there));
        }
        let mut named = self.ranges().into_iter().flatten();
        match named.all(|(address, len)| len == 0 || there(address, len)) {
            true => Ok(()),
            false => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Device memory that it names: (address, bytes).
    fn ranges(&self) -> [Option<(u64, u64)>; 2] {
        match self {
            Work::HtoD { to, data } => [to.range(data.bytes().len() as u64), None],
            Work::DtoH(fetch) => [fetch.next().range(fetch.len - fetch.done), None],
            Work::Box { dst, src, size } => [dst.range(*size), src.range(*size)],
            Work::WriteWord(word) | Work::WaitWord(word) => {
                [Some((word.at, if word.wide { 8 } else { 4 })), None]
            }
            Work::DtoD { dst, src, len } => [Some((*dst, *len)), Some((*src, *len))],
            Work::Rows { dst, src, size } => [area(dst, *size), area(src, *size)],
            Work::Fill(f) => {
                let row = f.columns.saturating_mul(u64::from(f.width));
                let (rows, pitch) = f.rows.unwrap_or((1, row));
                let nothing = row == 0 || rows == 0;
                let at = Rows { at: f.dst, pitch };
                [area(&at, (row, rows)).filter(|_| !nothing), None]
            }
            Work::Launch(_)
            | Work::Graph(_)
            | Work::Conditional(_)
            | Work::Free { .. }
            | Work::HostFunc(_)
            | Work::StreamDestroy
            | Work::StreamWait { .. }
            | Work::EventRecord { .. }
            | Work::EventDestroy { .. } => [None, None],
        }
    }

    /// Would dropping it unload a module?
    pub(super) fn owns_alone(&self) -> bool {
        match self {
            Work::Launch(launch) => Arc::strong_count(&launch.function) == 1,
            _ => false,
        }
    }

    /// What of it goes to the device next, as the gate sees it; `None`: what takes no GPU time.
    pub(super) fn timed(&self) -> Option<gate::Work> {
        let bytes = |direction, bytes| Some(gate::Work::Bytes { direction, bytes });
        match self {
            Work::HtoD { data, .. } => bytes(Direction::ToDevice, data.bytes().len() as u64),
            Work::DtoH(fetch) => bytes(Direction::ToHost, fetch.piece()),
            Work::DtoD { len, .. } => bytes(Direction::OnDevice, *len),
            Work::Rows { size, .. } => bytes(Direction::OnDevice, size.0.saturating_mul(size.1)),
            Work::Box { size, .. } => {
                let all = size.iter().fold(1_u64, |all, n| all.saturating_mul(*n));
                bytes(Direction::OnDevice, all)
            }
            Work::WriteWord(_) => bytes(Direction::Fill, 8),
            Work::Fill(f) => bytes(Direction::Fill, f.bytes()),
            Work::Launch(launch) => Some(gate::Work::Kernel(launch.key)),
            Work::Graph(graph) => Some(gate::Work::Graph(graph.key)),
            Work::StreamDestroy
            | Work::Conditional(_)
            | Work::Free { .. }
            | Work::WaitWord(_)
            | Work::HostFunc(_)
            | Work::StreamWait { .. }
            | Work::EventRecord { .. }
            | Work::EventDestroy { .. } => None,
        }
    }
}

/// An operation in the queue.
#[derive(Debug)]
pub(super) struct Queued {
    /// Its place, from 1.
    pub seq: u64,
    /// The request.
    pub id: u64,
    /// Its operation.
    pub op: Op,
    /// In which stream; 0: none.
    pub stream: u64,
    /// Bytes that it counts for in the depth of the queue.
    pub bulk: u64,
    /// Bytes that it counts for in credit.
    pub cost: u64,
    /// Credit has been taken for it.
    pub paid: bool,
    /// [`super::memory::Memory::losses`] when its memory was last looked at.
    pub seen: u64,
    /// What to do.
    pub work: Work,
}

impl Queued {
    /// Does it need a turn?
    pub(super) fn needs_turn(&self) -> bool {
        self.op.need() == Need::Submit
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    list: VecDeque<Queued>,
    pushed: u64,
    executed: u64,
    waiting: Depth,
    /// What is left out until a host function of the guest has come back.
    pub parking: Parking,
}

impl Queue {
    /// What waits for a turn.
    pub(super) fn waiting(&self) -> Depth {
        self.waiting
    }

    /// The place up to which everything has been executed or parked.
    pub(super) fn executed(&self) -> u64 {
        self.executed
    }

    /// The place of the last operation received.
    pub(super) fn last(&self) -> u64 {
        self.pushed
    }

    /// The first that waits.
    pub(super) fn front(&self) -> Option<&Queued> {
        self.list.front()
    }

    /// All that waits, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.list.iter()
    }

    /// Takes the first out; to be followed by [`Queue::put_back`] or [`Queue::finished`].
    pub(super) fn take(&mut self) -> Option<Queued> {
        self.list.pop_front()
    }

    /// It could not be done yet.
    pub(super) fn put_back(&mut self, item: Queued) {
        self.list.push_front(item);
    }

    /// It has been done, or parked: either way it waits no more.
    pub(super) fn finished(&mut self, item: &Queued) {
        if item.needs_turn() {
            self.waiting.calls -= 1;
            self.waiting.bytes -= item.cost;
        }
        self.look();
    }

    fn look(&mut self) {
        self.executed = self.list.front().map_or(self.pushed, |first| first.seq - 1);
    }

    /// Puts operations that were parked, in order of their places, back before everything else: they
    /// came earlier than all that is left.
    pub(super) fn resume(&mut self, items: Vec<Queued>) {
        for item in items.into_iter().rev() {
            if item.needs_turn() {
                self.waiting.calls += 1;
                self.waiting.bytes += item.cost;
            }
            self.list.push_front(item);
        }
        self.look();
    }
}

impl Session {
    /// Appends an operation to the queue.
    pub(super) fn enqueue(&mut self, op: Op, id: u64, stream: u64, bulk: u64, work: Work) {
        self.flow.queue.pushed += 1;
        let seq = self.flow.queue.pushed;
        if let Some(stream) = self.flow.streams.table.get_mut(stream) {
            stream.queued += 1;
            stream.last_queued = seq;
        }
        if let Work::EventRecord { event, .. } = work
            && let Some(event) = self.flow.events.table.get_mut(event)
        {
            event.queued += 1;
            event.last_queued = seq;
        }
        let cost = work.bytes();
        let item = Queued {
            seq,
            id,
            op,
            stream,
            bulk,
            cost,
            paid: false,
            seen: self.objects.memory.losses(),
            work,
        };
        if item.needs_turn() {
            self.flow.queue.waiting.calls += 1;
            self.flow.queue.waiting.bytes += cost;
        }
        self.flow.queue.list.push_back(item);
    }

    /// Counts an operation as done: it is off the queue.
    pub(super) fn dequeued(&mut self, item: &Queued) {
        self.flow.queue.finished(item);
        self.settled(item);
    }

    /// As [`Session::dequeued`], for one that was taken off the queue some time ago.
    pub(super) fn settled(&mut self, item: &Queued) {
        if let Some(stream) = self.flow.streams.table.get_mut(item.stream) {
            stream.queued -= 1;
        }
        self.link.out.took(1, item.bulk);
    }
}
