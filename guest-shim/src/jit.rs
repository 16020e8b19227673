//! JIT options of `cuModuleLoadDataEx`. Numeric options are sent to the host, and the host returns
//! logs. Options with host pointers to symbols are refused.

use std::ffi::{c_char, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::jit_option as option;
use vgpu_proto::limits::MAX_ARGS;

use crate::Cu;
use crate::log::refusal;

/// Number of `CUjit_option`s, whose numbers begin at 0.
const OPTIONS: u32 = 36;

/// Largest number of bytes of a log that the library requests from the host: both logs fit into one
/// reply.
const MAX_LOG: u32 = (MAX_ARGS / 2 - 1024) as u32;

/// Number of bytes of the error log that the library needs for its own messages.
const OWN_LOG: u32 = 2048;

/// A log buffer of the caller.
#[derive(Debug, Clone, Copy)]
struct Log {
    buffer: Out<c_char>,
    size: usize,
    /// Pointer to the value of the size option, which receives the number of bytes written.
    filled: Out<Out<c_void>>,
}

const NO_LOG: Log = Log {
    buffer: Out::NULL,
    size: 0,
    filled: Out::NULL,
};

/// The JIT options of one load or link.
#[derive(Debug)]
pub(crate) struct Options {
    /// (`CUjit_option`, value) of the numeric options, as sent to the host.
    pub(crate) scalars: Vec<(u32, u32)>,
    info: Log,
    error: Log,
}

impl Options {
    /// Reads the caller's arrays. Empties the log buffers at once, so that they hold a terminated
    /// text even if the load or the link fails early.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown option or missing arrays, CUDA_ERROR_NOT_SUPPORTED
    /// for an option that passes host symbols.
    pub(crate) fn read(count: u32, options: In<u32>, values: Out<Out<c_void>>) -> Cu<Options> {
        let mut all = Options::scalar(Vec::new());
        if count == 0 {
            return Ok(all);
        }
        if options.is_null() || values.is_null() || count > 2 * OPTIONS {
            return Err(CuResult::INVALID_VALUE);
        }
        for i in 0..count as usize {
            let (name, place, value) = (options.at(i)?, values.element(i), values.at(i)?);
            // A program passes a number in place of a pointer.
            let number = value.pointer() as usize as u32;
            match name {
                option::INFO_LOG_BUFFER => all.info.buffer = value.of(),
                option::ERROR_LOG_BUFFER => all.error.buffer = value.of(),
                option::INFO_LOG_BUFFER_SIZE_BYTES => {
                    (all.info.size, all.info.filled) = (number as usize, place);
                }
                option::ERROR_LOG_BUFFER_SIZE_BYTES => {
                    (all.error.size, all.error.filled) = (number as usize, place);
                }
                // An output option: a time in ms, as the bits of a float. The library does not
                // measure the time and writes 0.
                option::WALL_TIME => place.set(Out::NULL)?,
                option::GLOBAL_SYMBOL_NAMES..=option::GLOBAL_SYMBOL_COUNT
                | option::REFERENCED_KERNEL_NAMES..=option::REFERENCED_VARIABLE_COUNT => {
                    return Err(CuResult::NOT_SUPPORTED);
                }
                _ if name < OPTIONS => all.scalars.push((name, number)),
                _ => return Err(CuResult::INVALID_VALUE),
            }
        }
        all.info.store(b"");
        all.error.store(b"");
        Ok(all)
    }

    /// Options that were read before, without log buffers.
    pub(crate) fn scalar(scalars: Vec<(u32, u32)>) -> Options {
        Options {
            scalars,
            info: NO_LOG,
            error: NO_LOG,
        }
    }

    /// Number of bytes of the info log to request from the host.
    pub(crate) fn info_len(&self) -> u32 {
        self.info.len()
    }

    /// Number of bytes of the error log to request from the host: the size of the program's buffer,
    /// and at least the bytes that the library needs for a message.
    pub(crate) fn error_len(&self) -> u32 {
        self.error.len().max(OWN_LOG)
    }

    /// Handles the end of a load or a link. `logs` returns the info log and the error log of a
    /// reply.
    pub(crate) fn ended<R>(
        &self,
        answer: &Cu<(CuResult, Option<R>)>,
        logs: impl FnOnce(&R) -> (&[u8], &[u8]),
    ) {
        match answer {
            Ok((status, reply)) => {
                let (info, error) = reply.as_ref().map(logs).unwrap_or_default();
                self.told(*status, info, error);
            }
            Err(code) => self.failed(*code),
        }
    }

    /// Handles a load or a link that failed without logs from the host.
    pub(crate) fn failed(&self, code: CuResult) {
        self.told(code, b"", b"");
    }

    /// Writes the logs to the caller's buffers. Keeps the reason of a failure for the line on
    /// standard error.
    pub(crate) fn told(&self, status: CuResult, info: &[u8], error: &[u8]) {
        let error = match error.iter().any(u8::is_ascii_graphic) {
            true => error,
            false => meaning(status).as_bytes(),
        };
        self.info.store(info);
        self.error.store(error);
        match status.is_ok() {
            true => refusal::forget(),
            false => refusal::keep(status, error),
        }
    }
}

/// The fault in an image and the way out, for a result code without an error log.
fn meaning(status: CuResult) -> &'static str {
    match status {
        CuResult::INVALID_IMAGE => {
            "the image is empty, damaged, or neither PTX nor a cubin nor a fatbin"
        }
        CuResult::NO_BINARY_FOR_GPU => {
            "the image has no code for this GPU; compile it with PTX for the GPU's compute capability or an older \
             one (-gencode arch=compute_80,code=compute_80)"
        }
        CuResult::UNSUPPORTED_PTX_VERSION => {
            "the image's PTX is newer than the host's driver; compile it with a toolkit that is not newer, or have \
             the host's driver updated"
        }
        CuResult::INVALID_PTX => "the host's driver does not compile the image's PTX",
        _ => "",
    }
}

impl Log {
    fn len(&self) -> u32 {
        if self.buffer.is_null() {
            0
        } else {
            u32::try_from(self.size).unwrap_or(u32::MAX).min(MAX_LOG)
        }
    }

    fn store(&self, text: &[u8]) {
        let text = text.strip_suffix(b"\0").unwrap_or(text);
        let mut filled = 0;
        if self.len() > 0 {
            filled = text.len().min(self.size - 1);
            let _ = self.buffer.set_text(self.size, text);
        }
        // SAFETY: the value of this option is a number, not an address that is dereferenced.
        self.filled
            .set_if_wanted(unsafe { Out::new(filled as *mut c_void) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_come_back_within_their_buffers() {
        let mut log = [0x55_u8; 8];
        let names = [
            option::INFO_LOG_BUFFER,
            option::INFO_LOG_BUFFER_SIZE_BYTES,
            0,
        ];
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            6 as *mut c_void,
            32 as *mut c_void,
        ];
        // SAFETY: arrays of three elements; a buffer of 8 bytes, of which 6 are announced.
        let (names, places) = unsafe {
            (
                In::new(names.as_ptr()),
                Out::new(values.as_mut_ptr().cast()),
            )
        };
        let options = Options::read(3, names, places).expect("valid");
        assert_eq!(options.scalars, [(0, 32)]);
        assert_eq!((options.info_len(), options.error_len()), (6, OWN_LOG));
        let answer = Ok((CuResult::SUCCESS, Some(())));
        options.ended(&answer, |()| (b"longer than that\0", b"x"));
        assert_eq!(&log, b"longe\0\x55\x55");
        assert_eq!(values[1] as usize, 5);
    }

    #[test]
    fn what_cannot_travel_is_refused() {
        let mut values = [std::ptr::null_mut::<c_void>()];
        for (name, code) in [(18, CuResult::NOT_SUPPORTED), (99, CuResult::INVALID_VALUE)] {
            // SAFETY: arrays of one element.
            let (names, places) = unsafe {
                (
                    In::new(&raw const name),
                    Out::new(values.as_mut_ptr().cast()),
                )
            };
            let result = Options::read(1, names, places);
            assert_eq!(result.err(), Some(code));
        }
        let result = Options::read(1, In::NULL, Out::NULL);
        assert_eq!(result.err(), Some(CuResult::INVALID_VALUE));
    }
}
