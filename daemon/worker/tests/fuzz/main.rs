//! Sends valid and nearly valid frames to the real worker on the strict software device. The frames
//! cover every operation of the call table, with live and dead handles, handles of other kinds, and
//! extreme numbers. The worker must answer every request whose caller waits, must never panic, and
//! must not be ended by the driver. The fake vgpud must receive only valid messages.
//!
//! Each session is determined by its seed. `VGPU_FUZZ_FRAMES=1000000 cargo test -p vgpu-worker
//! --test fuzz -- --nocapture` sends more frames than the default of 100,000. `VGPU_FUZZ_SEED=7`
//! starts with another seed; with one frame in addition, it repeats one session. The seed of a
//! failed session is printed and added to `seeds.txt` beside this file; these sessions run first.

#[path = "../common/mod.rs"]
mod common;
#[allow(unreachable_pub)] // The items belong to this test program.
mod draw;
#[allow(unreachable_pub)]
mod learn;
#[allow(unreachable_pub)]
mod memory;
#[allow(unreachable_pub)]
mod world;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::{Bench, Policy, Setup};
use draw::{Frame, PTX};
use vgpu_proto::call::{Class, OPS, Op, Request};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::worker::FromWorker;
use vgpu_wire::Reply;
use world::{Kind, World};

/// Operations that software devices refuse.
const NEEDS_HARDWARE: [Op; 2] = [Op::TensorMapEncode, Op::TensorMapReplaceAddress];

const FRAMES: u64 = 100_000;
/// Maximum number of requests of a failed session that are printed.
const TOLD: usize = 60;

/// Per operation: how often it was sent, and how often it had its intended effect.
type Counts = HashMap<Op, (u64, u64)>;

struct Session<'a> {
    bench: Bench,
    world: World,
    /// Requests whose callers wait.
    pending: BTreeMap<u64, Request>,
    /// Requests whose callers do not wait.
    sent: Vec<(u64, Request)>,
    /// Number of errors of these requests that were examined.
    errors: usize,
    poisoned: bool,
    counts: &'a mut Counts,
    told: &'a mut Vec<(u64, Frame)>,
}

/// Relative frequency of an operation.
fn weight(op: Op) -> u64 {
    match op {
        Op::PrimaryCtxRelease | Op::PrimaryCtxReset | Op::CtxDestroy => 1,
        Op::CtxCreate | Op::Link | Op::ModuleUnload | Op::CtxSynchronize => 2,
        Op::HostFunc | Op::StreamDestroy | Op::EventDestroy | Op::GraphDestroy => 4,
        _ => 8,
    }
}

fn any_operation(world: &mut World) -> Op {
    let all: u64 = OPS.iter().map(|row| weight(row.op)).sum();
    let mut at = world.random.below(all);
    for row in OPS {
        match at.checked_sub(weight(row.op)) {
            Some(left) => at = left,
            None => return row.op,
        }
    }
    OPS[0].op
}

impl Session<'_> {
    fn send(&mut self, op: Op) {
        let frame = self.world.draw(op);
        let request = Request::decode(frame.op as u16, &frame.args, frame.bulk.len());
        let request = request.expect("a readable request");
        assert_eq!(frame.op, op, "drawn for another operation");
        self.counts.entry(op).or_default().0 += 1;
        self.world.sent += frame.bulk.len() as u64;
        let guest = &mut self.bench.guest;
        let id = guest.post_args(op as u16, &frame.args, &frame.bulk);
        match op.class() {
            Class::Sync => _ = self.pending.insert(id, request),
            Class::Async => self.sent.push((id, request)),
        }
        self.told.push((id, frame));
        if self.told.len() > 2 * TOLD {
            self.told.drain(..TOLD);
        }
    }

    /// Waits until the worker has handled all sent requests. All are then answered, except those
    /// that may wait for this guest.
    fn catch_up(&mut self) {
        self.send(Op::MemGetInfo);
        let (id, request) = self.pending.pop_last().expect("just sent");
        let reply = self.bench.guest.wait(id);
        self.answered(&request, &reply);
        self.collect();
        while self.world.is_quiet() && !self.pending.is_empty() {
            assert!(
                self.bench.guest.read_frame(),
                "the worker closed the connection"
            );
            self.collect();
        }
    }

    /// Handles the replies that have arrived.
    fn collect(&mut self) {
        let ids: Vec<u64> = self
            .pending
            .keys()
            .copied()
            .filter(|id| self.bench.guest.has(*id))
            .collect();
        for id in ids {
            let request = self.pending.remove(&id).expect("a key");
            let reply = self.bench.guest.wait(id);
            self.answered(&request, &reply);
        }
        for number in std::mem::take(&mut self.bench.guest.called) {
            self.world.add(Kind::Called, number, 0, 0);
        }
        while let Some((id, code)) = self.bench.guest.errors.get(self.errors).copied() {
            self.errors += 1;
            assert_ne!(code, CuResult::UNKNOWN, "of request {id}");
            self.poisoned |= code.is_sticky();
            let failed = self.sent.iter().position(|(sent, _)| *sent == id);
            if let Some((_, Request::HostFunc(r))) = failed.map(|at| self.sent.swap_remove(at)) {
                // A handle that was in use still refers to the earlier object.
                let again = self
                    .sent
                    .iter()
                    .any(|(_, s)| matches!(s, Request::HostFunc(s) if s.number == r.number));
                if !again {
                    self.world.owed.retain(|n| *n != r.number);
                }
            }
        }
    }

    fn answered(&mut self, request: &Request, reply: &Reply) {
        let op = request.op();
        // For a link, UNKNOWN means that a symbol is undefined or does not match.
        if op != Op::Link {
            assert_ne!(reply.status, CuResult::UNKNOWN, "{request:?}");
            self.poisoned |= reply.status.is_sticky();
        }
        if reply.status == CuResult::SUCCESS {
            self.counts.entry(op).or_default().1 += 1;
            self.world.learn(request, &reply.args);
        }
    }

    /// The first calls of a program.
    fn begin(&mut self) {
        for op in [
            Op::PrimaryCtxRetain,
            Op::ImageData,
            Op::ModuleLoad,
            Op::ModuleGetFunction,
            Op::ModuleGetFunction,
        ] {
            self.send(op);
            self.catch_up();
        }
        for op in [
            Op::StreamCreate,
            Op::StreamCreate,
            Op::EventCreate,
            Op::MemAlloc,
            Op::MemAlloc,
            Op::MemAlloc,
        ] {
            self.send(op);
        }
        self.catch_up();
    }

    fn run(&mut self) {
        self.begin();
        let others = [format!("{PTX}// another\n"), "nonsense".to_owned()];
        self.world.images.extend(others.map(String::into_bytes));
        let mut rounds = 4 + self.world.random.below(24);
        while rounds > 0 {
            rounds -= 1;
            for _ in 0..1 + self.world.random.below(24) {
                let op =
                    match self.world.live(Kind::Ctx).is_empty() && self.world.random.percent(40) {
                        true => Op::PrimaryCtxRetain,
                        false => any_operation(&mut self.world),
                    };
                self.send(op);
            }
            self.catch_up();
            if self.poisoned || self.world.stuck {
                rounds = rounds.min(1);
            }
        }
        let ending = self.world.random.below(10);
        match ending {
            0 => {}
            1 => self.send_nonsense(),
            _ if self.world.stuck => {}
            _ => self.settle(),
        }
        self.end(ending == 1);
    }

    /// Sends a request with some bytes changed.
    fn send_nonsense(&mut self) {
        let op = any_operation(&mut self.world);
        let Frame { mut args, bulk, .. } = self.world.draw(op);
        let random = &mut self.world.random;
        for _ in 0..=random.below(3) {
            let at = random.below(args.len() as u64) as usize;
            if let Some(byte) = args.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
        if random.percent(30) {
            args.truncate(random.below(args.len() as u64) as usize);
        }
        let op = if random.percent(80) {
            op as u16
        } else {
            random.next() as u16
        };
        self.bench.guest.post_args(op, &args, &bulk);
        self.bench.guest.flush();
    }

    /// Ends all host functions of the guest, and waits until every waiting caller has its reply.
    fn settle(&mut self) {
        self.collect();
        while !self.pending.is_empty() {
            for called in self.world.live(Kind::Called).to_vec() {
                self.send_done(called.name);
            }
            self.bench.guest.flush();
            assert!(
                self.bench.guest.read_frame(),
                "the worker closed the connection"
            );
            self.collect();
        }
    }

    fn send_done(&mut self, number: u64) {
        self.bench
            .guest
            .post(&vgpu_proto::call::req::HostFuncDone { number });
        self.world.owed.retain(|n| *n != number);
        self.world.kill(Kind::Called, number);
    }

    /// Closes the guest. The worker reports this to vgpud, and ends.
    fn end(&mut self, nonsense: bool) {
        self.bench.guest.close();
        let ended = |m: &FromWorker| match m {
            FromWorker::Ended {
                protocol_error,
                text,
            } => Some((*protocol_error, text.clone())),
            _ => None,
        };
        let (broken, text) = self.bench.vgpud.wait("Ended", ended);
        assert!(nonsense || !broken, "{text}");
        assert_eq!(self.bench.exit_code(), Some(0), "exit code of the worker");
        // The guest may have closed the connection before it read a fault.
        let heard = self.bench.vgpud.heard();
        let fault = |m: &FromWorker| matches!(m, FromWorker::Fault { .. });
        if !heard.iter().any(fault) && !self.world.stuck {
            for (_, request) in &self.sent {
                self.counts.entry(request.op()).or_default().1 += 1;
            }
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let heard = self.bench.vgpud.heard();
            // The first message is `Ready`, with pages of attributes.
            let last = &heard[1.max(heard.len().saturating_sub(TOLD)).min(heard.len())..];
            eprintln!("what the worker told vgpud last: {last:?}");
        }
    }
}

/// Number of requests of all sessions of this run.
fn total(counts: &Counts) -> u64 {
    counts.values().map(|(sent, _)| sent).sum()
}

/// Runs the session of a seed.
///
/// # Errors
/// The failure, as text.
fn session(seed: u64, images: &Path, counts: &mut Counts) -> Result<(), String> {
    let errors = tempfile::NamedTempFile::new().expect("a file");
    let setup = Setup {
        image_dir: Some(images.to_owned()),
        policy: Policy {
            memory: 256 << 20,
            ..Policy::default()
        },
        stderr: Some(errors.reopen().expect("a file")),
        ..Setup::default()
    };
    let setup = setup
        .knob("SOFT_GPU_DEVICES", "2")
        .knob("SOFT_GPU_MEMORY", "256MiB");
    let mut told = Vec::new();
    let went = catch_unwind(AssertUnwindSafe(|| {
        let mut session = Session {
            bench: Bench::with(setup),
            world: World::new(seed, vec![PTX.as_bytes().to_vec()]),
            pending: BTreeMap::new(),
            sent: Vec::new(),
            errors: 0,
            poisoned: false,
            counts,
            told: &mut told,
        };
        session.run();
    }));
    let said = std::fs::read_to_string(errors.path()).unwrap_or_default();
    let bad = ["panicked", "strict mode", "overflow"]
        .iter()
        .any(|word| said.contains(word));
    if went.is_ok() && !bad {
        return Ok(());
    }
    let why = went
        .err()
        .unwrap_or_else(|| Box::new("what the worker said"));
    let why = why
        .downcast::<String>()
        .map_or_else(|_| "see above".to_owned(), |text| *text);
    let mut text = format!("session {seed} went wrong: {why}; its last requests:\n");
    for (id, frame) in told.iter().rev().take(TOLD).rev() {
        let request = Request::decode(frame.op as u16, &frame.args, frame.bulk.len());
        text += &format!("{id:5} {request:?}\n");
    }
    Err(text + "and what the worker said:\n" + &said)
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(otherwise, |text| text.parse().expect("a number"))
}

fn seeds_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds.txt")
}

fn kept_seeds() -> Vec<u64> {
    let text = std::fs::read_to_string(seeds_file()).expect("seeds.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let seeds = lines.filter_map(|line| line.split_whitespace().next());
    seeds.map(|seed| seed.parse().expect("a seed")).collect()
}

#[test]
fn frames_of_every_operation_are_answered() {
    let images = tempfile::tempdir().expect("a directory");
    let (frames, first) = (
        number("VGPU_FUZZ_FRAMES", FRAMES),
        number("VGPU_FUZZ_SEED", 1),
    );
    let since = Instant::now();
    let mut counts = Counts::new();
    let kept = kept_seeds();
    let known = kept.len();
    for (i, seed) in kept.into_iter().chain(first..).enumerate() {
        if let Err(text) = session(seed, images.path(), &mut counts) {
            if i >= known {
                let file = File::options().append(true).open(seeds_file());
                let _ = file.and_then(|mut file| writeln!(file, "{seed}"));
            }
            panic!("{text}\nthe seed {seed} is in {}", seeds_file().display());
        }
        if i >= known && total(&counts) >= frames {
            println!(
                "{} frames in {} sessions, {:.1} s",
                total(&counts),
                i + 1,
                since.elapsed().as_secs_f64()
            );
            break;
        }
    }
    for row in OPS {
        let (sent, done) = counts.get(&row.op).copied().unwrap_or_default();
        println!("{:20} {sent:8} sent {done:8} done", row.name);
        // With fewer frames, some operations may not be sent.
        assert!(frames < FRAMES || sent > 0, "{} was never sent", row.name);
        assert!(
            frames < FRAMES || done > 0 || NEEDS_HARDWARE.contains(&row.op),
            "{} never did what it is for",
            row.name
        );
    }
}
