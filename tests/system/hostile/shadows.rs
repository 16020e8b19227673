//! Memory of the program that the worker mirrors: at addresses of the guest's choice, with contents
//! from the guest.

use anyhow::{Result, ensure};
use vgpu_proto::call::{Op, req};
use vgpu_proto::cuda::{CuResult, DevPtr};
use vgpu_proto::limits::HOST_SPACE;
use vgpu_tests::hostile::Session;

use super::calls::{SHADOW, push};
use super::{Adder, Scene, is_refusal};

/// Size of a block in bytes; the block does not end with a line.
const SIZE: u64 = 0x1010;

fn map(session: &mut Session, at: u64, size: u64) -> Result<CuResult> {
    let ptr = DevPtr(at);
    session.status(&req::HostMap { ptr, size })
}

#[test]
fn copies_are_made_only_where_nothing_of_the_worker_can_be() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let ptr = session.alloc(ctx, 4096)?.0;
    let here = std::ptr::from_ref(&scene) as u64;
    ensure!(map(&mut session, SHADOW.0, SIZE)?.is_ok(), "the right one");
    for (at, size) in [
        (0, 4096),
        (1, 1),
        (0x40_0000, 4096),
        (ptr, 4096),
        (here, 4096),
        (HOST_SPACE.start - 1, 4096),
        (HOST_SPACE.start, 0),
        (HOST_SPACE.start, u64::MAX),
        (HOST_SPACE.start, u64::MAX - HOST_SPACE.start + 1),
        (HOST_SPACE.start, HOST_SPACE.end - HOST_SPACE.start + 1),
        (HOST_SPACE.end - 1, 2),
        (HOST_SPACE.end, 1),
        (u64::MAX, 1),
        (SHADOW.0, SIZE),
        (SHADOW.0 + 8, 1),
        (SHADOW.0 - 8, 16),
        (SHADOW.0 + SIZE - 1, 1),
        // The last page belongs to the block.
        (SHADOW.0 + SIZE, 1),
    ] {
        let status = map(&mut session, at, size)?;
        ensure!(!status.is_ok(), "mapped {at:#x} + {size:#x}");
        ensure!(!status.is_sticky(), "{at:#x} + {size:#x}: {status}");
    }
    // The guest maps more memory than exists, 50 times: the ledger refuses each request before
    // memory is mapped.
    for _ in 0..50 {
        let far = map(&mut session, HOST_SPACE.start + (1 << 36), 1 << 38)?;
        ensure!(far == CuResult::OUT_OF_MEMORY, "{far}");
    }
    Adder::new(&mut session)?.works(&mut session)?;
    drop(session);
    scene.unharmed()
}

#[test]
fn what_the_guest_tells_of_changes_touches_only_its_blocks() -> Result<()> {
    let scene = Scene::new()?;
    let mut other = scene.open()?;
    other.primary()?;
    ensure!(
        map(&mut other, SHADOW.0, SIZE)?.is_ok(),
        "another program's"
    );
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let ptr = session.alloc(ctx, 4096)?;
    // A block of another program only.
    let tell = |session: &mut Session, bulk: &[u8]| -> Result<CuResult> {
        session.status_args(Op::HostPush, &[], bulk)
    };
    ensure!(
        is_refusal(tell(&mut session, &push(SHADOW))?),
        "there is none"
    );
    ensure!(map(&mut session, SHADOW.0, SIZE)?.is_ok(), "its own");
    let record = |at: u64, mask: u64, bytes: &[u8]| {
        [&at.to_le_bytes()[..], &mask.to_le_bytes(), bytes].concat()
    };
    let last = SHADOW.0 + SIZE / 64 * 64;
    for bad in [
        push(DevPtr(SHADOW.0 + 1)),
        push(DevPtr(SHADOW.0 - 64)),
        push(DevPtr(last + 64)),
        push(DevPtr(0)),
        push(DevPtr(u64::MAX - 63)),
        push(ptr),
        record(last, 1 << 16, &[7]),
        record(last, u64::MAX, &[&[0, 0][..], &[7; 64]].concat()),
        record(last - 64, u64::MAX, &[&[1, 0][..], &[7; 128]].concat()),
        record(SHADOW.0, u64::MAX, &[0xff; 80]),
        record(SHADOW.0, 3, &[7]),
        record(SHADOW.0, 0, &[]),
        vec![7; 5],
        vec![0xff; 4096],
    ] {
        let status = tell(&mut session, &bad)?;
        ensure!(is_refusal(status), "{status} for {bad:?}");
    }
    ensure!(tell(&mut session, &[])?.is_ok(), "nothing changed");
    let whole = record(last - 64, u64::MAX, &[&[0, 0][..], &[7; 64]].concat());
    ensure!(tell(&mut session, &whole)?.is_ok(), "within");
    ensure!(
        tell(&mut session, &record(last, 1 << 15, &[7]))?.is_ok(),
        "its last byte"
    );
    // The device changed nothing; from any address.
    for from in [0, 1, SHADOW.0, SHADOW.0 + 5, last, HOST_SPACE.end, u64::MAX] {
        let next = session
            .ask(&req::HostPull {
                from: DevPtr(from),
                of: Vec::new(),
            })?
            .next;
        ensure!(next == DevPtr(0), "more from {from:#x}: {next:?}");
    }
    // Any blocks by name; not more than the limit.
    let pull = |count: usize| req::HostPull {
        from: DevPtr(0),
        of: [SHADOW, ptr, DevPtr(1), DevPtr(u64::MAX)].repeat(count),
    };
    ensure!(session.ask(&pull(16))?.next == DevPtr(0), "more of some");
    let many = session.status(&pull(17))?;
    ensure!(is_refusal(many), "as many as it likes: {many}");
    for at in [0, 1, SHADOW.0 + 1, SHADOW.0 + 4096, ptr.0, u64::MAX] {
        let status = session.status(&req::HostUnmap { ptr: DevPtr(at) })?;
        ensure!(is_refusal(status), "unmapped {at:#x}: {status}");
    }
    // The block can neither be freed as device memory, nor be used after its end.
    let freed = session.status(&req::MemFree { ptr: SHADOW })?;
    ensure!(is_refusal(freed), "freed: {freed}");
    ensure!(
        session.status(&req::HostUnmap { ptr: SHADOW })?.is_ok(),
        "its own"
    );
    ensure!(is_refusal(tell(&mut session, &push(SHADOW))?), "it is gone");
    let again = session.status(&req::HostUnmap { ptr: SHADOW })?;
    ensure!(is_refusal(again), "twice: {again}");
    Adder::new(&mut session)?.works(&mut session)?;
    drop(session);
    ensure!(
        other.status(&req::HostUnmap { ptr: SHADOW })?.is_ok(),
        "the other's is there"
    );
    drop(other);
    scene.unharmed()
}
