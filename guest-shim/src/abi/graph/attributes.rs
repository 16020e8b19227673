//! Launch attributes of kernel nodes.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::launch_attribute::{
    CLUSTER_DIMENSION as CLUSTER, COOPERATIVE, DEVICE_UPDATABLE_KERNEL_NODE as UPDATABLE,
    MEM_SYNC_DOMAIN_MAP as DOMAIN_MAP, PREFERRED_CLUSTER_DIMENSION as PREFERRED_CLUSTER,
    PREFERRED_SHARED_MEMORY_CARVEOUT as CARVEOUT,
};
use vgpu_cuda_abi::structs::AttributeValue;

use crate::ffi::exports;
use crate::ops::launch::check_clusters;
use crate::state::Shim;
use crate::state::current::{live, shim};
use crate::state::graphs::Kind;
use crate::{Cu, lock, unserved};

/// Attributes of kernel nodes (`CUkernelNodeAttrID`).
const KERNEL: [u32; 10] = [
    1,
    2,
    CLUSTER,
    5,
    8,
    DOMAIN_MAP,
    10,
    PREFERRED_CLUSTER,
    UPDATABLE,
    CARVEOUT,
];

exports! {
    /// The value of an attribute.
    fn cuGraphKernelNodeGetAttribute(node: u64, id: u32, out: Out<AttributeValue>) {
        let shim = shim()?;
        out.check()?;
        let value = get(shim, node, id)?;
        out.set(value)
    }

    /// Sets an attribute.
    fn cuGraphKernelNodeSetAttribute(node: u64, id: u32, value: In<AttributeValue>) {
        let shim = live()?;
        set(shim, node, id, value.get()?)
    }

    /// Copies all attributes of another node.
    fn cuGraphKernelNodeCopyAttributes(to: u64, from: u64) {
        let shim = live()?;
        let all = KERNEL.map(|id| get(shim, from, id).map(|value| (id, value)));
        let all = all.into_iter().collect::<Cu<Vec<_>>>()?;
        all.into_iter().try_for_each(|(id, value)| set(shim, to, id, value))
    }
}

fn get(shim: &Shim, node: u64, id: u32) -> Cu<AttributeValue> {
    if !KERNEL.contains(&id) {
        return Err(CuResult::INVALID_VALUE);
    }
    let node = shim.node(node)?;
    let Kind::Kernel(kernel) = lock(&node.kind).clone() else {
        return Err(CuResult::INVALID_VALUE);
    };
    if let Some(value) = lock(&node.attributes).get(&id) {
        return Ok(*value);
    }
    let mut value = [0; 16];
    match id {
        CLUSTER => value[..3].copy_from_slice(&kernel.cluster),
        COOPERATIVE => value[0] = kernel.cooperative.into(),
        // The value {0, 1}, as bytes.
        DOMAIN_MAP => value[0] = 1 << 8,
        // -1: no preference.
        CARVEOUT => value[0] = u32::MAX,
        _ => {}
    }
    Ok(value)
}

/// Sets an attribute. Cooperative and clusters take effect. Hints are stored and returned.
/// Attributes that change the results of a kernel are refused, as in `launch`.
fn set(shim: &Shim, node: u64, id: u32, value: AttributeValue) -> Cu {
    if !KERNEL.contains(&id) {
        return Err(CuResult::INVALID_VALUE);
    }
    if id == UPDATABLE && value[0] != 0 {
        let form = "cuGraphKernelNodeSetAttribute with device-updatable nodes";
        return Err(unserved::refuse(form, "update the graph from the program"));
    }
    let node = shim.node(node)?;
    let Kind::Kernel(kernel) = lock(&node.kind).clone() else {
        return Err(CuResult::INVALID_VALUE);
    };
    if id == CLUSTER {
        let device = shim.devices.get(kernel.function.device)?;
        let cluster = [value[0], value[1], value[2]];
        let form = "cuGraphKernelNodeSetAttribute with clusters of more than one block";
        check_clusters(form, &kernel.function, device, (kernel.grid, cluster))?;
    }
    lock(&node.attributes).insert(id, value);
    Ok(())
}
