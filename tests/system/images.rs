//! Module images: an image takes memory of the guest's VM and room in this VM's cache, and nothing
//! of other VMs. A full disk only costs speed.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use vgpu_proto::call::req;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::MAX_BULK;
use vgpu_tests::guest::{self, Guest, describe, expect_right};
use vgpu_tests::host::{Host, Options, one_vm, signal};
use vgpu_tests::hostile::Session;
use vgpu_tests::wait::{SOON, until};
use vgpu_wire::load_call;

const MIB: u64 = 1 << 20;
const VECADD: &str = include_str!("../../soft-gpu/fixtures/demo/vecadd.ptx");

/// Root only: mounting a disk.
fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: a disk of its own can be mounted by root only");
    }
    root
}

/// A host with two VMs and a state disk of 420 MiB: 164 MiB more than images leave free.
fn host_with_disk(config: &str) -> Result<Host> {
    let host = one_vm(&Options {
        state_disk: Some(420 * MIB),
        config: config.to_owned(),
        ..Options::default()
    })?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    Ok(host)
}

/// A new module of at least `bytes` bytes.
fn module(n: u32, bytes: usize) -> Vec<u8> {
    let mut text = format!("// module {n}\n{VECADD}\n").into_bytes();
    text.resize(text.len().max(bytes), b' ');
    text
}

fn free(disk: &Path) -> Result<u64> {
    let disk = nix::sys::statvfs::statvfs(disk)?;
    Ok(disk.blocks_available() * disk.fragment_size())
}

/// The names of a VM's cached images.
fn cached(host: &Host, vm: u32) -> BTreeSet<String> {
    let dir = host.images(vm).and_then(|dir| std::fs::read_dir(dir).ok());
    let names = dir.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn name_of(image: &[u8]) -> String {
    blake3::hash(image).to_hex().to_string()
}

/// Waits until an image is in a VM's cache.
fn is_cached(host: &Host, vm: u32, image: &[u8]) -> Result<()> {
    until("the image is cached", SOON, || {
        cached(host, vm).contains(&name_of(image)).then_some(())
    })
    .with_context(|| host.log())
}

/// Announces an image and sends its beginning; returns its name.
fn begin(session: &mut Session, n: u8, len: u64, sent: u64) -> Result<([u8; 32], u64)> {
    let (hash, piece) = ([n; 32], vec![n; MAX_BULK]);
    for offset in (0..sent).step_by(MAX_BULK) {
        session.send_bulk(&req::ImageData { hash, len, offset }, &piece)?;
    }
    Ok((hash, len))
}

/// The end of a session.
#[derive(Debug, Clone, Copy)]
enum End {
    HangUp,
    Vanish,
    BreakProtocol,
    KillWorker,
    Administrator,
}

#[test]
fn an_unfinished_image_leaves_nothing_behind_however_its_session_ends() -> Result<()> {
    if !root() {
        return Ok(());
    }
    let host = host_with_disk("")?;
    host.admin("pool set A --strikes=unlimited")?;
    let state = host.dir().join("state");
    let before = free(&state)?;
    let ways = [
        End::HangUp,
        End::Vanish,
        End::BreakProtocol,
        End::KillWorker,
        End::Administrator,
    ];
    for (n, way) in (0..).zip(ways) {
        let mut sessions = Vec::new();
        for upload in 0..3 {
            let mut session = Session::open(&host, 1)?;
            begin(&mut session, upload, 150 * MIB, 32 * MIB)?;
            session.primary()?;
            sessions.push(session);
        }
        let pinned = host.vm(1)?["pinned_bytes"].as_u64().unwrap_or(0);
        ensure!(pinned >= 450 * MIB, "{pinned} bytes are booked");
        // The neighbour loads a module that it never loaded.
        let image = module(2 * n, 0);
        let mut neighbour = Session::open(&host, 2)?;
        let ctx = neighbour.primary()?;
        neighbour.module(ctx, &image)?;
        is_cached(&host, 2, &image)?;

        for mut session in sessions {
            match way {
                End::HangUp => session.hang_up(),
                End::Vanish => drop(session),
                End::BreakProtocol => {
                    session.data.write_all(&[0xff; 64])?;
                    session.ended()?;
                }
                End::KillWorker | End::Administrator => {
                    let id = session.welcome.session;
                    let all = host.admin_json("session list")?;
                    let mine = all.as_array().into_iter().flatten();
                    let mine = mine.into_iter().find(|s| s["session_id"] == id);
                    let pid = mine.and_then(|s| s["worker_pid"].as_u64());
                    let pid = u32::try_from(pid.context("it has a worker")?)?;
                    match way {
                        End::KillWorker => signal(pid, Signal::SIGKILL)?,
                        _ => drop(host.admin(&format!("session kill {id}"))?),
                    }
                    session.ended()?;
                }
            }
        }
        until("nothing is left", SOON, || {
            let vm = host.vm(1).ok()?;
            let gone = vm["sessions"] == 0 && vm["pinned_bytes"] == 0;
            (gone && before <= free(&state).ok()? + 8 * MIB).then_some(())
        })
        .with_context(|| format!("{way:?}: {before} bytes were free"))?;
        ensure!(cached(&host, 1).is_empty(), "{:?}", cached(&host, 1));
        let image = module(2 * n + 1, 0);
        neighbour.module(ctx, &image)?;
        expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
        host.admin("unregister-vm --vm-id=1")?;
        host.admin("register-vm --vm-id=1 --pool=A")?;
    }
    Ok(())
}

#[test]
fn the_memory_of_images_is_one_account_over_all_programs_of_a_vm() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin(&format!("vm set 1 --pinned={}B", 420 * MIB))?;
    let mut sessions = Vec::new();
    for n in 0..3 {
        let mut session = Session::open(&host, 1)?;
        let ctx = session.primary()?;
        let image = begin(&mut session, n, 150 * MIB, MIB)?;
        sessions.push((session, ctx, image));
    }
    let (last, ctx, image) = sessions.last_mut().context("three")?;
    let reply = last.call(&load_call(*ctx, *image))?;
    ensure!(reply.status == CuResult::OUT_OF_MEMORY, "{}", reply.status);
    let said = String::from_utf8_lossy(&reply.args).into_owned();
    ensure!(said.contains("vgpu-admin vm set --pinned"), "{said}");
    // The memory of an ended session is available to the other sessions.
    drop(sessions.remove(0));
    let (last, ctx, _) = sessions.last_mut().context("two")?;
    until("the image has memory", SOON, || {
        let image = begin(last, 9, 150 * MIB, MIB).ok()?;
        let status = last.status(&load_call(*ctx, image)).ok()?;
        (status == CuResult::FILE_NOT_FOUND).then_some(())
    })?;
    Ok(())
}

#[test]
fn on_a_full_disk_modules_load_from_memory() -> Result<()> {
    if !root() {
        return Ok(());
    }
    let host = host_with_disk("")?;
    let state = host.dir().join("state");
    let filler = state.join("filler");
    let mut file = std::fs::File::create(&filler)?;
    let full = std::io::copy(&mut std::io::repeat(7), &mut file);
    ensure!(full.is_err() && free(&state)? == 0, "the disk is full");
    drop(file);
    for vm in [1, 2] {
        for _ in 0..2 {
            expect_right(&Guest::new(guest::VECADD, host.target(vm))?.arg("1000"))?;
        }
        let big = Guest::new(guest::BIGIMAGE, host.target(vm))?
            .arg("16")
            .run(SOON)?;
        ensure!(big.status.success(), "{}", describe(&big));
        // Images that are loaded repeatedly, and libraries in several contexts.
        let all = Guest::new(guest::MODULES, host.target(vm))?.run(2 * SOON)?;
        ensure!(all.status.success(), "{}", describe(&all));
        ensure!(cached(&host, vm).is_empty(), "{:?}", cached(&host, vm));
    }
    // With free space, images are cached again.
    std::fs::remove_file(&filler)?;
    let mut session = Session::open(&host, 1)?;
    let ctx = session.primary()?;
    let image = module(1, 0);
    session.module(ctx, &image)?;
    is_cached(&host, 1, &image)?;
    let mut next = Session::open(&host, 1)?;
    let (hash, len) = (*blake3::hash(&image).as_bytes(), image.len() as u64);
    ensure!(next.ask(&req::ImageQuery { hash, len })?.present);
    let ctx = next.primary()?;
    next.ask(&load_call(ctx, (hash, len)))?;
    Ok(())
}

#[test]
fn a_cache_that_is_full_loses_its_oldest_images_and_no_other_vms() -> Result<()> {
    let host = one_vm(&Options {
        config: "[worker]\nimage_cache_bytes = 1000000\n".into(),
        ..Options::default()
    })?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let load = |vm: u32, image: &[u8]| -> Result<()> {
        let mut session = Session::open(&host, vm)?;
        let ctx = session.primary()?;
        session.module(ctx, image)?;
        is_cached(&host, vm, image)
    };
    let images: Vec<Vec<u8>> = (0..5).map(|n| module(n, 300_000)).collect();
    load(2, &images[0])?;
    for image in &images {
        load(1, image)?;
    }
    let newest: BTreeSet<String> = images[2..].iter().map(|image| name_of(image)).collect();
    ensure!(cached(&host, 1) == newest, "{:?}", cached(&host, 1));
    ensure!(cached(&host, 2) == [name_of(&images[0])].into(), "its own");
    // An image that is larger than a cache may be is still loaded, repeatedly.
    let large = Guest::new(guest::BIGIMAGE, host.target(1))?.arg("8");
    for _ in 0..2 {
        let large = large.run(SOON)?;
        ensure!(large.status.success(), "{}", describe(&large));
    }
    ensure!(cached(&host, 1) == newest, "it took nobody's place");
    Ok(())
}

#[test]
fn a_cache_goes_with_its_vm() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let image = module(1, 0);
    for vm in [1, 2] {
        let mut session = Session::open(&host, vm)?;
        let ctx = session.primary()?;
        session.module(ctx, &image)?;
        is_cached(&host, vm, &image)?;
    }
    host.admin("unregister-vm --vm-id=1")?;
    until("the cache of VM 1 is gone", SOON, || {
        host.images(1).is_none().then_some(())
    })?;
    // A new VM with the same number inherits nothing.
    host.admin("register-vm --vm-id=1 --pool=A")?;
    let mut session = Session::open(&host, 1)?;
    let (hash, len) = (*blake3::hash(&image).as_bytes(), image.len() as u64);
    ensure!(!session.ask(&req::ImageQuery { hash, len })?.present);
    drop(session);
    // At the start, remains of an earlier vgpud or a crash are removed; complete images stay.
    host.stop_daemon()?;
    let mine = host.images(2).context("VM 2 has a cache")?;
    let all = host.dir().join("state/images");
    std::fs::create_dir(all.join("vm9"))?;
    for part in [
        mine.join(".part-12-1"),
        mine.join(".new"),
        all.join("vm9/.part-12-2"),
    ] {
        std::fs::write(part, b"part")?;
    }
    host.start_daemon()?;
    ensure!(!all.join("vm9").exists(), "no VM 9 is registered");
    ensure!(
        cached(&host, 2) == [name_of(&image)].into(),
        "{:?}",
        cached(&host, 2)
    );
    Ok(())
}
