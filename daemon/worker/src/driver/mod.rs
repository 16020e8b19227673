//! The host's CUDA driver, with the types of cudarc's `sys`. No other module calls the driver.
//!
//! Handles are owned values. A stream, an event, a module or a block of device memory is released
//! when its last owner drops it. Each of these values keeps its context alive, so a stale handle
//! cannot reach the driver. Each function states the conditions that Rust cannot check: addresses
//! must have been checked against the session's live allocations (see `session::objects::memory`),
//! and the host side of a copy must stay untouched until an event reports completion.
//!
//! Results are numbers instead of cudarc's enum, because a newer driver may return codes that the
//! enum lacks.

mod array;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod image;
mod library;
mod link;
mod load;
mod log;
mod module;
mod pinned;
mod raw;
mod shadow;
mod slots;
mod stdio;
mod tensor_map;
mod vmm;

pub use array::{Array, Side, copy_atoh, copy_box, copy_htoa};
pub use context::{Context, DeviceMemory};
pub use copy::{
    Rows, Word, copy_dtod, copy_dtoh, copy_htod, copy_rows_dtod, copy_rows_dtoh, copy_rows_htod,
    fill, fill_2d, wait_word, write_word,
};
pub use device::{Device, describe};
pub use event::{Event, Stream};
pub use graph::{Builder, Graph, GraphExec, Recorder, Section};
pub use image::MappedImage;
pub use link::{Input, link};
pub use load::{LoadError, examine, load};
pub use log::last_message;
pub use module::{Function, JitLogs, Launch, Module, OPTION_LIMIT, option_allowed};
pub use pinned::{Block, BlockPool};
pub use shadow::Shadow;
pub use slots::{Slot, Slots};
pub use stdio::{exit_now, flush_stdio};
pub use tensor_map::{encode_tensor_map, replace_tensor_address};
pub use vmm::{Mapping, Physical, Reservation, granularity};

use vgpu_proto::cuda::CuResult;

/// Result of a driver call.
pub type Result<T> = std::result::Result<T, CuResult>;
