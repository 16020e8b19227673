//! What an operation does, as checked: kernels, copies, fills, graphs of these, and operations of
//! streams and events.

use std::sync::{Arc, OnceLock};

use vgpu_proto::cuda::CuResult;
use vgpu_sched::gate::{self, Direction, Key};

use super::region::{FetchWork, Region, area};
use super::staging::Bulk;
use crate::driver::{
    DeviceMemory, Function, GraphExec, Launch, Result, Rows, Side, Stream, Word, copy_box,
    copy_dtod, copy_rows_dtod, fill, fill_2d,
};

/// A launch, as checked.
#[derive(Debug)]
pub(crate) struct LaunchWork {
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
pub(crate) struct FillWork {
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

/// What a queued operation does. Streams and events are our own handles.
#[derive(Debug)]
pub(crate) enum Work {
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
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Work::HtoD { data, .. } => data.bytes().len() as u64,
            Work::DtoH(fetch) => fetch.len,
            _ => 0,
        }
    }

    /// Bytes of parameters that it holds.
    pub(crate) fn held(&self) -> usize {
        match self {
            Work::Launch(launch) => launch.params.bytes().len(),
            _ => 0,
        }
    }

    /// Looks at all device memory that it names.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if `there` does not know some of it: (address, bytes).
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
    pub(crate) fn owns_alone(&self) -> bool {
        match self {
            Work::Launch(launch) => Arc::strong_count(&launch.function) == 1,
            _ => false,
        }
    }

    /// What of it goes to the device next, as the gate sees it; `None`: what takes no GPU time.
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

/// What a graph does, in order.
#[derive(Debug)]
pub(crate) struct GraphWork {
    pub works: Vec<Work>,
    /// What its duration is remembered by.
    pub key: Key,
    /// The driver's, of a recording that was built.
    pub built: OnceLock<GraphExec>,
    /// Conditional nodes within each other.
    pub depth: usize,
}

impl GraphWork {
    /// Gives all of it to a stream.
    ///
    /// # Errors
    /// The driver's, at the first that fails.
    pub(crate) fn run(&self, stream: &Stream) -> Result<()> {
        match self.built.get() {
            Some(exec) => exec.launch(stream),
            None => self
                .works
                .iter()
                .try_for_each(|work| run_work(stream, work)),
        }
    }

    /// Looks at every operation, those of bodies too.
    ///
    /// # Errors
    /// Those of `look`.
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
    /// The guest's name of the graph that its handle belongs to.
    pub home: u64,
    /// The driver's handle of its condition.
    pub handle: u64,
    /// `CUgraphConditionalNodeType`.
    pub rule: u32,
    /// What it does.
    pub bodies: Vec<GraphWork>,
}

impl Conditional {
    /// Conditional nodes within each other, this one counted.
    pub(crate) fn depth(&self) -> usize {
        1 + self.bodies.iter().map(|b| b.depth).max().unwrap_or(0)
    }
}

/// Gives an operation that concerns the device alone to a stream.
pub(crate) fn run_work(stream: &Stream, work: &Work) -> Result<()> {
    match work {
        Work::DtoD { dst, src, len } => copy_dtod(stream, *dst, *src, *len),
        Work::Rows { dst, src, size } => copy_rows_dtod(stream, *dst, *src, *size),
        Work::Box { dst, src, size } => copy_box(stream, dst, src, *size),
        Work::Fill(f) => run_fill(stream, *f),
        Work::Launch(launch) => run_launch(stream, launch),
        // Nothing else is given to it.
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
            params: work.params.bytes(),
        },
    )
}
