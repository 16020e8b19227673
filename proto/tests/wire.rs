//! Tests that the bytes of the wire change only on purpose, and that no bytes of a guest harm the
//! decoder.

use proptest::prelude::*;
use vgpu_proto::call::{
    FINGERPRINT, FUNCTIONS, MemoryLimit, OPS, Op, Request, Served, Shortage, req,
};
use vgpu_proto::codec::{decode, encode};
use vgpu_proto::cuda::{Ctx, DevPtr, Event, Func, Module, Stream};
use vgpu_proto::frame::{FrameError, HEADER_LEN, Header};
use vgpu_proto::handshake::{
    ControlHeader, ControlNote, DeviceInfo, Hello, Refusal, ReplyPreamble, WELCOME_MAGIC, Welcome,
};
use vgpu_proto::limits::{MAX_ARGS, MAX_BULK};
use vgpu_proto::look::{
    Looked, LookedGpu, LookedLimits, LookedPart, LookedProcess, LookedQuarantine, Standing,
    Telemetry,
};
use vgpu_proto::worker::{FromWorker, Start, ToWorker};
use zerocopy::IntoBytes;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A look's answer with a value in every field.
fn looked() -> Looked {
    Looked {
        daemon_version: "0.1.0".into(),
        vm_id: 3,
        driver_version: Some("550.163.01".into()),
        cuda_version: Some(12_040),
        standing: Standing {
            quarantine: Some(LookedQuarantine {
                reason: "slow".into(),
                left_ms: Some(1),
            }),
            class: "low".into(),
            waiting_ns: Some(2),
            ..Standing::default()
        },
        limits: LookedLimits {
            sessions: Some(4),
            ..LookedLimits::default()
        },
        gpus: vec![LookedGpu {
            uuid: "GPU-1".into(),
            compute_capability: Some((9, 0)),
            telemetry: Some(Telemetry::default()),
            ..LookedGpu::default()
        }],
        processes: vec![LookedProcess {
            pid: 7,
            gpus: vec![LookedPart {
                gpu: 1,
                memory_bytes: 5,
            }],
            ..LookedProcess::default()
        }],
        ..Looked::default()
    }
}

/// The golden file: one line per message, with name and bytes. A change of this file is a change of
/// the protocol: raise `PROTOCOL`, or accept that the fingerprint refuses old guest libraries, and
/// mention the change in CHANGELOG.
fn golden() -> String {
    let launch = req::LaunchKernel {
        ctx: Ctx(0x2000_0000_0000_0001),
        stream: Stream(0x1000_0000_0000_0002),
        func: Func(0x2000_0000_0000_0003),
        grid: [1, 2, 3],
        block: [32, 4, 5],
        shared: 4096,
        cooperative: false,
        cluster: [0; 3],
    };
    let load = req::ModuleLoad {
        ctx: Ctx(1),
        hash: [7; 32],
        len: 99,
        options: vec![(0, 32)],
        info_log_len: 10,
        error_log_len: 20,
    };
    let hello = Hello {
        shim_version: "0.1.0".into(),
        cuda_version: 12_040,
        pid: 42,
        program: "vecadd".into(),
    };
    let welcome = Welcome {
        session: 5,
        nonce: [9; 32],
        daemon_version: "0.1.0".into(),
        cuda_version: 12_040,
        devices: vec![DeviceInfo {
            name: "GPU".into(),
            uuid: [3; 16],
            total_memory: 1 << 30,
            pci_bus_id: "0000:01:00.0".into(),
            attributes: vec![(1, 1024)],
            stream_priorities: (0, -5),
        }],
        depth_calls: 1,
        depth_bytes: 2,
    };
    let start = Start {
        session: 5,
        vm: 1,
        driver: Some("/lib/libcuda.so.1".into()),
        image_dir: "/var/lib/vgpu/images/1".into(),
        memory_quota: Some(1 << 30),
        depth_calls: 8192,
        depth_bytes: 16 << 20,
        expect_soft: true,
    };
    let mut lines = vec![format!("fingerprint {FINGERPRINT:016x}")];
    let header = Header::request(Op::LaunchKernel as u16, 7, 60, 24);
    lines.push(format!("header {}", hex(&header.to_bytes())));
    let mut message = |name: &str, bytes: Vec<u8>| lines.push(format!("{name} {}", hex(&bytes)));
    message("LaunchKernel", encode(&launch).unwrap());
    let replace = req::TensorMapReplaceAddress {
        ctx: Ctx(1),
        map: std::array::from_fn(|index| index as u64),
        address: 2,
    };
    message("TensorMapReplaceAddress", encode(&replace).unwrap());
    message("ModuleLoad", encode(&load).unwrap());
    message("Hello", encode(&hello).unwrap());
    message("Welcome", encode(&welcome).unwrap());
    let reply = ReplyPreamble {
        magic: WELCOME_MAGIC,
        code: 1.into(),
        body_len: 2.into(),
    };
    message("ReplyPreamble", reply.as_bytes().to_vec());
    for note in [
        ControlNote::Ended,
        ControlNote::Draining,
        ControlNote::Goodbye,
    ] {
        let header = ControlHeader {
            kind: (note as u32).into(),
            code: 4.into(),
            text_len: 5.into(),
        };
        message(
            &format!("ControlHeader {note:?}"),
            header.as_bytes().to_vec(),
        );
    }
    message("Look", vgpu_proto::look::question().to_vec());
    message("Looked", encode(&looked()).unwrap());
    message("ToWorker::Start", encode(&ToWorker::Start(start)).unwrap());
    message(
        "ToWorker::Grant",
        encode(&ToWorker::Grant {
            epoch: 3,
            slice_ns: 4,
        })
        .unwrap(),
    );
    message("FromWorker::Released", {
        encode(&FromWorker::Released {
            epoch: 3,
            calls: 1,
            bytes: 2,
        })
        .unwrap()
    });
    message(
        "Shortage",
        encode(&Shortage {
            limit: MemoryLimit::Quota,
            total: 3,
            left: 2,
            asked: 4,
        })
        .unwrap(),
    );
    for op in OPS {
        lines.push(format!(
            "op {:04x} {} {:?} {:?} bulk={}",
            op.op as u16, op.name, op.class, op.need, op.bulk
        ));
    }
    lines.join("\n") + "\n"
}

#[test]
fn golden_bytes_are_unchanged() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/wire.txt");
    vgpu_golden::assert_golden(path, &golden());
}

#[test]
fn table_is_in_order_and_without_double_numbers() {
    for pair in OPS.windows(2) {
        assert!(
            (pair[0].op as u16) < pair[1].op as u16,
            "{} {}",
            pair[0].name,
            pair[1].name
        );
    }
    for row in OPS {
        assert!(
            (row.op as u16) < 0x8000,
            "{} lies among the notices",
            row.name
        );
        assert_eq!(row.op.info(), row);
        assert_eq!(Op::from_wire(row.op as u16), Some(row.op));
    }
    assert_eq!(Op::from_wire(0), None);
}

#[test]
fn every_operation_is_used_by_a_function() {
    let used: Vec<Op> = FUNCTIONS
        .iter()
        .flat_map(|f| match f.served {
            Served::By(ops) => ops.to_vec(),
            Served::Local | Served::Refused => vec![],
        })
        .collect();
    for row in OPS {
        assert!(used.contains(&row.op), "{} serves no function", row.name);
    }
    let mut names: Vec<_> = FUNCTIONS.iter().map(|f| f.symbol).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "a function is listed twice");
}

#[test]
fn refusals_round_trip() {
    for r in Refusal::ALL {
        assert_eq!(Refusal::from_code(r as u32), Some(r));
        assert!(!r.cu_result().is_ok());
    }
    assert_eq!(Refusal::from_code(0), None);
}

#[test]
fn headers_over_a_bound_are_refused() {
    let good = Header::request(1, 1, MAX_ARGS, MAX_BULK).to_bytes();
    assert!(Header::parse(&good).is_ok());
    let mut long_args = good;
    long_args[8..12].copy_from_slice(&(MAX_ARGS as u32 + 1).to_le_bytes());
    assert!(matches!(
        Header::parse(&long_args),
        Err(FrameError::TooLong(..))
    ));
    let mut long_bulk = good;
    long_bulk[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(
        Header::parse(&long_bulk),
        Err(FrameError::TooLong(..))
    ));
    let mut magic = good;
    magic[0] ^= 1;
    assert!(matches!(Header::parse(&magic), Err(FrameError::Magic(_))));
    let mut reserved = good;
    reserved[6] = 1;
    assert_eq!(Header::parse(&reserved).err(), Some(FrameError::Reserved));
}

#[test]
fn trailing_and_missing_bytes_are_refused() {
    let free = req::MemFree { ptr: DevPtr(8) };
    let bytes = encode(&free).unwrap();
    assert_eq!(decode::<req::MemFree>(&bytes).unwrap(), free);
    for cut in 0..bytes.len() {
        assert!(decode::<req::MemFree>(&bytes[..cut]).is_err());
    }
    let mut more = bytes.clone();
    more.push(0);
    assert!(decode::<req::MemFree>(&more).is_err());
    assert!(
        Request::decode(Op::MemFree as u16, &bytes, 1).is_err(),
        "bulk on MemFree"
    );
    assert!(Request::decode(0x7777, &bytes, 0).is_err());
}

#[test]
fn an_announced_length_allocates_nothing() {
    // A name of 2^62 bytes in a message of 24 bytes: the decoder must refuse before it allocates.
    let mut bytes = encode(&Module(1)).unwrap();
    bytes.extend_from_slice(&(1u64 << 62).to_le_bytes());
    bytes.extend_from_slice(b"abcdefgh");
    assert!(Request::decode(Op::ModuleGetFunction as u16, &bytes, 0).is_err());
}

#[test]
fn oversized_values_are_not_encoded() {
    let name = "x".repeat(MAX_ARGS + 1);
    let mut out = vec![1, 2, 3];
    let call = req::ModuleGetFunction {
        module: Module(1),
        name,
    };
    assert!(vgpu_proto::codec::encode_into(&call, &mut out).is_err());
    assert_eq!(out, [1, 2, 3], "a failed encoding leaves nothing behind");
}

/// Every operation of the table, and some unknown numbers.
fn any_operation() -> impl Strategy<Value = u16> {
    let known: Vec<u16> = OPS.iter().map(|row| row.op as u16).collect();
    prop_oneof![9 => proptest::sample::select(known), 1 => any::<u16>()]
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(op in any_operation(), args in proptest::collection::vec(any::<u8>(), 0..200)) {
        // The property: no panic.
        if let Ok(request) = Request::decode(op, &args, 0) {
            prop_assert_eq!(request.op() as u16, op);
        }
        let _ = decode::<Hello>(&args);
        let _ = decode::<Looked>(&args);
        let _ = decode::<FromWorker>(&args);
        let _ = decode::<ToWorker>(&args);
    }

    #[test]
    fn any_header_parses_within_bounds(bytes in proptest::array::uniform32(any::<u8>())) {
        let mut bytes = bytes;
        bytes[0..2].copy_from_slice(&vgpu_proto::frame::MAGIC.to_le_bytes());
        if let Ok(h) = Header::parse(&bytes) {
            prop_assert!(h.args_len() <= MAX_ARGS && h.bulk_len() <= MAX_BULK);
            prop_assert_eq!(h.to_bytes(), bytes);
        }
    }

    #[test]
    fn launches_round_trip(stream in any::<u64>(), grid in any::<[u32; 3]>(), shared in any::<u32>()) {
        let call = req::LaunchKernel {
            ctx: Ctx(1), stream: Stream(stream), func: Func(2), grid, block: grid, shared, cooperative: true, cluster: [0; 3],
        };
        let bytes = encode(&call).unwrap();
        prop_assert_eq!(
            Request::decode(Op::LaunchKernel as u16, &bytes, 0).unwrap(),
            Request::LaunchKernel(call)
        );
    }

    #[test]
    fn events_round_trip(event in any::<u64>(), flags in any::<u32>()) {
        let call = req::EventCreate { ctx: Ctx(1), event: Event(event), flags };
        prop_assert_eq!(decode::<req::EventCreate>(&encode(&call).unwrap()).unwrap(), call);
    }
}

const _: () = assert!(HEADER_LEN == 32);
