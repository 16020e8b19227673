//! The admin API: parses any bytes as the body of each request, and checks the parsed values with
//! `vgpud::rules`. No request is carried out.
//!
//! The audit trail and the store write an accepted body as JSON and read the JSON again. The body
//! must stay the same.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use vgpu_api::{
    AssignRequest, KillRequest, MoveRequest, PoolCreate, PoolPatch, PoolSettings,
    QuarantineRequest, RegisterRequest, UnassignRequest, UsageReset, VmIds, VmLimits, VmPatch,
    WeightsPatch,
};
use vgpud::rules;

fn body<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_vec(&value).expect("what was read is written");
    let again: T = serde_json::from_slice(&text).expect("what was written is read");
    assert_eq!(again, value);
    Some(value)
}

fn pool(bytes: &[u8]) {
    if let Some(patch) = body::<PoolPatch>(bytes) {
        let mut settings = PoolSettings::default();
        patch.apply_to(&mut settings);
        let _ = rules::pool_settings(&settings);
    }
}

fn vm(bytes: &[u8]) {
    if let Some(patch) = body::<VmPatch>(bytes) {
        let mut limits = VmLimits::default();
        patch.limits.apply_to(&mut limits);
        let _ = rules::vm_limits(&limits);
    }
}

fn register(bytes: &[u8]) {
    if let Some(request) = body::<RegisterRequest>(bytes) {
        let _ = rules::name("pool", &request.pool);
        for vm_id in request.vm_ids {
            let _ = rules::vm_id(vm_id);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    match which % 13 {
        0 => pool(bytes),
        1 => vm(bytes),
        2 => register(bytes),
        3 => drop(body::<PoolCreate>(bytes)),
        4 => drop(body::<WeightsPatch>(bytes)),
        5 => drop(body::<AssignRequest>(bytes)),
        6 => drop(body::<UnassignRequest>(bytes)),
        7 => drop(body::<MoveRequest>(bytes)),
        8 => drop(body::<QuarantineRequest>(bytes)),
        9 => drop(body::<KillRequest>(bytes)),
        10 => drop(body::<UsageReset>(bytes)),
        11 => drop(body::<VmIds>(bytes)),
        _ => drop(rules::socket(&String::from_utf8_lossy(bytes))),
    }
});
