//! Module images with false hashes or lengths.

use anyhow::{Result, ensure};
use vgpu_proto::call::req;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::MAX_IMAGE;
use vgpu_tests::hostile::Session;
use vgpu_wire::load_call;

use super::{Adder, SPIN, Scene, VECADD};

/// The result of sending a piece of an image.
fn piece(
    session: &mut Session,
    (hash, len): ([u8; 32], u64),
    offset: u64,
    bytes: &[u8],
) -> Result<CuResult> {
    session.status_bulk(&req::ImageData { hash, len, offset }, bytes)
}

#[test]
fn images_under_a_wrong_name_are_refused_and_not_kept() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    let hash = *blake3::hash(SPIN).as_bytes();
    // Bytes of another module under a hash that a program may request.
    let named = (hash, VECADD.len() as u64);
    ensure!(piece(&mut session, named, 0, VECADD)?.is_ok(), "taken");
    let status = session.status(&load_call(adder.ctx, named))?;
    ensure!(status == CuResult::INVALID_IMAGE, "{status}");
    let present = session
        .ask(&req::ImageQuery { hash, len: named.1 })?
        .present;
    ensure!(!present, "a wrong image is in the cache");
    // The right hash with another length finds nothing either.
    let image = session.send_image(SPIN)?;
    session.ask(&load_call(adder.ctx, image))?;
    for len in [0, 1, image.1 - 1, image.1 + 1, u64::MAX] {
        ensure!(
            !session.ask(&req::ImageQuery { hash, len })?.present,
            "{len}"
        );
        let status = session.status(&load_call(adder.ctx, (hash, len)))?;
        ensure!(!status.is_ok() && !status.is_sticky(), "{len}: {status}");
    }
    // The worker or the driver refuses bytes that are not a module.
    for junk in [&b"\x7fELF junk"[..], &[0xff; 5000], b".version 99.9", &[0]] {
        let image = session.send_image(junk)?;
        let status = session.status(&load_call(adder.ctx, image))?;
        ensure!(!status.is_ok() && !status.is_sticky(), "{status}");
    }
    adder.works(&mut session)?;
    drop(session);
    scene.unharmed()
}

#[test]
fn pieces_out_of_order_and_lengths_beyond_all_bounds_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    let name = |n: u8, len: u64| ([n; 32], len);
    for len in [0, MAX_IMAGE + 1, 1 << 63, u64::MAX] {
        let status = piece(&mut session, name(1, len), 0, b"x")?;
        ensure!(
            status == CuResult::INVALID_VALUE,
            "{len:#x} bytes: {status}"
        );
    }
    // A middle without a beginning; a gap; an overlap; beyond the end; around the end of all
    // numbers.
    let image = name(2, 100);
    ensure!(
        !piece(&mut session, image, 50, b"middle")?.is_ok(),
        "a middle"
    );
    for (offset, bytes) in [
        (11, &b"gap"[..]),
        (9, b"overlap"),
        (10, &[0; 91]),
        (u64::MAX, b"wrap"),
        (u64::MAX - 2, b"wrap"),
    ] {
        ensure!(
            piece(&mut session, image, 0, &[0; 10])?.is_ok(),
            "a beginning"
        );
        let status = piece(&mut session, image, offset, bytes)?;
        ensure!(
            status == CuResult::INVALID_VALUE,
            "at {offset:#x}: {status}"
        );
        // The earlier pieces are dropped.
        let status = session.status(&load_call(adder.ctx, image))?;
        ensure!(status == CuResult::FILE_NOT_FOUND, "{status}");
    }
    // Another length in the middle.
    ensure!(
        piece(&mut session, image, 0, &[0; 10])?.is_ok(),
        "a beginning"
    );
    ensure!(
        !piece(&mut session, ([2; 32], 200), 10, b"x")?.is_ok(),
        "another length"
    );
    // Too many images at the same time; incomplete images never use more memory than was sent.
    let mut refused = 0;
    for n in 10..40 {
        refused += u32::from(!piece(&mut session, name(n, 8192), 0, &[0; 4096])?.is_ok());
    }
    ensure!(refused == 22, "{refused} of 30 uploads were refused");
    adder.works(&mut session)?;
    drop(session);
    scene.vm_is_clean()?;
    scene.unharmed()
}
