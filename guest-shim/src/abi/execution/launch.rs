//! Kernel launches.

use std::ffi::c_void;

use vgpu_cuda_abi::args::In;
use vgpu_cuda_abi::numbers::launch_attribute::{
    CLUSTER_DIMENSION, COOPERATIVE, PREFERRED_CLUSTER_DIMENSION,
};
use vgpu_cuda_abi::structs::LaunchConfig;

use crate::ffi::exports;
use crate::ops::launch::{Params, Shape, launch};
use crate::process::live;
use crate::{Cu, unserved};

exports! {
    /// Launches.
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
        };
        launch(function, shape, stream, mode, Params { pointers: params, extra })
    }

    /// Launches with attributes.
    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz [mode] (
        config: In<LaunchConfig>,
        function: u64,
        params: In<In<u8>>,
        extra: In<In<c_void>>
    ) {
        live()?;
        let config = config.get()?;
        let cooperative = attributes(&config)?;
        let shape = Shape {
            grid: config.grid,
            block: config.block,
            shared: config.shared,
            cooperative,
        };
        launch(function, shape, config.stream.0, mode, Params { pointers: params, extra })
    }

    /// Launches blocks that may wait for each other.
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
        };
        let params = Params { pointers: params, extra: In::NULL };
        launch(function, shape, stream, mode, params)
    }
}

/// Whether the launch is cooperative. Attributes that only advise are accepted and dropped; those
/// that change what a kernel computes or when events fire are refused.
fn attributes(config: &LaunchConfig) -> Cu<bool> {
    let mut cooperative = false;
    for i in 0..config.count as usize {
        let attribute = config.attributes.at(i)?;
        match attribute.id {
            COOPERATIVE => cooperative = attribute.value[0] != 0,
            CLUSTER_DIMENSION | PREFERRED_CLUSTER_DIMENSION => {
                // A cluster of one block is what a launch without clusters has.
                if attribute.value[..3].iter().any(|n| *n > 1) {
                    let form = "cuLaunchKernelEx with clusters of more than one block";
                    return Err(unserved::refuse(form, unserved::CLUSTERS));
                }
            }
            // Ignore; access policy; synchronisation policy; cluster scheduling; programmatic
            // serialisation (a permission to overlap, which need not be used); priority; memory
            // domains; shared-memory carve-out; NVLink scheduling.
            0 | 1 | 3 | 5 | 6 | 8 | 9 | 10 | 14 | 16 => {}
            // Events within a launch, device-updatable nodes, and what is newer.
            _ => {
                let form = "cuLaunchKernelEx with launch events, device-updatable nodes or newer attributes";
                return Err(unserved::refuse(
                    form,
                    "record events behind the launch; leave the attribute out",
                ));
            }
        }
    }
    Ok(cooperative)
}
