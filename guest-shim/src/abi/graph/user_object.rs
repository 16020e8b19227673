//! User objects: objects of the program that exist as long as graphs use them.

use std::ffi::c_void;
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::Out;
use vgpu_cuda_abi::structs::HostFn;

use crate::ffi::exports;
use crate::state::current::live;
use crate::state::graphs::NamedObject;
use crate::{Cu, lock};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which is mandatory.
const NO_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes over references of the program.
const MOVE: u32 = 1;

exports! {
    /// Creates an object with a number of references. `destroy` is called when the last reference
    /// is released.
    fn cuUserObjectCreate(
        out: Out<u64>,
        data: *mut c_void,
        destroy: Option<HostFn>,
        count: u32,
        flags: u32
    ) {
        let shim = live()?;
        out.check()?;
        let destroy = destroy.ok_or(CuResult::INVALID_VALUE)?;
        if count == 0 || flags != NO_SYNC {
            return Err(CuResult::INVALID_VALUE);
        }
        let handle = shim.mint();
        let object = NamedObject::new(handle, destroy, data as usize, count);
        shim.objects.insert(handle, Arc::new(object))?;
        out.set(handle)
    }

    /// Adds references that the program holds.
    fn cuUserObjectRetain(object: u64, count: u32) {
        named(object)?.retain(count)
    }

    /// Releases references that the program holds.
    fn cuUserObjectRelease(object: u64, count: u32) {
        named(object)?.release(count)
    }

    /// Adds references that a graph holds.
    fn cuGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) {
        let shim = live()?;
        let graph = shim.graph(graph)?;
        let named = named(object)?;
        let held = named.object()?;
        if count == 0 || flags & !MOVE != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for _ in 0..count {
            lock(&graph.objects).push((object, held.clone()));
        }
        if flags & MOVE != 0 { named.release(count) } else { Ok(()) }
    }

    /// Releases references that a graph holds.
    fn cuGraphReleaseUserObject(graph: u64, object: u64, count: u32) {
        let graph = live()?.graph(graph)?;
        for _ in 0..count {
            let mut objects = lock(&graph.objects);
            let place = objects.iter().position(|(handle, _)| *handle == object);
            let gone = objects.swap_remove(place.ok_or(CuResult::INVALID_VALUE)?);
            // The destructor may make calls about the graph, and these calls take this lock.
            drop(objects);
            drop(gone);
        }
        Ok(())
    }
}

fn named(object: u64) -> Cu<Arc<NamedObject>> {
    let found = live()?.objects.get(object);
    found.map_err(|_| CuResult::INVALID_VALUE)
}
