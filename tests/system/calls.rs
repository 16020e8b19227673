//! Every function of the driver API with real and with wrong arguments: directly on soft-gpu, and
//! through the whole system, whose guest library answers many functions itself. Both runs must
//! follow CUDA's documentation and print the same.

use anyhow::{Result, ensure};
use vgpu_tests::guest::{self, Guest, Program, Target, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};

/// Runs a program directly on soft-gpu and through the whole system.
fn alike(program: Program) -> Result<()> {
    let direct = expect_right(&Guest::new(program, Target::SoftGpu)?)
        .map_err(|e| e.context("directly on soft-gpu"))?;
    let host = one_vm(&Options::default())?;
    let remote = expect_right(&Guest::new(program, host.target(1))?)
        .map_err(|e| e.context(format!("through vgpud, whose log is:\n{}", host.log())))?;
    if let Some((a, b)) = direct.lines().zip(remote.lines()).find(|(a, b)| a != b) {
        panic!("directly: {a}\nthrough vgpud: {b}");
    }
    assert_eq!(direct.lines().count(), remote.lines().count());
    Ok(())
}

/// Tests of the given names. Each runs the program `guest::<PROGRAM>` with [`alike`].
macro_rules! alike {
    ($($(#[$doc:meta])* $name:ident: $program:ident,)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() -> Result<()> {
            alike(guest::$program)
        }
    )*};
}

alike! {
    devices: DEVICES,
    contexts: CONTEXTS,
    streams_and_events: STREAMS,
    memory: MEMORY,
    arrays_and_batches: ARRAYS,
    pools_and_physical_memory: POOLS,
    modules_and_launches: MODULES,
    /// Software devices have none. The GPU kit runs the program on GPUs.
    tensor_maps_are_refused: HOPPER,
    kernels_that_launch_kernels: NESTED,
    nodes_of_graphs: NODES,
    instances_of_graphs: EXECS,
    per_thread_default_streams: PERTHREAD,
}

/// Attributes that are 0 for programs because the feature does not work from another machine,
/// whatever the device can do. By (first, last).
const NOT_REMOTE: &[(u32, u32, &str)] = &[
    (86, 86, "atomics on memory of the host"),
    (88, 88, "kernels that reach pageable memory"),
    (98, 98, "writes to memory of the host that are flushed"),
    (100, 101, "page tables of the host"),
    (103, 105, "memory that is shared with other processes"),
    (110, 110, "devices that reach each other's memory"),
    (112, 112, "arrays of which parts are mapped"),
    (113, 113, "registered memory that kernels only read"),
    (114, 114, "semaphores of graphics"),
    (116, 116, "devices that reach each other's memory"),
    (119, 119, "pools that are shared with other processes"),
    (121, 121, "arrays that get their memory later"),
    (
        124,
        125,
        "memory and events that are shared with other processes",
    ),
    (128, 128, "memory that is shared with other machines"),
    (
        129,
        129,
        "pointers to functions that are the same on all devices",
    ),
    (132, 133, "multicast, and a server of processes"),
    (135, 138, "graphics, and engines that decompress"),
    (
        141,
        199,
        "memory of the host; what is newer than this library",
    ),
];

/// Attributes about memory of the host that kernels reach, which may exist or not: mapped, managed,
/// registered.
const OF_HOST_MEMORY: &[u32] = &[19, 83, 89, 91];

/// (number, result, value), as printed by the program.
fn attributes(target: Target) -> Result<Vec<(u32, u32, i64)>> {
    let text = expect_right(&Guest::new(guest::DEVICES, target)?.arg("attributes"))?;
    let mut all = Vec::new();
    for line in text.lines().filter(|l| !l.contains('(')) {
        let mut words = line.split(' ');
        let mut word = || words.next().ok_or_else(|| anyhow::anyhow!("{line}"));
        all.push((word()?.parse()?, word()?.parse()?, word()?.parse()?));
    }
    ensure!(all.len() > 160, "{text}");
    Ok(all)
}

#[test]
fn every_attribute_is_told_as_the_device_has_it_or_is_0_for_a_reason() -> Result<()> {
    let direct = attributes(Target::SoftGpu)?;
    let host: Host = one_vm(&Options::default())?;
    let remote = attributes(host.target(1))?;
    assert_eq!(direct.len(), remote.len(), "as many attributes");
    for ((id, was, has), (same, result, told)) in direct.into_iter().zip(remote) {
        assert_eq!((id, was), (same, result), "attribute {id}");
        let reason = NOT_REMOTE
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&id));
        match reason {
            Some((_, _, reason)) if result == 0 => assert_eq!(told, 0, "attribute {id}: {reason}"),
            _ if OF_HOST_MEMORY.contains(&id) => {
                assert!(
                    told == has || told == 0,
                    "attribute {id}: {told}, not {has} or 0"
                );
            }
            _ => assert_eq!(told, has, "attribute {id}"),
        }
    }
    Ok(())
}
