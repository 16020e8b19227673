//! Delivers the frames of the data socket: replies to the requests, notices to the session.

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::ops::Progress;
use vgpu_proto::call::{Notice, Op};
use vgpu_proto::codec;
use vgpu_proto::frame::{FLAG_MORE, Header};
use vgpu_proto::text::printable;

use super::answer::Answer;
use super::frames::Sink;
use super::{PRINTED, Session};
use crate::log::{self, Level};
use crate::sys::UserMemory;

/// Most characters of the host's description of a device fault.
const FAULT_TEXT: usize = 1_000;

impl Sink for Session {
    fn room(&self, id: u64, len: usize) -> Option<UserMemory> {
        self.inbox.room(id, len)
    }

    fn unmapped(&self) {
        self.failed_later(CuResult::INVALID_VALUE, "");
    }

    fn printed(&self, text: &[u8]) {
        // The text is only added: a write to standard output could block.
        PRINTED.add(text);
    }

    fn frame(&self, header: Header, args: Vec<u8>) -> Result<(), String> {
        match Notice::from_wire(header.op()) {
            Some(Notice::Progress) => {
                let progress: Progress = codec::decode(&args).map_err(|e| e.to_string())?;
                self.progress(progress);
            }
            Some(Notice::Depth) => self.depth(codec::decode(&args).map_err(|e| e.to_string())?),
            Some(Notice::AsyncError) if args.is_empty() => self.failed_later(header.status(), ""),
            Some(Notice::AsyncError) => {
                let text: String = codec::decode(&args).map_err(|e| e.to_string())?;
                self.failed_later(header.status(), &printable(&text, FAULT_TEXT));
            }
            Some(Notice::Stdout) => printf_dropped(header.id()),
            Some(Notice::HostFunc) => self.host_function(header.id()),
            None if Op::from_wire(header.op()).is_none() => {
                return Err(format!(
                    "a reply has the unknown operation {:#06x}",
                    header.op()
                ));
            }
            None if header.flags() & FLAG_MORE != 0 => {}
            None => {
                let answer = Answer {
                    status: header.status(),
                    args,
                    filled: 0,
                };
                if !self.inbox.complete(self, header.id(), answer) {
                    return Err(
                        "a reply answers nothing that was asked, or brings too little".to_owned(),
                    );
                }
            }
        }
        Ok(())
    }
}

/// Logs that the host dropped output of device `printf`.
fn printf_dropped(bytes: u64) {
    let text =
        format!("{bytes} bytes of device printf were dropped: wait for the device more often");
    log::line(Level::Error, &text);
}
