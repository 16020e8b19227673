//! Graphs of the driver, used for conditional nodes, which only the device can decide.
//!
//! A [`Graph`] holds the handles of conditions, which kernels set by number, so it lives as long as
//! a guest may build from it. The content is made by stream capture: calls that submit work to a
//! stream create the nodes, one after another, and conditional nodes are inserted between them.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_cuda_abi::args::In;
use vgpu_cuda_abi::numbers::{capture_mode, node, stream_flag};
use vgpu_cuda_abi::structs::{ConditionalNodeParams, NodeParams};
use vgpu_proto::cuda::CuResult;

use super::{Context, Result, Stream, raw};

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET_DEPENDENCIES: u32 = 1;

/// A graph of the driver.
#[derive(Debug)]
pub struct Graph {
    raw: sys::CUgraph,
    context: Arc<Context>,
    built: bool,
}

// SAFETY: a graph's handle may be used from any thread, by one at a time, which `&mut self`
// ensures.
unsafe impl Send for Graph {}

impl Graph {
    /// `cuGraphCreate`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn create(context: &Arc<Context>) -> Result<Graph> {
        context.bind()?;
        let mut raw: sys::CUgraph = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { raw::cuGraphCreate(&mut raw, 0) }?;
        Ok(Graph {
            raw,
            context: Arc::clone(context),
            built: false,
        })
    }

    /// `cuGraphConditionalHandleCreate`: creates the handle that kernels use to set the condition.
    ///
    /// # Errors
    /// The error of the driver; NOT_SUPPORTED of a driver before CUDA 12.3.
    pub fn condition(&mut self, default: u32, flags: u32) -> Result<u64> {
        self.context.bind()?;
        let mut handle = 0;
        let context = self.context.raw();
        // SAFETY: writes one number; graph and context live.
        unsafe {
            raw::cuGraphConditionalHandleCreate(&mut handle, self.raw, context, default, flags)
        }?;
        Ok(handle)
    }

    /// Fills the graph and instantiates it. A graph that was built before is emptied first.
    ///
    /// # Errors
    /// Those of `fill`; the error of the driver.
    pub fn build(
        &mut self,
        fill: impl FnOnce(&mut Builder<'_>) -> Result<()>,
    ) -> Result<GraphExec> {
        self.context.bind()?;
        if std::mem::replace(&mut self.built, true) {
            self.clear()?;
        }
        let mut builder = Builder {
            stream: Stream::create(&self.context, stream_flag::NON_BLOCKING, 0)?,
            root: self.raw,
            graph: PhantomData,
        };
        fill(&mut builder)?;
        self.context.bind()?;
        let mut raw: sys::CUgraphExec = ptr::null_mut();
        // SAFETY: writes one handle; the graph lives.
        unsafe { raw::cuGraphInstantiateWithFlags(&mut raw, self.raw, 0) }?;
        Ok(GraphExec {
            raw,
            context: Arc::clone(&self.context),
        })
    }

    fn clear(&mut self) -> Result<()> {
        let mut count = 0;
        // SAFETY: with a null array only the count is written.
        unsafe { raw::cuGraphGetNodes(self.raw, ptr::null_mut(), &mut count) }?;
        let mut nodes: Vec<sys::CUgraphNode> = vec![ptr::null_mut(); count];
        // SAFETY: the array has room for the number of nodes that the driver reported.
        unsafe { raw::cuGraphGetNodes(self.raw, nodes.as_mut_ptr(), &mut count) }?;
        nodes.truncate(count);
        for node in nodes {
            // SAFETY: the node was just listed and belongs to the graph; no other handle of the
            // node exists.
            unsafe { raw::cuGraphDestroyNode(node) }?;
        }
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: this was the last owner; instantiated graphs live on.
            let _ = unsafe { raw::cuGraphDestroy(self.raw) };
        }
    }
}

/// A graph that is being filled.
#[derive(Debug)]
pub struct Builder<'g> {
    stream: Stream,
    root: sys::CUgraph,
    graph: PhantomData<&'g mut Graph>,
}

/// A part of a graph with its own nodes: the graph itself, or a body of a conditional node.
#[derive(Debug)]
pub struct Section<'g> {
    raw: sys::CUgraph,
    graph: PhantomData<&'g mut Graph>,
}

/// Records the nodes of a section, one after another.
#[derive(Debug)]
pub struct Recorder<'b, 'g> {
    stream: &'b Stream,
    graph: PhantomData<&'g mut Graph>,
}

impl Section<'_> {
    /// The handle. Consumes the section, because a section is filled only once.
    fn use_up(self) -> sys::CUgraph {
        self.raw
    }
}

impl<'g> Builder<'g> {
    /// The graph itself.
    pub fn root(&self) -> Section<'g> {
        Section {
            raw: self.root,
            graph: PhantomData,
        }
    }

    /// Fills a section, once.
    ///
    /// # Errors
    /// Those of `fill`; the error of the driver.
    pub fn fill(
        &mut self,
        section: Section<'g>,
        fill: impl FnOnce(&mut Recorder<'_, 'g>) -> Result<()>,
    ) -> Result<()> {
        let graph = section.use_up();
        let stream = self.stream.bound()?;
        let (nodes, data) = (ptr::null(), ptr::null());
        // Calls of other threads do not disturb the capture.
        let mode = capture_mode::RELAXED;
        // SAFETY: the stream is ours and idle; the section's graph lives as long as the graph that
        // is being built, and no other code uses or empties it meanwhile ('g).
        unsafe { raw::cuStreamBeginCaptureToGraph(stream, graph, nodes, data, 0, mode) }?;
        let filled = fill(&mut Recorder {
            stream: &self.stream,
            graph: PhantomData,
        });
        let mut same: sys::CUgraph = ptr::null_mut();
        let stream = self.stream.bound()?;
        // SAFETY: ends the capture that began above, in the same stream; writes one handle, of a
        // known graph.
        let ended = unsafe { raw::cuStreamEndCapture(stream, &mut same) };
        filled.and(ended)
    }
}

impl<'g> Recorder<'_, 'g> {
    /// The stream whose submitted work becomes nodes.
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// Adds a conditional node. Returns its bodies.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn conditional(&mut self, handle: u64, rule: u32, size: u32) -> Result<Vec<Section<'g>>> {
        let stream = self.stream.bound()?;
        let (mut status, mut id, mut count) = (0, 0, 0);
        let mut graph: sys::CUgraph = ptr::null_mut();
        let mut tips: *const sys::CUgraphNode = ptr::null();
        // SAFETY: writes one value each; the list belongs to the driver, and is read before the
        // stream's next call.
        unsafe {
            raw::cuStreamGetCaptureInfo_v2(
                stream,
                &mut status,
                &mut id,
                &mut graph,
                &mut tips,
                &mut count,
            )
        }?;
        let mut params = NodeParams::empty(node::CONDITIONAL);
        params.put(ConditionalNodeParams {
            handle,
            rule,
            size,
            graphs: In::NULL,
            context: self.stream.context().raw() as u64,
        });
        let mut node: sys::CUgraphNode = ptr::null_mut();
        let given = (&raw mut params).cast::<c_void>();
        // SAFETY: the parameters are as large as the driver's structure; the list has `count`
        // entries.
        unsafe { raw::cuGraphAddNode(&mut node, graph, tips, count, given) }?;
        // SAFETY: one node of the graph into which the stream is captured.
        unsafe { raw::cuStreamUpdateCaptureDependencies(stream, &mut node, 1, SET_DEPENDENCIES) }?;
        // The driver has written the address of its array of `size` bodies, which lives as long as
        // the node.
        let bodies = params.view::<ConditionalNodeParams>().graphs;
        bodies.check().map_err(|_| CuResult::UNKNOWN)?;
        let bodies = bodies.list(size as usize)?;
        let section = |body: u64| Section {
            raw: body as sys::CUgraph,
            graph: PhantomData,
        };
        Ok(bodies.into_iter().map(section).collect())
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub struct GraphExec {
    raw: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: the handle may be used from any thread; only the session's thread launches it.
unsafe impl Send for GraphExec {}
// SAFETY: as above.
unsafe impl Sync for GraphExec {}

impl GraphExec {
    /// `cuGraphLaunch`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let raw = stream.bound()?;
        // SAFETY: graph and stream live; the session has checked all objects that the graph uses.
        unsafe { raw::cuGraphLaunch(self.raw, raw) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: this was the last owner; running launches still complete.
            let _ = unsafe { raw::cuGraphExecDestroy(self.raw) };
        }
    }
}
