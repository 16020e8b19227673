//! Invalid input for real processes: the bytes of a hostile guest, in the handshake and on the
//! wire.
//!
//! The software device is in strict mode: an unchecked address or handle that reaches the driver
//! aborts the worker, which [`Scene::unharmed`] detects. In every case the guest gets a clear error
//! or loses its connection, and a neighbour goes on computing.

mod calls;
mod descriptors;
mod disk;
mod floods;
mod frames;
mod images;
mod listeners;
mod names;
mod shadows;
mod values;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Func, Stream};
use vgpu_tests::guest::{self, Guest, Running, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::hostile::Session;
use vgpu_tests::wait::{SOON, until};

const VECADD: &[u8] = include_bytes!("../../../soft-gpu/fixtures/demo/vecadd.ptx");
const SPIN: &[u8] = include_bytes!("../../../soft-gpu/fixtures/demo/spin.ptx");

/// Words that no log of the system may contain.
const NEVER: [&str; 5] = ["panicked", "SIGABRT", "SIGSEGV", "SIGBUS", "core dumped"];

/// A host on which VM 1 misbehaves while VM 2 computes.
struct Scene {
    host: Host,
    neighbour: Running,
}

impl Scene {
    fn new() -> Result<Scene> {
        Scene::with(&Options::default())
    }

    fn with(options: &Options) -> Result<Scene> {
        let host = one_vm(options)?;
        // The tests send invalid input repeatedly; another test checks strikes.
        host.admin("pool set A --strikes=unlimited")?;
        host.admin("register-vm --vm-id=2 --pool=A")?;
        let neighbour = compute(&host)?;
        let scene = Scene { host, neighbour };
        scene.neighbour_computes()?;
        Ok(scene)
    }

    /// Restarts vgpud and the neighbour.
    fn restart(&mut self) -> Result<()> {
        self.host.stop_daemon()?;
        self.host.start_daemon()?;
        self.neighbour = compute(&self.host)?;
        self.neighbour_computes()
    }

    fn open(&self) -> Result<Session> {
        Session::open(&self.host, 1)
    }

    /// Waits until the neighbour has made progress.
    fn neighbour_computes(&self) -> Result<()> {
        let calls = || {
            let vm = self.host.vm(2).ok()?;
            vm["usage"]["calls"].as_u64()
        };
        let before = calls().unwrap_or(0);
        until("the neighbour computes", SOON, || {
            (calls()? > before).then_some(())
        })
        .with_context(|| self.host.log())
    }

    /// The worker of VM 1's only session.
    fn worker(&self) -> Result<u32> {
        let sessions = self.host.admin_json("session list")?;
        let mine = sessions
            .as_array()
            .and_then(|all| all.iter().find(|s| s["vm_id"] == 1))
            .context("VM 1 has a session")?;
        let pid = mine["worker_pid"].as_u64().context("it has a worker")?;
        Ok(u32::try_from(pid)?)
    }

    /// Waits until VM 1 has no session and no memory.
    fn vm_is_clean(&self) -> Result<()> {
        until("VM 1's sessions end and its memory is back", SOON, || {
            let vm = self.host.vm(1).ok()?;
            (vm["sessions"] == 0 && vm["memory_bytes"] == 0).then_some(())
        })
        .with_context(|| self.host.log())
    }

    /// Checks that nothing broke: the neighbour computes, VM 1 is served again, nothing is left
    /// over, and no process ended because of a bug.
    fn unharmed(self) -> Result<()> {
        self.neighbour_computes()?;
        self.vm_is_clean()?;
        expect_right(&Guest::new(guest::VECADD, self.host.target(1))?.arg("1000"))?;
        let Scene { host, neighbour } = self;
        drop(neighbour);
        host.wait_no_sessions(SOON)?;
        until("every worker is gone", SOON, || {
            children(host.pid()).is_empty().then_some(())
        })?;
        for vm in [1, 2] {
            ensure!(host.vm(vm)?["memory_bytes"] == 0, "{:#}", host.vm(vm)?);
        }
        let said = host.log() + &host.admin("events")?;
        for word in NEVER {
            ensure!(!said.contains(word), "`{word}` in the log:\n{said}");
        }
        Ok(())
    }
}

/// A program of VM 2 that computes until it is killed.
fn compute(host: &Host) -> Result<Running> {
    Guest::new(guest::RULES, host.target(2))?
        .arg("hold")
        .spawn()
}

/// The children of a process that were not reaped.
fn children(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Resident memory of a process in bytes; 0 when the process is gone.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// A kernel of a module, ready to be launched.
struct Adder {
    ctx: Ctx,
    func: Func,
    arrays: [DevPtr; 3],
}

/// Number of elements of an addition.
const COUNT: u32 = 256;

impl Adder {
    fn new(session: &mut Session) -> Result<Adder> {
        let ctx = session.primary()?;
        let module = session.module(ctx, VECADD)?;
        let func = session.function(module, "vecadd")?;
        let bytes = u64::from(COUNT) * 4;
        let mut array = || session.alloc(ctx, bytes);
        let arrays = [array()?, array()?, array()?];
        Ok(Adder { ctx, func, arrays })
    }

    fn params(&self) -> Vec<u8> {
        let mut params: Vec<u8> = self
            .arrays
            .iter()
            .flat_map(|ptr| ptr.0.to_le_bytes())
            .collect();
        params.extend(COUNT.to_le_bytes());
        params
    }

    fn launch(&self, grid: [u32; 3], block: [u32; 3], shared: u32) -> req::LaunchKernel {
        req::LaunchKernel {
            ctx: self.ctx,
            stream: Stream::NULL,
            func: self.func,
            grid,
            block,
            shared,
            cooperative: false,
            cluster: [0; 3],
        }
    }

    /// Launches with an address that is not mapped, and waits for the device fault.
    fn faults(&self, session: &mut Session) -> Result<()> {
        let mut params = self.params();
        params[..8].copy_from_slice(&0x6666_0000_0000u64.to_le_bytes());
        session.send_bulk(&self.launch([1, 1, 1], [32, 1, 1], 0), &params)?;
        let ctx = self.ctx;
        let status = session.status(&req::CtxSynchronize { ctx })?;
        ensure!(status == CuResult::ILLEGAL_ADDRESS, "{status}");
        Ok(())
    }

    /// Adds and checks the sums: the session still works.
    fn works(&self, session: &mut Session) -> Result<()> {
        let (ctx, stream) = (self.ctx, Stream::NULL);
        let numbers = |f: fn(u32) -> f32| -> Vec<u8> {
            (0..COUNT).flat_map(|i| f(i).to_le_bytes()).collect()
        };
        for (dst, values) in self
            .arrays
            .into_iter()
            .zip([numbers(|i| i as f32), numbers(|i| 1000.0 * i as f32)])
        {
            session.htod(ctx, stream, dst, &values)?;
        }
        session.send_bulk(&self.launch([2, 1, 1], [128, 1, 1], 0), &self.params())?;
        let sums = session.dtoh(ctx, stream, self.arrays[2], u64::from(COUNT) * 4)?;
        ensure!(
            sums == numbers(|i| i as f32 + 1000.0 * i as f32),
            "the sums are wrong"
        );
        Ok(())
    }
}

/// Whether a code refuses a call without further effects.
fn is_refusal(code: CuResult) -> bool {
    [
        CuResult::INVALID_HANDLE,
        CuResult::INVALID_CONTEXT,
        CuResult::INVALID_VALUE,
        CuResult::INVALID_DEVICE,
    ]
    .contains(&code)
}
