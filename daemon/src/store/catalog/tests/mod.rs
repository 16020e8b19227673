mod gpus;
mod hosts;
mod limits;
mod pools;
mod restore;
mod vms;

use vgpu_api::{
    AssignRequest, GpuHealth, GpuSource, GpuState, Limit, MoveRequest, PoolCreate, PoolPatch,
    Priority, Quarantine, QuarantineRequest, RegisterRequest, UnassignRequest, VmIds,
    VmLimitsPatch, VmPatch, WeightsPatch,
};

use super::*;
use crate::model::{ScanResult, ScannedGpu};

fn context() -> Context {
    Context {
        now_unix_ms: 1_000,
        defaults: Defaults::default(),
        own_paths: vec!["/run/vgpu/vm".into()],
        local_cid: false,
    }
}

pub(crate) fn gpu(n: u32) -> ScannedGpu {
    ScannedGpu {
        uuid: format!("GPU-{n:04}"),
        ordinal: n,
        model: format!("Test {n} (soft)"),
        memory_bytes: 1 << 30,
        memory_used_bytes: None,
        pci_address: Some(format!("0000:{n:02x}:00.0")),
        driver: None,
        cuda_version: Some(12_040),
        compute_capability: Some("8.0".into()),
        source: GpuSource::Nvml,
        mig: Vec::new(),
        health: GpuHealth {
            ok: true,
            ..GpuHealth::default()
        },
    }
}

fn scan(gpus: &[ScannedGpu]) -> Command {
    Command::ScanGpus(ScanResult {
        gpus: gpus.to_vec(),
        warnings: Vec::new(),
    })
}

fn pool(name: &str) -> Command {
    Command::CreatePool(PoolCreate {
        name: name.into(),
        settings: PoolPatch::default(),
    })
}

fn assign(gpu: &str, pool: &str) -> Command {
    Command::AssignGpu(AssignRequest {
        gpu: gpu.into(),
        pool: pool.into(),
        create_pool: false,
        shared: false,
    })
}

fn register(ids: &[u32], pool: &str) -> RegisterRequest {
    RegisterRequest {
        vm_ids: ids.to_vec(),
        pool: pool.into(),
        ..RegisterRequest::default()
    }
}

/// Two GPUs, pool A with GPU 0 and VMs 1 to 3, empty pool B.
fn host() -> Catalog {
    let mut catalog = Catalog::default();
    let commands = [
        scan(&[gpu(0), gpu(1)]),
        pool("A"),
        pool("B"),
        assign("0", "A"),
        Command::RegisterVm(RegisterRequest {
            first_cid: Some(10),
            ..register(&[1, 2, 3], "A")
        }),
    ];
    for command in commands {
        done(&mut catalog, &command);
    }
    catalog
}

fn done(catalog: &mut Catalog, command: &Command) -> Outcome {
    catalog
        .apply(command, &context())
        .unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

fn refused(catalog: &Catalog, command: &Command) -> ErrorDetail {
    match catalog.clone().apply(command, &context()) {
        Err(error) => error,
        Ok(outcome) => panic!("{command:?} was done: {outcome:?}"),
    }
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let host = host();
    let error = refused(&host, &assign("7", "A"));
    assert_eq!(error.code, ErrorCode::GpuNotFound);
    assert!(
        error
            .to_string()
            .contains("0 (Test 0 (soft)), 1 (Test 1 (soft))"),
        "{error}"
    );
    let error = refused(&host, &assign("1", "C"));
    assert_eq!(error.code, ErrorCode::PoolNotFound);
    assert!(error.to_string().contains("A, B"), "{error}");
    let error = refused(&host, &Command::UnregisterVm(VmIds { vm_ids: vec![2, 9] }));
    assert_eq!(error.code, ErrorCode::VmNotFound);
    assert!(
        error.to_string().contains("VM 9") && error.to_string().contains("1-3"),
        "{error}"
    );
    let empty = Catalog::default();
    assert!(
        refused(&empty, &assign("0", "A"))
            .to_string()
            .contains("scan-gpus")
    );
    let error = refused(&empty, &Command::RegisterVm(register(&[1], "A")));
    assert!(error.to_string().contains("pool create A"), "{error}");
}

#[test]
fn ranges_are_short() {
    assert_eq!(ranges([1, 2, 3, 5, 8, 9].into_iter()), "1-3, 5, 8-9");
    assert_eq!(ranges(std::iter::empty()), "");
    assert_eq!(ranges([u32::MAX].into_iter()), "4294967295");
}
