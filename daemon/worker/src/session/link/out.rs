//! Frames to the guest: replies, notices, depth credit.

use vgpu_proto::call::ops::Progress;
use vgpu_proto::call::{Notice, Op};
use vgpu_proto::codec::{Encode, encode_into};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::frame::{FLAG_MORE, Header};
use vgpu_proto::limits::{MAX_BULK, PROGRESS_BYTES, PROGRESS_CALLS};

use super::printf::Printed;
use crate::driver::{Block, Result};
use crate::wire::Writer;

/// While more bytes than this wait for the guest to read, the worker reads no requests.
pub(crate) const OUT_LIMIT: usize = 8 << 20;

/// The outbound half of the guest's connection.
#[derive(Debug)]
pub(crate) struct Out {
    writer: Writer<Block>,
    taken: Progress,
    told: Progress,
    /// `depth`: how many requests and bytes may be untaken. `allowed`: totals that the guest may
    /// send; a smaller depth does not reduce them.
    depth: Progress,
    allowed: Progress,
    scratch: Vec<u8>,
    failure: Option<String>,
}

impl Out {
    /// Sends over the guest's socket. `depth`: the depth in the guest's Welcome.
    pub(crate) fn new(writer: Writer<Block>, depth: Progress) -> Out {
        let zero = Progress { calls: 0, bytes: 0 };
        Out {
            writer,
            taken: zero,
            told: zero,
            depth,
            allowed: depth,
            scratch: Vec::new(),
            failure: None,
        }
    }

    /// Whether the guest reads its data too slowly.
    pub(crate) fn congested(&self) -> bool {
        self.writer.queued() > OUT_LIMIT
    }

    /// Number of bytes that wait for the socket.
    pub(crate) fn queued(&self) -> usize {
        self.writer.queued()
    }

    /// Writes as much as the socket accepts.
    ///
    /// # Errors
    /// The error of the socket.
    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }

    /// Answers a request.
    pub(crate) fn reply<T: Encode>(&mut self, op: Op, id: u64, result: Result<T>) {
        match result {
            Ok(value) => self.reply_with(op, id, CuResult::SUCCESS, &value),
            Err(code) => self.status(op, id, code),
        }
    }

    /// Answers a request with a status and results.
    pub(crate) fn reply_with<T: Encode>(&mut self, op: Op, id: u64, status: CuResult, value: &T) {
        self.frame((op as u16, op.name()), id, status, value, &[]);
    }

    fn frame<T: Encode>(
        &mut self,
        (number, name): (u16, &str),
        id: u64,
        status: CuResult,
        value: &T,
        bulk: &[u8],
    ) {
        self.scratch.clear();
        match encode_into(value, &mut self.scratch) {
            Ok(()) => {
                let header = Header::reply(number, 0, status, id, self.scratch.len(), bulk.len());
                self.writer.push(header, &self.scratch, bulk);
            }
            Err(e) => {
                self.failure
                    .get_or_insert_with(|| format!("the answer to {name} cannot be encoded: {e}"));
            }
        }
    }

    /// The reason to end the session: an answer cannot be encoded, so a thread of the guest would
    /// wait for it forever.
    pub(crate) fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Answers a request that has no results or that failed.
    pub(crate) fn status(&mut self, op: Op, id: u64, status: CuResult) {
        self.writer
            .push(Header::reply(op as u16, 0, status, id, 0, 0), &[], &[]);
    }

    /// Sends a piece of a device-to-host copy.
    pub(crate) fn piece(&mut self, op: Op, id: u64, block: Block, last: bool) {
        let flags = if last { 0 } else { FLAG_MORE };
        let header = Header::reply(op as u16, flags, CuResult::SUCCESS, id, 0, block.len());
        // A short piece is copied next to the neighbouring frames, so that one write sends the
        // piece and these frames.
        if block.len() <= 4096 {
            self.writer.push(header, &[], block.bytes());
        } else {
            self.writer.push_block(header, block);
        }
    }

    /// Answers a request whose result is data.
    pub(crate) fn data(&mut self, op: Op, id: u64, bytes: &[u8]) {
        let pieces = bytes.len().div_ceil(MAX_BULK).max(1);
        for i in 0..pieces {
            let piece = &bytes[i * MAX_BULK..bytes.len().min((i + 1) * MAX_BULK)];
            let flags = if i + 1 < pieces { FLAG_MORE } else { 0 };
            let header = Header::reply(op as u16, flags, CuResult::SUCCESS, id, 0, piece.len());
            self.writer.push(header, &[], piece);
        }
    }

    /// Answers a request whose results come with at most [`MAX_BULK`] bytes of data.
    pub(crate) fn reply_bulk<T: Encode>(&mut self, op: Op, id: u64, value: &T, bytes: &[u8]) {
        self.frame((op as u16, op.name()), id, CuResult::SUCCESS, value, bytes);
    }

    /// Tells the guest that a stream has reached a host function.
    pub(crate) fn host_function(&mut self, number: u64) {
        let op = Notice::HostFunc as u16;
        self.writer.push(
            Header::reply(op, 0, CuResult::SUCCESS, number, 0, 0),
            &[],
            &[],
        );
    }

    /// Reports the failure of an asynchronous call.
    pub(crate) fn async_error(&mut self, id: u64, code: CuResult) {
        self.writer.push(
            Header::reply(Notice::AsyncError as u16, 0, code, id, 0, 0),
            &[],
            &[],
        );
    }

    /// Reports a device fault, with its description. This frame comes before the answers that fail
    /// because of the fault.
    pub(crate) fn device_fault(&mut self, code: CuResult, text: &str) {
        let notice = (Notice::AsyncError as u16, "a device fault");
        self.frame(notice, 0, code, &text.to_owned(), &[]);
    }

    /// Sends output of device `printf`, and the number of bytes that were dropped after it.
    pub(crate) fn stdout(&mut self, printed: &Printed) {
        let op = Notice::Stdout as u16;
        for piece in printed.text.chunks(MAX_BULK) {
            self.writer.push(
                Header::reply(op, 0, CuResult::SUCCESS, 0, 0, piece.len()),
                &[],
                piece,
            );
        }
        if printed.dropped > 0 {
            let header = Header::reply(op, 0, CuResult::SUCCESS, printed.dropped, 0, 0);
            self.writer.push(header, &[], &[]);
        }
    }

    /// Records that requests were taken off the queue, and reports this to the guest from time to
    /// time.
    pub(crate) fn took(&mut self, calls: u64, bytes: u64) {
        self.taken.calls += calls;
        self.taken.bytes += bytes;
        // With a small depth the steps are smaller; otherwise the queue would run empty before each
        // report.
        let step = |depth: u64, most: u64| (depth / 4).clamp(1, most);
        if self.taken.calls - self.told.calls < step(self.depth.calls, PROGRESS_CALLS.into())
            && self.taken.bytes - self.told.bytes < step(self.depth.bytes, PROGRESS_BYTES)
        {
            return;
        }
        self.tell();
    }

    /// Reports the taken requests to the guest, unless it knows them already. Must also be called
    /// when the queue has run empty: a guest whose whole depth is smaller than a step would wait
    /// forever. (The report is sent at once: a timer would cost every synchronous call more than
    /// these few bytes.)
    pub(crate) fn tell(&mut self) {
        if self.told == self.taken {
            return;
        }
        self.told = self.taken;
        self.allow();
        self.notice(Notice::Progress, self.told);
    }

    /// Changes how many requests and bytes may be untaken.
    pub(crate) fn set_depth(&mut self, depth: Progress) {
        self.depth = depth;
        self.allow();
        self.notice(Notice::Depth, depth);
    }

    /// How many requests and bytes may be untaken.
    pub(crate) fn depth(&self) -> Progress {
        self.depth
    }

    fn allow(&mut self) {
        let allowed = &mut self.allowed;
        allowed.calls = allowed.calls.max(self.told.calls + self.depth.calls);
        allowed.bytes = allowed.bytes.max(self.told.bytes + self.depth.bytes);
    }

    /// Whether the guest was allowed to send these totals. The last request carried `last` bytes: a
    /// request larger than the whole depth may be sent alone.
    pub(crate) fn allows(&self, sent: Progress, last: u64) -> bool {
        sent.calls <= self.allowed.calls
            && (sent.bytes <= self.allowed.bytes || sent.bytes - last <= self.taken.bytes)
    }

    fn notice(&mut self, notice: Notice, said: Progress) {
        self.frame(
            (notice as u16, "a notice"),
            0,
            CuResult::SUCCESS,
            &said,
            &[],
        );
    }

    /// Requests and bytes taken off the queue since the session began.
    pub(crate) fn taken(&self) -> Progress {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use vgpu_proto::call::rep;
    use vgpu_proto::limits::MAX_ARGS;

    use super::*;

    #[test]
    fn an_answer_that_cannot_be_encoded_is_a_reason_to_end_the_session() {
        let (_guest, ours) = UnixStream::pair().expect("a socket pair");
        let credit = Progress { calls: 1, bytes: 1 };
        let mut out = Out::new(Writer::new(File::from(OwnedFd::from(ours))), credit);
        let names = |len| rep::ModuleFunctions {
            total: 1,
            names: vec!["f".repeat(len)],
        };
        out.reply_with(Op::ModuleFunctions, 1, CuResult::SUCCESS, &names(10));
        assert_eq!(out.failure(), None);
        let queued = out.queued();
        out.reply_with(Op::ModuleFunctions, 2, CuResult::SUCCESS, &names(MAX_ARGS));
        assert!(
            out.failure()
                .is_some_and(|text| text.contains("ModuleFunctions"))
        );
        out.reply_bulk(Op::ModuleFunctions, 3, &names(MAX_ARGS), &[1]);
        assert!(out.failure().is_some());
        assert_eq!(out.queued(), queued, "nothing of such an answer is sent");
    }
}
