//! Handles the messages of workers. A guest may control its worker, so a message decides only how
//! fast the guest of that worker is served. A message that contradicts vgpud's own accounts ends
//! the session.

use vgpu_proto::call::{MemoryLimit, Shortage};
use vgpu_proto::cuda::{CuResult, MINIMUM_DRIVER_VERSION, version_text};
use vgpu_proto::handshake::{DeviceInfo, Refusal};
use vgpu_proto::lease::Holding;
use vgpu_proto::limits::{DEPTH_BYTES, DEPTH_CALLS, MAX_DEVICES, MAX_TEXT};
use vgpu_proto::text::{cut, printable};
use vgpu_proto::worker::{FromWorker, ToWorker};
use vgpu_sched::{Depth, Epoch, Event, GpuId, HeadCost, Memory, MemoryRefusal, SessionId};

use super::actor::Actor;
use super::answers::{Denied, Reservation};
use super::handle::{Ready, Refused};
use super::reactor::now_ns;
use super::registry;
use super::session::{Lease, Phase, Placed, Session};
use crate::events::{EndCause, Report};
use crate::model::refuse_pinned;
use crate::worker::channel::Received;

/// Most calls and bytes that a worker may report as queued. Depth credits bound the queue, so a
/// larger report is false and is cut to this value.
const MOST: Depth = Depth {
    calls: DEPTH_CALLS as u64 * 2,
    bytes: DEPTH_BYTES * 2,
};

/// Why a VM cannot pin more host memory although the limit of the VM allows more.
pub(super) const HOST_FULL: &str = "the VMs of this host have pinned as much of its memory as all together may, \
    and this VM has had its share; the host's administrator can see the limit (vgpu-admin doctor)";

/// Most characters of a worker's report of a fault that are used.
const FAULT_TEXT: usize = 512;

/// Most bytes that a worker may report as pinned for its copies at its start.
const PINNED_MOST: u64 = 1 << 30;

/// Refusals name the host's free pinned memory in steps of this many bytes.
const HOST_STEP: u64 = 64 << 20;

impl Actor {
    /// Handles the result of one read from a worker's socket. False: stop reading this socket for
    /// now.
    pub(super) fn received(&mut self, id: u64, received: Received) -> bool {
        match received {
            Received::Message(message) => {
                self.message(id, message);
                true
            }
            Received::Empty => false,
            Received::Closed => {
                // The report of the worker's death follows and gives the reason. A worker that
                // closed its socket without ending is killed.
                if let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) {
                    self.reactor.forget(&worker.channel);
                }
                self.closed(id);
                false
            }
            Received::Malformed(what) => {
                let breach = format!(
                    "the worker sent bytes that are not a message of this protocol: {what}"
                );
                self.breach(id, &breach);
                // The malformed message may still be in the socket, and epoll would report the
                // socket again and again.
                if let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) {
                    self.reactor.forget(&worker.channel);
                }
                false
            }
        }
    }

    fn message(&mut self, id: u64, message: FromWorker) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        match (&session.phase, message) {
            (Phase::Starting, message) => self.message_of_starting(id, message),
            (Phase::Live, message) => self.message_of_live(id, message),
            // The messages of a worker that is being ended are ignored, except a fault that
            // explains the end.
            (Phase::Ending(..), FromWorker::Fault { code, text }) if session.fault.is_none() => {
                session.fault = Some((code, fault_text(&text)));
            }
            (Phase::Ending(..), _) => {}
        }
    }

    fn message_of_starting(&mut self, id: u64, message: FromWorker) {
        match message {
            FromWorker::Ready {
                driver_version,
                devices,
                context_bytes,
                pinned_bytes,
            } => {
                if self.pins(id, pinned_bytes) {
                    self.ready(id, driver_version, devices, context_bytes);
                }
            }
            FromWorker::Failed { code, text } => {
                let why = format!("{} (CUDA error {})", printable(&text, MAX_TEXT), code.0);
                self.worker_failed(id, &why);
            }
            FromWorker::Ended { text, .. } => self.worker_failed(id, &printable(&text, MAX_TEXT)),
            _ => self.breach(id, "the worker spoke before it was ready"),
        }
    }

    fn message_of_live(&mut self, id: u64, message: FromWorker) {
        match message {
            FromWorker::Runnable {
                calls,
                bytes,
                at_ns,
            } => self.runnable(id, depth(calls, bytes), at_ns),
            FromWorker::Idle { epoch, at_ns } => self.idle(id, epoch, at_ns),
            FromWorker::Ending {
                epoch,
                slice_end_ns,
                in_ns,
            } => self.lease_ending(id, epoch, slice_end_ns, in_ns),
            FromWorker::Released {
                epoch,
                calls,
                bytes,
            } => self.released(id, epoch, depth(calls, bytes)),
            FromWorker::MemReserve {
                request,
                device,
                bytes,
                needed,
            } => self.reserve_memory(id, request, device, (bytes, needed)),
            FromWorker::MemAsk { device } => self.tell_memory_left(id, device),
            FromWorker::MemRelease { device, bytes } => self.release_memory(id, device, bytes),
            FromWorker::ImageBegin { image, len } => self.image_begin(id, image, len),
            FromWorker::ImageWhole { image, hash } => self.image_whole(id, image, hash),
            FromWorker::ImageDone { image } => self.image_done(id, image),
            FromWorker::Fault { code, text } => self.fault(id, code, &text),
            FromWorker::Ended {
                protocol_error,
                text,
            } => self.ended_by_worker(id, protocol_error, &text),
            FromWorker::Ready { .. } | FromWorker::Failed { .. } => {
                self.breach(id, "the worker said twice how it started");
            }
        }
    }

    fn runnable(&mut self, id: u64, depth: Depth, at_ns: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(lease) = &mut session.lease {
            lease.parked = false;
        }
        let event = runnable(session, SessionId(id), depth);
        // Calls and bytes that the worker used without a lease are counted before the next lease.
        self.settle(id);
        self.feed_of(at_ns, event);
        // The worker may have taken back a parked lease.
        self.schedule_progress();
    }

    fn idle(&mut self, id: u64, epoch: u64, at_ns: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let event = idle(session, SessionId(id), epoch);
        if let Some(lease) = session.lease.as_mut().filter(|l| l.epoch == epoch) {
            lease.parked = true;
        }
        self.feed_of(at_ns, event);
    }

    fn lease_ending(&mut self, id: u64, epoch: u64, slice_end_ns: u64, in_ns: u64) {
        let lease = self.sessions.get_mut(&id).and_then(|s| s.lease.as_mut());
        if let Some(lease) = lease.filter(|l| l.epoch == epoch) {
            lease.ending = true;
            self.feed(Event::Ending {
                session: SessionId(id),
                epoch: Epoch(epoch),
                slice_end_ns,
                in_ns,
            });
        }
    }

    /// Books memory that a worker requests. `needed`: the part of `bytes` without which a request
    /// of the guest fails.
    fn reserve_memory(
        &mut self,
        id: u64,
        request: u64,
        device: Option<u32>,
        (bytes, needed): (u64, u64),
    ) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let wanted = Reservation {
            session: SessionId(id),
            of: memory_of(session, device),
            bytes,
            tag: request,
        };
        let refused = match self.reserve(wanted) {
            Ok(()) => {
                if let Some(placed) = self.placed(id, device) {
                    placed.requested = placed.requested.saturating_add(bytes);
                }
                self.memory_grew(SessionId(id));
                None
            }
            Err(denied) => {
                let shortage = self.shortage(id, device, denied, needed);
                // A worker that is refused a slice asks for the needed bytes alone.
                if bytes == needed && needed > denied.available {
                    self.report_shortage(id, device, &shortage);
                }
                Some(shortage)
            }
        };
        self.send(id, &ToWorker::MemGrant { request, refused });
    }

    /// A refusal of memory, with the values of the limit.
    fn shortage(&self, id: u64, device: Option<u32>, denied: Denied, asked: u64) -> Shortage {
        let limit = match denied.reason {
            MemoryRefusal::Quota => MemoryLimit::Quota,
            MemoryRefusal::Gpu | MemoryRefusal::NotItsGpu => MemoryLimit::Gpu,
            MemoryRefusal::Pinned => MemoryLimit::Pinned,
            MemoryRefusal::Host => MemoryLimit::Host,
        };
        let session = self.sessions.get(&id);
        let vm = session.map(|session| session.vm);
        let limits = vm.and_then(|vm| Some(self.registry.limits(self.registry.vm(vm)?)));
        let used = vm.and_then(|vm| self.scheduler.vm_stats(registry::vm_id(vm)));
        let of_vm = limits.zip(used).and_then(|(limits, used)| match limit {
            MemoryLimit::Quota => Some((limits.memory_bytes.value()?, used.memory_bytes)),
            MemoryLimit::Pinned => Some((limits.pinned_bytes.value()?, used.pinned_bytes)),
            MemoryLimit::Gpu | MemoryLimit::Host => None,
        });
        let (total, left) = match of_vm {
            Some((total, used)) => (total, total.saturating_sub(used)),
            // Rounded, because the exact number shows what other VMs pin.
            None if limit == MemoryLimit::Host => (0, denied.available / HOST_STEP * HOST_STEP),
            None => {
                let gpu = session.and_then(|session| session.gpus.get(device? as usize));
                let gpu = gpu.and_then(|gpu| self.registry.gpu(gpu.id));
                (gpu.map_or(0, |gpu| gpu.seen.memory_bytes), denied.available)
            }
        };
        Shortage {
            limit,
            total,
            left,
            asked,
        }
    }

    /// Reports refused memory to the administrator, once for each session and limit.
    fn report_shortage(&mut self, id: u64, device: Option<u32>, shortage: &Shortage) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !session.shortages.insert(shortage.limit) {
            return;
        }
        let gpu = device.and_then(|device| session.gpus.get(device as usize));
        let report = Report::MemoryRefused {
            vm_id: session.vm.vm_id,
            session_id: id,
            gpu_uuid: gpu.map(|gpu| gpu.uuid.clone()),
            limit: shortage.limit.name(),
            values: shortage.to_string(),
        };
        self.events.report(report);
    }

    fn tell_memory_left(&mut self, id: u64, device: u32) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let gpu = session.gpus.get(device as usize);
        let vm = registry::vm_id(session.vm);
        let bytes = gpu.map_or(0, |gpu| self.scheduler.memory_left(vm, gpu.id));
        self.send(id, &ToWorker::MemLeft { bytes });
    }

    /// The GPU that a worker names by its index; `None` for pinned memory or an unknown index.
    fn placed(&mut self, id: u64, device: Option<u32>) -> Option<&mut Placed> {
        let session = self.sessions.get_mut(&id)?;
        session.gpus.get_mut(device? as usize)
    }

    /// Unbooks memory that the worker releases: at most the memory that the worker requested. What
    /// vgpud booked itself (contexts, images, found memory) stays.
    fn release_memory(&mut self, id: u64, device: Option<u32>, bytes: u64) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let of = memory_of(session, device);
        let most = match device {
            None => {
                let pinned = self.scheduler.pinned_of(SessionId(id));
                pinned.saturating_sub(session.pinned_by_us)
            }
            Some(_) => self.placed(id, device).map_or(0, |gpu| gpu.requested),
        };
        let bytes = bytes.min(most);
        if let Some(placed) = self.placed(id, device) {
            placed.requested -= bytes;
        }
        self.feed(Event::MemoryRelease {
            session: SessionId(id),
            of,
            bytes,
        });
    }

    fn fault(&mut self, id: u64, code: CuResult, text: &str) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        // An honest worker reports one device failure, because nothing works afterwards. Further
        // reports would only fill the log.
        if session.fault.is_some() {
            return self.breach(id, "the worker said twice that its device failed");
        }
        let (vm, text) = (session.vm.vm_id, fault_text(text));
        // The worker's own line and the event of the session's end tell the fault in the log.
        tracing::debug!(session = id, vm, code = code.0, %text, "device fault");
        session.fault = Some((code, text));
    }

    fn ready(&mut self, id: u64, driver_version: u32, devices: Vec<DeviceInfo>, context: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if devices.len() != session.gpus.len() || devices.len() > MAX_DEVICES {
            let why = format!(
                "the worker sees {} devices instead of {}",
                devices.len(),
                session.gpus.len()
            );
            return self.worker_failed(id, &why);
        }
        if driver_version < MINIMUM_DRIVER_VERSION {
            let why = format!(
                "the host's driver offers CUDA {}; install a driver of CUDA {} or later",
                version_text(driver_version),
                version_text(MINIMUM_DRIVER_VERSION)
            );
            return self.worker_failed(id, &why);
        }
        let vm = session.vm;
        if !self.context_fits(id, context / devices.len().max(1) as u64) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.phase = Phase::Live;
        if let Some(ready) = session.ready.take() {
            // A gateway that no longer waits ends the session itself.
            let _ = ready.send(Ok(Ready {
                driver_version,
                devices,
            }));
        }
        self.share_depth(vm);
    }

    /// Books the memory that the worker's contexts take on each GPU of the session beyond the
    /// amount booked at admission. The worker's figure counts for this session only: other sessions
    /// are admitted by the host's own figure. False: the memory is not available, and the session
    /// has ended.
    fn context_fits(&mut self, id: u64, each: u64) -> bool {
        let placed = self.sessions.get(&id).into_iter().flat_map(|s| &s.gpus);
        let wanted: Vec<(GpuId, u64)> = placed
            .filter_map(|gpu| {
                let config = self.registry.gpu_config(self.registry.gpu(gpu.id)?);
                Some((gpu.id, each.saturating_sub(config.context_bytes)))
            })
            .filter(|(_, beyond)| *beyond > 0)
            .collect();
        for (gpu, bytes) in wanted {
            let wanted = Reservation {
                session: SessionId(id),
                of: Memory::DeviceOn(gpu),
                bytes,
                tag: 0,
            };
            if self.reserve(wanted).is_err() {
                let text = format!(
                    "its context takes {} MiB of GPU {}, and the VM, or the GPU, has not so much left",
                    each.div_ceil(1 << 20),
                    gpu.0
                );
                self.end(id, EndCause::Guest, CuResult::DEVICE_UNAVAILABLE, &text);
                return false;
            }
        }
        true
    }

    /// Books the host memory that a session's worker pins. False: the limits do not allow so much,
    /// and the session has ended.
    fn pins(&mut self, id: u64, bytes: u64) -> bool {
        let bytes = bytes.min(PINNED_MOST);
        let text = match self.book_pinned(id, bytes) {
            Ok(()) => return true,
            Err(MemoryRefusal::Host) => {
                format!("{HOST_FULL}; one more program takes {} MiB", bytes >> 20)
            }
            Err(_) => {
                let why = self.refused_pinned(id, bytes).unwrap_or_default();
                format!(
                    "{why}; the host's administrator can raise the limit (vgpu-admin vm set --pinned)"
                )
            }
        };
        let session = self.sessions.get_mut(&id);
        if let Some(ready) = session.and_then(|session| session.ready.take()) {
            let text = text.clone();
            let code = Refusal::Pinned;
            let _ = ready.send(Err(Refused { code, text }));
        }
        self.end(id, EndCause::Guest, CuResult::DEVICE_UNAVAILABLE, &text);
        false
    }

    /// The sentence that says why the limit of the session's VM does not allow it to pin this many
    /// more bytes; `None` if the limit allows them.
    fn refused_pinned(&self, id: u64, bytes: u64) -> Option<String> {
        let identity = self.sessions.get(&id)?.vm;
        let limits = self.registry.limits(self.registry.vm(identity)?);
        let pinned = self
            .scheduler
            .vm_stats(registry::vm_id(identity))?
            .pinned_bytes;
        refuse_pinned(&limits, pinned, bytes)
    }

    /// Books host memory as pinned by the VM of a session.
    ///
    /// # Errors
    /// If the VM, or all VMs together, may not pin so much. Nothing is booked then.
    pub(super) fn book_pinned(&mut self, id: u64, bytes: u64) -> Result<(), MemoryRefusal> {
        let booked = self.reserve(Reservation {
            session: SessionId(id),
            of: Memory::Pinned,
            bytes,
            tag: 0,
        });
        let booked = booked.map_err(|denied| denied.reason);
        if let (Ok(()), Some(session)) = (&booked, self.sessions.get_mut(&id)) {
            session.pinned_by_us += bytes;
        }
        booked
    }

    fn released(&mut self, id: u64, epoch: u64, depth: Depth) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        // Another epoch: the worker released an earlier lease before it read that vgpud had already
        // ended that lease. The scheduler needs no such report.
        if session.lease.is_none_or(|lease| lease.epoch != epoch) {
            return;
        }
        session.lease = None;
        session.held.end(now_ns());
        let used = session.used();
        self.feed(Event::Released {
            session: SessionId(id),
            epoch: Epoch(epoch),
            used,
            depth,
        });
    }

    fn ended_by_worker(&mut self, id: u64, protocol_error: bool, text: &str) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let (vm, fault) = (session.vm, session.fault.clone());
        let text = printable(cut(text, MAX_TEXT), MAX_TEXT);
        match (protocol_error, fault) {
            (true, _) => {
                self.end(id, EndCause::Protocol, CuResult::DEVICE_UNAVAILABLE, &text);
                self.strike(vm, &format!("its guest broke the protocol: {text}"));
            }
            (false, Some((code, why))) => self.end(id, EndCause::Fault, code, &why),
            (false, None) => self.end(id, EndCause::Guest, CuResult::DEVICE_UNAVAILABLE, &text),
        }
    }

    /// Ends the session and counts a strike, because the worker did what no honest worker does.
    pub(super) fn breach(&mut self, id: u64, what: &str) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if session.is_ending() {
            return;
        }
        let vm = session.vm;
        self.end(id, EndCause::Cheating, CuResult::DEVICE_UNAVAILABLE, what);
        self.strike(vm, what);
    }

    /// Ends a session whose worker did not start. No strike: the guest is not at fault.
    pub(super) fn worker_failed(&mut self, id: u64, why: &str) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if session.is_ending() {
            return;
        }
        self.events.report(Report::WorkerFailed {
            vm_id: Some(session.vm.vm_id),
            session_id: Some(id),
            message: format!(
                "Session {id} of VM {} did not start: {why}",
                session.vm.vm_id
            ),
        });
        self.end(id, EndCause::WorkerDied, CuResult::DEVICE_UNAVAILABLE, why);
    }
}

/// The text of a worker's fault report, for the log and for the guest: only printable characters,
/// and at most [`FAULT_TEXT`] of them.
fn fault_text(text: &str) -> String {
    printable(text, FAULT_TEXT)
}

/// The account of a device that a worker names by its index. An unknown index gives a GPU that does
/// not exist, so the scheduler denies the request.
fn memory_of(session: &Session, device: Option<u32>) -> Memory {
    let Some(device) = device else {
        return Memory::Pinned;
    };
    let placed = session.gpus.get(device as usize);
    Memory::DeviceOn(placed.map_or(GpuId(u32::MAX), |gpu| gpu.id))
}

fn depth(calls: u64, bytes: u64) -> Depth {
    Depth {
        calls: calls.min(MOST.calls),
        bytes: bytes.min(MOST.bytes),
    }
}

/// The event for waiting work: the work waits for a turn, or, under a lease whose credit is used
/// up, for credit.
fn runnable(session: &Session, name: SessionId, depth: Depth) -> Event {
    let hints = session.hints();
    if let Some(Lease { epoch, credits, .. }) = session.lease
        && (hints.used_calls >= credits.calls || hints.used_bytes >= credits.bytes)
    {
        return Event::CreditsSpent {
            session: name,
            epoch: Epoch(epoch),
            used: session.used(),
        };
    }
    let head = HeadCost {
        gpu_ns: hints.head_ns,
        bytes: hints.head_bytes.min(MOST.bytes),
    };
    Event::Runnable {
        session: name,
        depth,
        head,
    }
}

fn idle(session: &Session, name: SessionId, epoch: u64) -> Event {
    // A worker parks a lease only after a hold time without work.
    let parked = session.hints().holding == Holding::Parked(epoch);
    let hold_ns = session
        .lease
        .filter(|lease| lease.epoch == epoch)
        .map_or(0, |l| l.hold_ns);
    Event::Idle {
        session: name,
        idle_for_ns: if parked { hold_ns } else { 0 },
    }
}
