//! Kernel launches.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::In;
use vgpu_cuda_abi::numbers::launch_attribute::{
    CLUSTER_DIMENSION, COOPERATIVE, PREFERRED_CLUSTER_DIMENSION,
};
use vgpu_cuda_abi::structs::{LaunchAttribute, LaunchConfig};
use vgpu_proto::call::{Cluster, OWN_CLUSTER};

use crate::ffi::exports;
use crate::ops::launch::{Params, Shape, launch};
use crate::state::current::live;
use crate::{Cu, unserved};

exports! {
    /// Launches a kernel.
    fn cuLaunchKernel / cuLaunchKernel_ptsz [mode] (
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        params: In<In<u8>>,
        extra: In<In<c_void>>
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared,
            cooperative: false,
            cluster: OWN_CLUSTER,
        };
        launch(function, shape, stream, mode, Params { pointers: params, extra })
    }

    /// Launches a kernel with attributes.
    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz [mode] (
        config: In<LaunchConfig>,
        function: u64,
        params: In<In<u8>>,
        extra: In<In<c_void>>
    ) {
        live()?;
        let config = config.get()?;
        let (cooperative, cluster) = attributes(&config)?;
        let shape = Shape {
            grid: config.grid,
            block: config.block,
            shared: config.shared,
            cooperative,
            cluster,
        };
        launch(function, shape, config.stream.0, mode, Params { pointers: params, extra })
    }

    /// Launches a kernel whose blocks may wait for each other.
    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz [mode] (
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        params: In<In<u8>>
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared,
            cooperative: true,
            cluster: OWN_CLUSTER,
        };
        let params = Params { pointers: params, extra: In::NULL };
        launch(function, shape, stream, mode, params)
    }
}

/// Whether the launch is cooperative, and its clusters. Hints are accepted and ignored. Attributes
/// that change the results of a kernel or the time of events are refused.
fn attributes(config: &LaunchConfig) -> Cu<(bool, Cluster)> {
    let (mut cooperative, mut cluster) = (false, OWN_CLUSTER);
    for i in 0..config.count as usize {
        let attribute = config.attributes.at(i)?;
        match attribute.id {
            COOPERATIVE => cooperative = attribute.value[0] != 0,
            CLUSTER_DIMENSION => {
                cluster = cluster_of(&attribute);
                if cluster.contains(&0) {
                    return Err(CuResult::INVALID_CLUSTER_SIZE);
                }
            }
            // A hint: the driver may use the clusters of the attribute above.
            PREFERRED_CLUSTER_DIMENSION => {}
            // Ignore; access policy; synchronisation policy; cluster scheduling; programmatic
            // serialisation (permits an overlap); priority; memory domains; shared-memory
            // carve-out; NVLink scheduling.
            0 | 1 | 3 | 5 | 6 | 8 | 9 | 10 | 14 | 16 => {}
            // Events within a launch, device-updatable nodes, and newer attributes.
            _ => {
                let form = "cuLaunchKernelEx with launch events, device-updatable nodes or newer attributes";
                return Err(unserved::refuse(
                    form,
                    "record events behind the launch; leave the attribute out",
                ));
            }
        }
    }
    Ok((cooperative, cluster))
}

/// The clusters of the attribute [`CLUSTER_DIMENSION`].
pub(super) fn cluster_of(attribute: &LaunchAttribute) -> Cluster {
    let [x, y, z, ..] = attribute.value;
    [x, y, z]
}
