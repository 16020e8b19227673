//! Capture of streams into graphs.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out, StreamArg};
use vgpu_cuda_abi::structs::EdgeData;

use crate::capi::StreamOf as _;
use crate::capi::graph::graphs::{dependencies, dependencies_with};
use crate::driver::error::Result;
use crate::driver::graph;
use crate::driver::graph::capture::{self, Mode};
use crate::driver::healthy;

fn begin(stream: StreamArg, mode: u32, default: DefaultStream) -> Result {
    let mode = Mode::of(mode)?;
    let stream = stream.get(default)?;
    capture::begin(&stream, mode)
}

fn info_v2(
    stream: StreamArg,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    tips: Out<*const u64>,
    count: Out<usize>,
    default: DefaultStream,
) -> Result {
    let data = Out::NULL;
    info_v3(stream, status, id, graph, tips, data, count, default)
}

#[allow(clippy::too_many_arguments)]
fn info_v3(
    stream: StreamArg,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    tips: Out<*const u64>,
    data: Out<*const EdgeData>,
    count: Out<usize>,
    default: DefaultStream,
) -> Result {
    status.check()?;
    let found = capture::info(&*stream.get(default)?)?;
    // Without `data`, the program would not get the edge data of the dependencies.
    if found.annotated && !tips.is_null() && data.is_null() {
        return Err(CuResult::LOSSY_QUERY);
    }
    status.set(found.status as u32)?;
    id.set_if_wanted(found.id);
    graph.set_if_wanted(found.graph);
    tips.set_if_wanted(found.tips);
    data.set_if_wanted(found.data);
    count.set_if_wanted(found.count);
    Ok(())
}

exports! {
    fn cuStreamBeginCapture / cuStreamBeginCapture_ptsz [default] (stream: StreamArg) {
        begin(stream, 0, default)
    }

    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz [default] (stream: StreamArg, mode: u32) {
        begin(stream, mode, default)
    }

    fn cuStreamBeginCaptureToGraph / cuStreamBeginCaptureToGraph_ptsz [default] (stream: StreamArg, graph: u64, nodes: In<u64>, data: In<EdgeData>, count: usize, mode: u32) {
        let mode = Mode::of(mode)?;
        let stream = stream.get(default)?;
        let tips = dependencies_with(nodes, data, count)?;
        capture::begin_to_graph(&stream, mode, graph::get(graph)?, &tips)
    }

    fn cuStreamEndCapture / cuStreamEndCapture_ptsz [default] (stream: StreamArg, out: Out<u64>) {
        let stream = stream.get(default)?;
        out.set_if_wanted(0);
        // A program that captures into its own graph may pass a null pointer for the result.
        out.set_if_wanted(capture::end(&stream)?.handle);
        Ok(())
    }

    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz [default] (stream: StreamArg, status: Out<u32>) {
        status.check()?;
        status.set(capture::status(&*stream.get(default)?)? as u32)
    }

    fn cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz [default] (stream: StreamArg, status: Out<u32>, id: Out<u64>) {
        info_v2(stream, status, id, Out::NULL, Out::NULL, Out::NULL, default)
    }

    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz [default] (stream: StreamArg, status: Out<u32>, id: Out<u64>, graph: Out<u64>, tips: Out<*const u64>, count: Out<usize>) {
        info_v2(stream, status, id, graph, tips, count, default)
    }

    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz [default] (stream: StreamArg, status: Out<u32>, id: Out<u64>, graph: Out<u64>, tips: Out<*const u64>, data: Out<*const EdgeData>, count: Out<usize>) {
        info_v3(stream, status, id, graph, tips, data, count, default)
    }

    fn cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz [default] (stream: StreamArg, nodes: In<u64>, count: usize, flags: u32) {
        if flags > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        let stream = stream.get(default)?;
        capture::update_tips(&stream, &dependencies(nodes, count)?, flags == 1)
    }

    fn cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz [default] (stream: StreamArg, nodes: In<u64>, data: In<EdgeData>, count: usize, flags: u32) {
        if flags > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        let stream = stream.get(default)?;
        let tips = dependencies_with(nodes, data, count)?;
        capture::update_tips(&stream, &tips, flags == 1)
    }
}

exports! {
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        healthy()?;
        let wanted = mode.get()?;
        mode.set(capture::exchange_mode(wanted)?)
    }
}
