//! JIT options of `cuModuleLoadDataEx`: scalars travel, logs come back, pointers to symbols do not.

use std::ffi::c_void;

use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::MAX_ARGS;

use crate::Cu;
use crate::log::refusal;

/// `CUjit_option` numbers.
mod option {
    pub(super) const WALL_TIME: u32 = 2;
    pub(super) const INFO_LOG_BUFFER: u32 = 3;
    pub(super) const INFO_LOG_BUFFER_SIZE_BYTES: u32 = 4;
    pub(super) const ERROR_LOG_BUFFER: u32 = 5;
    pub(super) const ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;
    pub(super) const GLOBAL_SYMBOL_NAMES: u32 = 17;
    pub(super) const GLOBAL_SYMBOL_COUNT: u32 = 19;
    pub(super) const REFERENCED_KERNEL_NAMES: u32 = 25;
    pub(super) const REFERENCED_VARIABLE_COUNT: u32 = 28;
    pub(super) const NUMBER: u32 = 36;
}

/// Most of a log that is asked of the host: both logs fit one reply.
const MAX_LOG: u32 = (MAX_ARGS / 2 - 1024) as u32;

/// What the library itself reads of an error log.
const OWN_LOG: u32 = 2048;

/// A log buffer of the caller.
#[derive(Debug, Clone, Copy)]
struct Log {
    buffer: *mut u8,
    size: usize,
    /// Where the number of bytes written goes: the size option's value.
    filled: *mut *mut c_void,
}

// SAFETY: the buffers are the program's, which promises to leave them alone while the call, or the link,
// that fills them goes on.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

const NO_LOG: Log = Log {
    buffer: std::ptr::null_mut(),
    size: 0,
    filled: std::ptr::null_mut(),
};

/// The options of one load.
#[derive(Debug)]
pub(crate) struct Options {
    /// (`CUjit_option`, value), as on the wire.
    pub(crate) scalars: Vec<(u32, u32)>,
    info: Log,
    error: Log,
}

impl Options {
    /// Reads the caller's arrays, and empties the log buffers that they name: a program finds a terminated text in them
    /// however the load or the link goes on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown option or missing arrays, CUDA_ERROR_NOT_SUPPORTED
    /// for an option that passes host symbols.
    ///
    /// # Safety
    /// `options` and `values` have `count` elements; a log buffer is as long as its size says.
    pub(crate) unsafe fn read(
        count: u32,
        options: *const u32,
        values: *mut *mut c_void,
    ) -> Cu<Options> {
        let mut all = Options {
            scalars: Vec::new(),
            info: NO_LOG,
            error: NO_LOG,
        };
        if count == 0 {
            return Ok(all);
        }
        if options.is_null() || values.is_null() || count > 2 * option::NUMBER {
            return Err(CuResult::INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: both arrays have `count` elements by this function's contract.
            let (name, place) = unsafe { (*options.add(i), values.add(i)) };
            // SAFETY: as above.
            let value = unsafe { *place };
            match name {
                option::INFO_LOG_BUFFER => all.info.buffer = value.cast(),
                option::ERROR_LOG_BUFFER => all.error.buffer = value.cast(),
                option::INFO_LOG_BUFFER_SIZE_BYTES => {
                    (all.info.size, all.info.filled) = (value as usize as u32 as usize, place);
                }
                option::ERROR_LOG_BUFFER_SIZE_BYTES => {
                    (all.error.size, all.error.filled) = (value as usize as u32 as usize, place);
                }
                // An output: milliseconds, as a float's bits. Not measured on this side.
                // SAFETY: the value's place is the caller's to have written.
                option::WALL_TIME => unsafe { place.write(std::ptr::null_mut()) },
                option::GLOBAL_SYMBOL_NAMES..=option::GLOBAL_SYMBOL_COUNT
                | option::REFERENCED_KERNEL_NAMES..=option::REFERENCED_VARIABLE_COUNT => {
                    return Err(CuResult::NOT_SUPPORTED);
                }
                _ if name < option::NUMBER => all.scalars.push((name, value as usize as u32)),
                _ => return Err(CuResult::INVALID_VALUE),
            }
        }
        all.info.store(b"");
        all.error.store(b"");
        Ok(all)
    }

    /// Options that have been read before, without logs.
    pub(crate) fn scalar(scalars: Vec<(u32, u32)>) -> Options {
        Options {
            scalars,
            info: NO_LOG,
            error: NO_LOG,
        }
    }

    /// Room for the info log.
    pub(crate) fn info_len(&self) -> u32 {
        self.info.len()
    }

    /// Bytes of the error log to ask for: the program's buffer, and at least what the library needs to say its first
    /// sentence.
    pub(crate) fn error_len(&self) -> u32 {
        self.error.len().max(OWN_LOG)
    }

    /// A load or a link has ended with `answer`, whose reply has these logs.
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

    /// A load or a link has failed, and nothing but a code is known.
    pub(crate) fn failed(&self, code: CuResult) {
        self.told(code, b"", b"");
    }

    /// The logs go into the caller's buffers, and why the load or link failed is kept to be said.
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

/// What is wrong with an image of which nothing but a code is told, and the way out.
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
            // SAFETY: the buffer has `size` bytes by the contract of `Options::read`; the text and
            // its NUL fit.
            unsafe {
                self.buffer.copy_from(text.as_ptr(), filled);
                self.buffer.add(filled).write(0);
            }
        }
        if !self.filled.is_null() {
            // SAFETY: an element of the caller's array, by the contract of `Options::read`.
            unsafe { self.filled.write(filled as *mut c_void) };
        }
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
        // SAFETY: arrays of three, a buffer of eight of which six are named.
        let options =
            unsafe { Options::read(3, names.as_ptr(), values.as_mut_ptr()) }.expect("valid");
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
            // SAFETY: arrays of one.
            let result = unsafe { Options::read(1, &name, values.as_mut_ptr()) };
            assert_eq!(result.err(), Some(code));
        }
        // SAFETY: null arrays are refused.
        let result = unsafe { Options::read(1, std::ptr::null(), std::ptr::null_mut()) };
        assert_eq!(result.err(), Some(CuResult::INVALID_VALUE));
    }
}
