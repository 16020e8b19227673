//! The launches and fills in graph nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use vgpu_cuda_abi::numbers::launch_attribute::{CLUSTER_DIMENSION, COOPERATIVE};
use vgpu_cuda_abi::structs::AttributeValue;
use vgpu_proto::call::Cluster;

use crate::state::modules::FunctionInfo;

/// Values of `CUlaunchAttribute` that the program set, by `CUlaunchAttributeID`.
pub(crate) type Attributes = BTreeMap<u32, AttributeValue>;

/// A launch of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct KernelNode {
    /// The handle that the program passed: a function or a kernel.
    pub(crate) handle: u64,
    /// The function that the handle means.
    pub(crate) function: Arc<FunctionInfo>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) cooperative: bool,
    pub(crate) cluster: Cluster,
    /// The parameter block.
    pub(crate) params: Vec<u8>,
    /// Addresses of the parameters in `params`, as an array to which the program gets a pointer.
    pub(crate) pointers: Vec<usize>,
}

impl KernelNode {
    /// Sets `pointers`. `params` must not move afterwards.
    pub(crate) fn point(mut self) -> KernelNode {
        let base = self.params.as_ptr() as usize;
        let offsets = self.function.params.iter();
        self.pointers = offsets.map(|(at, _)| base + *at as usize).collect();
        self
    }

    /// The same launch with the attributes of the node applied.
    pub(crate) fn with(self: &Arc<Self>, attributes: &Attributes) -> Arc<KernelNode> {
        let cooperative = attributes.get(&COOPERATIVE).map(|value| value[0] != 0);
        let cooperative = cooperative.unwrap_or(self.cooperative);
        let cluster = attributes.get(&CLUSTER_DIMENSION);
        let cluster = cluster.map_or(self.cluster, |value| [value[0], value[1], value[2]]);
        if (cooperative, cluster) == (self.cooperative, self.cluster) {
            return self.clone();
        }
        let mut changed = KernelNode::clone(self);
        (changed.cooperative, changed.cluster) = (cooperative, cluster);
        Arc::new(changed.point())
    }
}

/// A fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FillNode {
    pub(crate) dst: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    pub(crate) width: u8,
    pub(crate) columns: u64,
    pub(crate) rows: u64,
}
