//! A worker whose lease never ends, to measure the cost of the scheduler by comparison. Never
//! installed.
//!
//! vgpud starts this program as its worker. A stub between vgpud and the worker's own code grants
//! the GPU forever, and forwards all messages except those about the lease.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vgpu_proto::lease::{GrantTerms, UNLIMITED};
use vgpu_proto::worker::{FromWorker, ToWorker};
use vgpu_sched::gate::WINDOW_NS;
use vgpu_worker::control::{self, Messages, Received, Vgpud};
use vgpud::worker::channel::{self, Channel};
use vgpud::worker::pages::Pages;

fn main() -> ExitCode {
    match put_stub_between() {
        Ok(()) => vgpu_worker::start::run(),
        Err(e) => {
            eprintln!("vgpu-bench-worker: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the stub, and puts its socket where the worker's code expects the socket to vgpud.
fn put_stub_between() -> Result<()> {
    let mut inherited = control::inherited().context("vgpud starts this program")?;
    let socket = Arc::new(inherited.try_clone()?);
    let mut from_vgpud = Messages::new(Arc::clone(&socket));
    let Received {
        message: ToWorker::Start(start),
        ..
    } = from_vgpud.wait()?
    else {
        bail!("the first message of vgpud was not Start");
    };
    let pages = Pages::new()?;
    pages.end().name(start.session);
    let forever = GrantTerms {
        epoch: 1,
        slice_end_ns: u64::MAX,
        hold_ns: Duration::from_millis(1).as_nanos() as u64,
        window_ns: WINDOW_NS,
        credit_calls: UNLIMITED,
        credit_bytes: UNLIMITED,
        beside: false,
    };
    pages.end().grant(&forever, false);
    let (channel, workers) = Channel::pair()?;
    nix::unistd::dup2(&workers, &mut inherited).context("cannot replace the control socket")?;
    // The worker's code owns this descriptor now.
    std::mem::forget(inherited);
    channel.send(
        &ToWorker::Start(start),
        &[pages.lease_fd().as_fd(), pages.hints_fd().as_fd()],
    )?;
    std::thread::spawn(move || {
        // Both sockets close at the end of the session, and the process ends.
        if let Err(e) = relay(&socket, &mut from_vgpud, &channel) {
            eprintln!("vgpu-bench-worker: {e:#}");
        }
        drop(pages);
    });
    Ok(())
}

/// Forwards messages until one side closes its end.
fn relay(socket: &Arc<OwnedFd>, from_vgpud: &mut Messages, worker: &Channel) -> Result<()> {
    let vgpud = Vgpud::new(Arc::clone(socket));
    let mut buffer = Vec::new();
    loop {
        let mut ready =
            [socket.as_fd(), worker.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        poll(&mut ready, PollTimeout::NONE)?;
        while let Some(Received { message, fds }) = from_vgpud.take()? {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            worker.send(&message, &fds)?;
        }
        loop {
            match worker.receive(&mut buffer) {
                channel::Received::Message(message) => {
                    let about_the_lease = matches!(
                        message,
                        FromWorker::Runnable { .. }
                            | FromWorker::Idle { .. }
                            | FromWorker::Ending { .. }
                            | FromWorker::Released { .. }
                    );
                    if !about_the_lease {
                        vgpud.send(message);
                    }
                }
                channel::Received::Empty => break,
                channel::Received::Closed => return Ok(()),
                channel::Received::Malformed(text) => ensure!(false, "{text}"),
            }
        }
    }
}
