//! The first bytes of a connection.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use anyhow::{Result, ensure};
use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::codec::encode;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::{ControlNote, HELLO_MAGIC, PROTOCOL, Refusal, Welcome};
use vgpu_proto::limits::MAX_HANDSHAKE;
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::Options;
use vgpu_tests::hostile::{Session, connect, knock, open_control};
use vgpu_tests::wait::{SOON, until};
use vgpu_wire::{Answer, answer, control_note, data_opening, greeting, hello, right_greeting};

use super::{Adder, Scene};

#[test]
fn another_version_is_refused_in_words_that_name_both() -> Result<()> {
    let scene = Scene::new()?;
    let body = encode(&hello())?;
    for (protocol, fingerprint) in [
        (PROTOCOL + 1, FINGERPRINT),
        (0, FINGERPRINT),
        (PROTOCOL, FINGERPRINT ^ 1),
        (u32::MAX, u64::MAX),
    ] {
        let bytes = greeting(protocol, fingerprint, &body);
        let text = knock(&scene.host, 1, &bytes)?.refusal(Refusal::Version)?;
        for part in [
            hello().shim_version,
            format!("protocol {protocol} "),
            format!("{fingerprint:016x}"),
            format!("protocol {PROTOCOL} "),
            format!("{FINGERPRINT:016x}"),
        ] {
            ensure!(text.contains(&part), "no `{part}` in: {text}");
        }
    }
    // A version whose Hello is unreadable for this version is refused with a sentence too.
    let strange = greeting(PROTOCOL + 9, 7, &[0xff; 100]);
    knock(&scene.host, 1, &strange)?.refusal(Refusal::Version)?;
    scene.unharmed()
}

#[test]
fn what_is_no_greeting_is_refused_or_left() -> Result<()> {
    let scene = Scene::new()?;
    let (host, body) = (&scene.host, encode(&hello())?);
    let mut oversized = right_greeting();
    oversized[12..16].copy_from_slice(&(MAX_HANDSHAKE as u32 + 1).to_le_bytes());
    let mut enormous = right_greeting();
    enormous[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let trailing = [&body[..], b"x"].concat();
    // A string with a false length.
    let mut lying = body.clone();
    lying[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let cases = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 4096],
        vec![0xff; 100_000],
        oversized,
        enormous,
        greeting(PROTOCOL, FINGERPRINT, &trailing),
        greeting(PROTOCOL, FINGERPRINT, &lying),
        greeting(PROTOCOL, FINGERPRINT, &[]),
        greeting(PROTOCOL, FINGERPRINT, &vec![0xff; MAX_HANDSHAKE]),
    ];
    let refused = cases.len();
    for bytes in cases {
        knock(host, 1, &bytes)?.refusal(Refusal::Malformed)?;
    }
    // An incomplete Hello gets no answer.
    let whole = right_greeting();
    for cut in [0, 1, 7, 8, 20, 24, whole.len() - 1] {
        let mut socket = connect(host, 1)?;
        socket.write_all(&whole[..cut])?;
        socket.shutdown(Shutdown::Write)?;
        let answered: Answer = answer(&mut socket)?;
        ensure!(matches!(answered, Answer::Closed), "{cut}: {answered:?}");
    }
    // The administrator sees each refusal, and nothing of the incomplete ones.
    let page = host.admin_json("events --vm-id=1 -n 200")?;
    let events = page["events"].as_array().into_iter().flatten();
    let told = events.filter(|event| event["kind"] == "refused").count();
    ensure!(told == refused, "{told} events of {refused}: {page:#}");
    scene.unharmed()
}

#[test]
fn who_is_slow_to_introduce_himself_is_cut_off() -> Result<()> {
    let scene = Scene::with(&Options {
        config: "[limits]\nhandshake_deadline_ms = 4000\nhandshakes_per_peer = 4\n".into(),
        ..Options::default()
    })?;
    let host = &scene.host;
    let start = Instant::now();
    let mut slow: Vec<UnixStream> = (0..4).map(|_| connect(host, 1)).collect::<Result<_>>()?;
    // At the limit of pending connections, a further one of this VM is refused; another VM is
    // served.
    let text = knock(host, 1, &right_greeting())?.refusal(Refusal::Busy)?;
    ensure!(text.contains("limits.handshakes_per_peer"), "{text}");
    expect_right(&Guest::new(guest::VECADD, host.target(2))?.arg("1000"))?;
    // Byte by byte, so that no connection completes its Hello in time.
    for byte in &right_greeting()[..20] {
        if start.elapsed().as_millis() < 3000 {
            for socket in &mut slow {
                let _ = socket.write_all(&[*byte]);
            }
        }
    }
    for socket in &mut slow {
        let text = answer::<Welcome>(socket)?.refusal(Refusal::Malformed)?;
        ensure!(text.contains("4000 ms"), "{text}");
    }
    ensure!(
        start.elapsed().as_millis() >= 4000,
        "not before the deadline"
    );
    drop(slow);
    scene.unharmed()
}

#[test]
fn a_nonce_opens_one_connection_of_its_own_vm() -> Result<()> {
    let scene = Scene::new()?;
    let host = &scene.host;
    knock(host, 1, &data_opening(&[0; 32]))?.refusal(Refusal::BadNonce)?;
    let (control, welcome) = open_control(host, 1)?;
    let mut close = welcome.nonce;
    close[31] ^= 1;
    knock(host, 1, &data_opening(&close))?.refusal(Refusal::BadNonce)?;
    // The nonce ends with its session.
    drop(control);
    scene.vm_is_clean()?;
    knock(host, 1, &data_opening(&welcome.nonce))?.refusal(Refusal::BadNonce)?;

    // If another VM uses the nonce, it does not open the session and stays valid.
    let (control, welcome) = open_control(host, 1)?;
    knock(host, 2, &data_opening(&welcome.nonce))?.refusal(Refusal::BadNonce)?;
    let mut session = Session::of(host, 1, (control, welcome))?;
    session.primary()?;
    // A used nonce belongs to a session that works.
    knock(host, 1, &data_opening(&session.welcome.nonce))?.refusal(Refusal::BadNonce)?;
    Adder::new(&mut session)?.works(&mut session)?;
    drop(session);
    scene.unharmed()
}

#[test]
fn what_does_not_belong_on_a_control_connection_ends_the_session() -> Result<()> {
    let scene = Scene::new()?;
    let host = &scene.host;
    for bytes in [
        vec![0xff; 12],
        vec![0; 12],
        // A message that only a host sends.
        vec![1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        vec![0xaa; 200_000],
    ] {
        let mut session = scene.open()?;
        session.primary()?;
        // Bytes beyond those that the host reads may meet a closed socket.
        let _ = session.control.as_mut().map(|to| to.write_all(&bytes));
        // The guest that breaks this connection gets no reason on it; the administrator does.
        if let Some((kind, code, _)) = session.note()? {
            ensure!(
                kind == ControlNote::Ended && code == CuResult::DEVICE_UNAVAILABLE,
                "{kind:?} {code}"
            );
        }
        while session.read_frame()? {}
    }
    let events = host.admin("events")?;
    ensure!(events.contains("control connection"), "{events}");
    scene.unharmed()
}

#[test]
fn a_storm_of_connections_stays_within_its_caps() -> Result<()> {
    let scene = Scene::with(&Options {
        config: "[limits]\nconnections_per_vm = 24\nhandshakes_per_peer = 16\n\
                 connects_per_s_per_vm = 100\nconnects_burst_per_vm = 100\n\
                 handshake_deadline_ms = 1000\n"
            .into(),
        ..Options::default()
    })?;
    let host = &scene.host;
    let open = || std::fs::read_dir(format!("/proc/{}/fd", host.pid())).map_or(0, Iterator::count);
    let before = open();
    let mut held = Vec::new();
    let mut most = 0;
    for _ in 0..600 {
        // A connection that a full backlog refuses is refused as well.
        held.extend(connect(host, 1));
        most = most.max(open());
    }
    // 16 connections are served, 8 get the reason; all further connections are closed at once.
    ensure!(most <= before + 40, "{before} descriptors, then {most}");
    ensure!(held.len() > 100, "only {} connections", held.len());
    // The flood is one VM's: another VM is served meanwhile.
    expect_right(&Guest::new(guest::VECADD, host.target(2))?.arg("1000"))?;
    drop(held);
    until("VM 1 is served again", SOON, || {
        Session::open(host, 1).ok().map(drop)
    })?;
    scene.vm_is_clean()?;
    until("nothing of the storm is left", SOON, || {
        (open() <= before + 2).then_some(())
    })?;
    scene.unharmed()
}

#[test]
fn breaking_the_protocol_counts_as_strikes() -> Result<()> {
    let scene = Scene::new()?;
    scene.host.admin("pool set A --strikes=2")?;
    for _ in 0..2 {
        let mut session = scene.open()?;
        session.data.write_all(&[0; 64])?;
        session.ended()?;
    }
    let text = knock(&scene.host, 1, &right_greeting())?.refusal(Refusal::Quarantined)?;
    ensure!(
        text.contains("strikes") && text.contains("release"),
        "{text}"
    );
    scene.host.admin("release --vm-id=1")?;
    scene.unharmed()
}

#[test]
fn a_guest_that_leaves_at_any_point_of_the_opening_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    let host = &scene.host;
    let greeting = right_greeting();
    // The guest goes away before the answer, so the worker's start is wasted.
    let mut socket = connect(host, 1)?;
    socket.write_all(&greeting)?;
    drop(socket);
    // The guest goes away after the answer, in the middle of the first bytes of its data
    // connection.
    let (control, welcome) = open_control(host, 1)?;
    let mut data = connect(host, 1)?;
    data.write_all(&data_opening(&welcome.nonce)[..20])?;
    drop((control, data));
    // A normal goodbye without a data connection.
    let (mut control, _) = open_control(host, 1)?;
    control.write_all(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
    let last = control_note(&mut control)?;
    ensure!(
        last.is_none_or(|(kind, ..)| kind == ControlNote::Ended),
        "not an end"
    );
    ensure!(
        HELLO_MAGIC == greeting[..8],
        "the greeting begins as it should"
    );
    scene.unharmed()
}
