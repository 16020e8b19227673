//! Messages of vgpud and of the session's other threads.

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::codec::Encode;
use vgpu_proto::cuda::{Ctx, CuResult};
use vgpu_proto::worker::{FromWorker, ToWorker};

use super::{Session, within_bounds};
use crate::control::{ControlError, Received};
use crate::driver::{self, exit_now};
use crate::session::objects::{Done, ImageError, Over, image_code};

impl Session {
    /// Whether vgpud or another thread has sent a message.
    pub(super) fn waiting_messages(&self) -> bool {
        !self.done.is_empty() || self.control.waiting()
    }

    /// Handles all messages of vgpud.
    pub(super) fn hear(&mut self) -> Result<(), String> {
        loop {
            let received = match self.control.take() {
                Ok(Some(received)) => received,
                // The control thread, which sees the closed socket, ends the process.
                Ok(None) | Err(ControlError::Closed) => return Ok(()),
                Err(e) => return Err(e.to_string()),
            };
            self.heard(received);
        }
    }

    fn heard(&mut self, mut received: Received) {
        match received.message {
            ToWorker::Grant { .. } | ToWorker::Revoke { .. } => self.link.lease.refresh(),
            // The credit is on the lease page.
            ToWorker::Credit { .. } => {}
            ToWorker::MemGrant { request, refused } => {
                let (flow, objects, link) = self.owners();
                if let Err(fault) = objects.ledger_answered(link, request, refused) {
                    flow.fault(objects, link, fault);
                }
            }
            ToWorker::MemLeft { bytes } => self.memory_left(bytes),
            ToWorker::Depth { calls, bytes } => {
                self.link.out.set_depth(within_bounds(calls, bytes));
            }
            ToWorker::ImageRoom { image, refused } => {
                let answer = match (refused, received.fds.pop()) {
                    (Some(why), _) => Err(why),
                    (None, Some(fd)) => Ok(File::from(fd)),
                    (None, None) => Err("this process has no descriptor left".to_owned()),
                };
                self.room = Some((image, answer));
            }
            ToWorker::ImageKept { image } => self.objects.images.kept(image),
            ToWorker::Shutdown => exit_now(0),
            other @ (ToWorker::Start(_) | ToWorker::Data) => {
                tracing::warn!("vgpud sent a message out of turn: {other:?}");
            }
        }
    }

    /// Asks vgpud for an image's memory and waits for the answer, because later frames of the guest
    /// would have to be stored elsewhere meanwhile. Other messages of vgpud are handled as usual.
    fn ask_for_room(&mut self, image: u64, len: u64) -> Result<File, String> {
        self.link.vgpud.send(FromWorker::ImageBegin { image, len });
        loop {
            if let Some((_, answer)) = self.room.take_if(|(number, _)| *number == image) {
                return answer;
            }
            let wanted = match self.link.vgpud.send_kept() {
                // The request itself may still be kept, because the socket had no room.
                true => PollFlags::POLLIN | PollFlags::POLLOUT,
                false => PollFlags::POLLIN,
            };
            let mut fds = [PollFd::new(self.control.fd().as_fd(), wanted)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.to_string()),
            }
            match self.control.take() {
                Ok(Some(received)) => self.heard(received),
                Ok(None) => {}
                // The control thread, which sees the closed socket, ends the process.
                Err(ControlError::Closed) => return Err("vgpud is gone".to_owned()),
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Handles the results of the session's other threads.
    pub(super) fn take_done(&mut self) {
        while let Ok(done) = self.done.try_recv() {
            match done {
                Done::Marker {
                    stream,
                    seq,
                    result,
                } => {
                    let (flow, objects, link) = self.owners();
                    flow.marker_fired(objects, link, (stream, seq), result);
                }
                Done::Task(over) => self.over(*over),
            }
        }
    }

    /// Handles the result of a task on a helper thread.
    fn over(&mut self, over: Over) {
        let (flow, objects, link) = self.owners();
        match over {
            Over::Dropped => {}
            Over::Released {
                device,
                charge,
                reply,
            } => flow.released(objects, link, (device, charge), reply),
            Over::LimitsReset { op, id, ordinal } => {
                if let Err(code) = flow.primary_reset(objects, link, (op, id), ordinal) {
                    flow.refuse(objects, link, (op, id), code);
                }
            }
            Over::Limit { op, id, set } => {
                let set = set.map(|(context, limit, before)| {
                    objects.limit_set(context, limit, before);
                    rep::CtxSetLimit {}
                });
                self.answer(op, id, set);
            }
            Over::Context {
                op,
                id,
                device,
                made,
                cost,
            } => {
                let made = made.and_then(|driver| flow.add_context(objects, driver, device, false));
                objects.context_created(link, device, cost, made);
                self.answer(op, id, made.map(|ctx| rep::CtxCreate { ctx: Ctx(ctx) }));
            }
            Over::Module { op, id, of, loaded } => {
                let (status, reply) = objects.module_loaded(link, of, loaded);
                if status.is_sticky() {
                    flow.device_failed(objects, link, status, "returned by a module load");
                }
                link.out.reply_with(op, id, status, &reply);
            }
            Over::Link {
                op,
                id,
                linked,
                logs,
            } => {
                let (status, reply) = objects.linked(linked, logs);
                // The linker reports undefined references as CUDA_ERROR_UNKNOWN, which is no fault
                // of the device.
                if status.is_sticky() && status != CuResult::UNKNOWN {
                    flow.device_failed(objects, link, status, "returned by a link");
                }
                link.out.reply_with(op, id, status, &reply);
            }
            Over::Condition {
                op,
                id,
                home: (name, graph),
                made,
            } => {
                let made = objects.condition_made((name, &graph), made);
                self.answer(op, id, made);
            }
            Over::Graph {
                op,
                id,
                work,
                built,
            } => {
                let built = objects.graph_built(work, built);
                self.answer(op, id, built);
                self.flow.release_late(&mut self.objects);
            }
        }
    }

    /// Answers a request with its results or its error.
    fn answer<T: Encode>(&mut self, op: Op, id: u64, results: driver::Result<T>) {
        let (flow, objects, link) = self.owners();
        match results {
            Ok(results) => link.out.reply(op, id, Ok(results)),
            Err(code) => flow.refuse(objects, link, (op, id), code),
        }
    }

    /// Handles vgpud's answer about the bytes that are left on a device and in the VM's quota.
    fn memory_left(&mut self, left: u64) {
        if let Some((op, id, ctx)) = self.objects.memory_answered(&self.link) {
            let results = self.objects.memory_within(ctx, left);
            self.answer(op, id, results);
        }
    }

    /// Handles a piece of a module image.
    pub(super) fn image_data(&mut self, id: u64, r: &req::ImageData, bytes: &[u8]) {
        if let Err(e) = self.take_piece(r, bytes) {
            tracing::warn!("{e}");
            self.link.out.async_error(id, image_code(&e));
        }
    }

    fn take_piece(&mut self, r: &req::ImageData, bytes: &[u8]) -> Result<(), ImageError> {
        if r.offset == 0 {
            let image = self.objects.images.begin(&r.hash, r.len)?;
            let answer = self.ask_for_room(image, r.len);
            self.objects.images.begun((r.hash, r.len), image, answer);
        }
        self.objects.images.receive(&r.hash, r.len, r.offset, bytes)
    }
}
