//! The work of an operation after the checks: kernels, copies, fills, graphs of these, and
//! operations of streams and events.

use std::sync::{Arc, OnceLock};

use vgpu_proto::call::Cluster;
use vgpu_proto::cuda::CuResult;
use vgpu_sched::gate::{self, Direction, Key};

use super::region::{FetchWork, Region, area};
use super::staging::Bulk;
use crate::driver::{
    DeviceMemory, Function, GraphExec, Launch, Result, Rows, Side, Stream, Word, copy_box,
    copy_dtod, copy_rows_dtod, fill, fill_2d,
};

/// A launch, after the checks.
#[derive(Debug)]
pub(crate) struct LaunchWork {
    /// The function to launch. This reference keeps the function's module loaded.
    pub function: Arc<Function>,
    /// Key for the prediction of the time.
    pub key: Key,
    /// Number of blocks.
    pub grid: [u32; 3],
    /// Number of threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Whether all blocks must be resident at the same time.
    pub cooperative: bool,
    /// See [`Cluster`].
    pub cluster: Cluster,
    /// The parameter block.
    pub params: Bulk,
}

/// A fill, after the checks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillWork {
    /// First address.
    pub dst: u64,
    /// Value of the element.
    pub value: u32,
    /// Size of the element in bytes.
    pub width: u8,
    /// Number of elements in a row.
    pub columns: u64,
    /// (number of rows, bytes from the start of a row to the start of the next); `None` for a
    /// single row.
    pub rows: Option<(u64, u64)>,
}

impl FillWork {
    fn bytes(&self) -> u64 {
        let row = self.columns.saturating_mul(u64::from(self.width));
        row.saturating_mul(self.rows.map_or(1, |(rows, _)| rows))
    }
}

/// The work of a queued operation. Streams and events are our own handles.
#[derive(Debug)]
pub(crate) enum Work {
    /// Copies a piece of data to the device.
    HtoD {
        /// The destination.
        to: Region,
        /// The data; whole rows, if there are rows.
        data: Bulk,
    },
    /// Copies data from the device to the guest.
    DtoH(FetchWork),
    /// Copies within the device.
    DtoD {
        /// First address of the destination.
        dst: u64,
        /// First address of the source.
        src: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Copies rows within the device.
    Rows {
        /// The destination.
        dst: Rows,
        /// The source.
        src: Rows,
        /// (bytes per row, number of rows).
        size: (u64, u64),
    },
    /// Copies a box between device memory and arrays.
    Box {
        /// The destination.
        dst: Side,
        /// The source.
        src: Side,
        /// Size: bytes per row, rows, slices.
        size: [u64; 3],
    },
    /// `cuMemFreeAsync` of stream-ordered memory.
    Free {
        /// The memory to free.
        memory: DeviceMemory,
        /// Device of the memory, and bytes that the VM's ledger gets back.
        charged: (usize, u64),
    },
    /// `cuStreamWriteValue`.
    WriteWord(Word),
    /// `cuStreamWaitValue`.
    WaitWord(Word),
    /// `cuLaunchHostFunc`, with the guest's number of the function.
    HostFunc(u64),
    /// A fill.
    Fill(FillWork),
    /// A kernel.
    Launch(LaunchWork),
    /// A launch of a graph.
    Graph(Arc<GraphWork>),
    /// A conditional node. Exists only in a recording.
    Conditional(Conditional),
    /// `cuStreamDestroy`.
    StreamDestroy,
    /// `cuStreamWaitEvent`.
    StreamWait {
        /// Our handle of the event.
        event: u64,
        /// Flags.
        flags: u32,
    },
    /// `cuEventRecord`.
    EventRecord {
        /// Our handle of the event.
        event: u64,
        /// Flags.
        flags: u32,
    },
    /// `cuEventDestroy`.
    EventDestroy {
        /// Our handle of the event.
        event: u64,
    },
}

impl Work {
    /// Number of bytes that the operation copies between host and device, for the credit.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Work::HtoD { data, .. } => data.bytes().len() as u64,
            Work::DtoH(fetch) => fetch.len,
            _ => 0,
        }
    }

    /// Number of bytes of parameters that the operation holds.
    pub(crate) fn held(&self) -> usize {
        match self {
            Work::Launch(launch) => launch.params.bytes().len(),
            _ => 0,
        }
    }

    /// Checks all device memory that the operation reads or writes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if `there`, called with (address, length in bytes), returns false
    /// for a range.
    pub(crate) fn look(&self, there: &impl Fn(u64, u64) -> bool) -> Result<()> {
        if let Work::Graph(graph) = self {
            return graph.each(&mut |work| work.look(there));
        }
        let mut named = self.ranges().into_iter().flatten();
        match named.all(|(address, len)| len == 0 || there(address, len)) {
            true => Ok(()),
            false => Err(CuResult::INVALID_VALUE),
        }
    }

    /// The device memory that the operation reads or writes: (address, length in bytes).
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

    /// Whether dropping the operation would unload a module.
    pub(crate) fn owns_alone(&self) -> bool {
        match self {
            Work::Launch(launch) => Arc::strong_count(&launch.function) == 1,
            _ => false,
        }
    }

    /// The next part of the operation that goes to the device, in the gate's terms; `None`: the
    /// operation takes no GPU time.
    pub(crate) fn timed(&self) -> Option<gate::Work> {
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

/// The operations of a graph, in order.
#[derive(Debug)]
pub(crate) struct GraphWork {
    pub works: Vec<Work>,
    /// Key for the prediction of the time.
    pub key: Key,
    /// The driver's graph, if the recording was built.
    pub built: OnceLock<GraphExec>,
    /// Depth of nested conditional nodes; 0: none.
    pub depth: usize,
}

impl GraphWork {
    /// Submits all operations to a stream.
    ///
    /// # Errors
    /// The error of the driver for the first operation that fails.
    pub(crate) fn run(&self, stream: &Stream) -> Result<()> {
        match self.built.get() {
            Some(exec) => exec.launch(stream),
            None => self
                .works
                .iter()
                .try_for_each(|work| run_work(stream, work)),
        }
    }

    /// Calls `look` for every operation, including those of bodies.
    ///
    /// # Errors
    /// The errors of `look`.
    pub(crate) fn each(&self, look: &mut impl FnMut(&Work) -> Result<()>) -> Result<()> {
        for work in &self.works {
            look(work)?;
            if let Work::Conditional(Conditional { bodies, .. }) = work {
                bodies.iter().try_for_each(|body| body.each(look))?;
            }
        }
        Ok(())
    }

    pub(crate) fn owns_alone(&self) -> bool {
        self.built.get().is_some()
            || self.works.iter().any(|work| match work {
                Work::Conditional(node) => node.bodies.iter().any(GraphWork::owns_alone),
                work => work.owns_alone(),
            })
    }
}

/// A conditional node.
#[derive(Debug)]
pub(crate) struct Conditional {
    /// The guest's handle of the graph that owns the condition handle.
    pub home: u64,
    /// The driver's condition handle.
    pub handle: u64,
    /// `CUgraphConditionalNodeType`.
    pub rule: u32,
    /// The bodies of the conditional node.
    pub bodies: Vec<GraphWork>,
}

impl Conditional {
    /// Depth of nested conditional nodes, including this node.
    pub(crate) fn depth(&self) -> usize {
        1 + self.bodies.iter().map(|b| b.depth).max().unwrap_or(0)
    }
}

/// Submits an operation that concerns only the device to a stream.
pub(crate) fn run_work(stream: &Stream, work: &Work) -> Result<()> {
    match work {
        Work::DtoD { dst, src, len } => copy_dtod(stream, *dst, *src, *len),
        Work::Rows { dst, src, size } => copy_rows_dtod(stream, *dst, *src, *size),
        Work::Box { dst, src, size } => copy_box(stream, dst, src, *size),
        Work::Fill(f) => run_fill(stream, *f),
        Work::Launch(launch) => run_launch(stream, launch),
        // No other operation is passed to this function.
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn run_fill(stream: &Stream, f: FillWork) -> Result<()> {
    match f.rows {
        None => fill(stream, f.dst, f.value, f.width, f.columns),
        Some((rows, pitch)) => fill_2d(stream, (f.dst, pitch), f.value, f.width, (f.columns, rows)),
    }
}

fn run_launch(stream: &Stream, work: &LaunchWork) -> Result<()> {
    work.function.launch(
        stream,
        &Launch {
            grid: work.grid,
            block: work.block,
            shared: work.shared,
            cooperative: work.cooperative,
            cluster: work.cluster,
            params: work.params.bytes(),
        },
    )
}
