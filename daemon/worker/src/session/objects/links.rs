//! Linking. A helper thread does a whole link at once, from complete images. The result stays in
//! the worker until the guest fetches it.

use std::ffi::CString;
use std::sync::Arc;

use vgpu_cuda_abi::numbers::jit_input;
use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::cuda::{CuResult, Linked};
use vgpu_proto::limits::{MAX_IMAGE, MAX_LINK_INPUTS, MAX_LINKED};

use super::Objects;
use super::images::Source;
use super::modules::{Unloadable, image_code, log_room, map_image};
use super::pool::Over;
use crate::driver::{Context, Input, JitLogs, OPTION_LIMIT, Result, link, option_allowed};
use crate::session::link::Link;

/// The data with which a helper thread links.
struct Linking {
    context: Arc<Context>,
    inputs: Vec<(u32, ImageHash, u64, Source, CString)>,
    options: Vec<(u32, u32)>,
    logs: (usize, usize),
}

impl Objects {
    /// Starts a link on a helper thread.
    ///
    /// # Errors
    /// An error that is known at once and has no log.
    pub(crate) fn link(
        &mut self,
        link: &mut Link,
        (op, id): (Op, u64),
        r: req::Link,
    ) -> Result<()> {
        let linking = match self.prepare_link(r) {
            Ok(linking) => linking,
            Err(Unloadable::Code(code)) => return Err(code),
            Err(Unloadable::Image(e)) => {
                let (status, reply) = self.linked(Err(image_code(&e)), JitLogs::of(&e));
                link.out.reply_with(op, id, status, &reply);
                return Ok(());
            }
        };
        self.helpers.run(move || {
            let (linked, logs) = linking.run();
            Over::Link {
                op,
                id,
                linked,
                logs,
            }
        });
        Ok(())
    }

    fn prepare_link(&mut self, r: req::Link) -> std::result::Result<Linking, Unloadable> {
        let context = Arc::clone(&self.context(r.ctx)?.driver);
        if r.inputs.is_empty() || r.inputs.len() > MAX_LINK_INPUTS {
            return Err(CuResult::INVALID_VALUE.into());
        }
        if r.options.len() > OPTION_LIMIT || r.options.iter().any(|(o, _)| !option_allowed(*o)) {
            return Err(CuResult::INVALID_VALUE.into());
        }
        let mut inputs = Vec::with_capacity(r.inputs.len());
        for input in r.inputs {
            // The last kind that is linked: drivers no longer accept NVVM.
            if input.kind > jit_input::LIBRARY {
                return Err(CuResult::INVALID_VALUE.into());
            }
            if input.len == 0 || input.len > MAX_IMAGE {
                return Err(CuResult::INVALID_IMAGE.into());
            }
            let source = self.images.finish(&input.hash, input.len)?;
            let name = CString::new(input.name).map_err(|_| CuResult::INVALID_VALUE)?;
            inputs.push((input.kind, input.hash, input.len, source, name));
        }
        Ok(Linking {
            context,
            inputs,
            options: r.options,
            logs: (log_room(r.info_log_len), log_room(r.error_log_len)),
        })
    }

    /// Handles the end of a link. Returns the status and the results of the request.
    pub(crate) fn linked(
        &mut self,
        linked: Result<Vec<u8>>,
        logs: JitLogs,
    ) -> (CuResult, rep::Link) {
        let kept = linked.and_then(|bytes| self.keep_link(bytes));
        let (status, (link, len)) = match kept {
            Ok(kept) => (CuResult::SUCCESS, kept),
            Err(code) => (code, (0, 0)),
        };
        let reply = rep::Link {
            link: Linked(link),
            len,
            info_log: logs.info,
            error_log: logs.error,
        };
        (status, reply)
    }

    /// Stores the result of a link. All results that are not fetched are together at most as large
    /// as the limit of one result.
    fn keep_link(&mut self, bytes: Vec<u8>) -> Result<(u64, u64)> {
        let held: usize = self.links.iter().map(|(_, bytes)| bytes.len()).sum();
        if held + bytes.len() > MAX_LINKED {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let len = bytes.len() as u64;
        let link = self.links.insert(bytes).ok_or(CuResult::OUT_OF_MEMORY)?;
        Ok((link, len))
    }

    /// Removes and returns the result of a link.
    pub(crate) fn link_data(&mut self, link: Linked) -> Result<Vec<u8>> {
        self.links.remove(link.0).ok_or(CuResult::INVALID_HANDLE)
    }
}

impl Linking {
    fn run(self) -> (Result<Vec<u8>>, JitLogs) {
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (kind, hash, len, source, name) in &self.inputs {
            match map_image(source, *len, hash) {
                Ok(image) => inputs.push(Input {
                    kind: *kind,
                    image,
                    name: name.clone(),
                }),
                Err(code) => return (Err(code), JitLogs::default()),
            }
        }
        let (linked, logs) = link(&self.context, &inputs, &self.options, self.logs, MAX_LINKED);
        (linked, logs)
    }
}
