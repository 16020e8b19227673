//! Objects that are released to the driver when the work that may use them is complete.

use std::sync::Arc;

use vgpu_proto::call::Op;

use super::Objects;
use crate::driver::{
    Array, Context, DeviceMemory, Event, Function, Mapping, Module, Physical, Reservation, Shadow,
    Stream,
};

/// Objects to release to the driver, in the order of the fields.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Index of the ledger that the memory is charged to: the ordinal of the device, or the index
    /// of the ledger of pinned memory.
    pub device: usize,
    /// Device memory.
    pub memory: Vec<DeviceMemory>,
    /// Arrays; held only to be dropped.
    #[allow(dead_code)]
    pub arrays: Vec<Arc<Array>>,
    /// Mappings; released before their memory and their addresses.
    pub mappings: Vec<Mapping>,
    /// Memory without addresses (`cuMemCreate`).
    #[allow(dead_code)]
    pub physical: Vec<Arc<Physical>>,
    /// Copies of the guest program's memory.
    pub shadows: Vec<Shadow>,
    /// Reserved address ranges.
    #[allow(dead_code)]
    pub reservations: Vec<Arc<Reservation>>,
    /// Addresses of variables of the modules.
    pub variables: Vec<u64>,
    /// Functions, which keep their modules alive.
    pub functions: Vec<Arc<Function>>,
    /// Modules.
    pub modules: Vec<Arc<Module>>,
    /// Our handles of events that stay in the table until the work is complete.
    pub event_ids: Vec<u64>,
    /// Our handles of streams that stay in the table until the work is complete.
    pub stream_ids: Vec<u64>,
    /// Events.
    pub events: Vec<Arc<Event>>,
    /// Streams.
    pub streams: Vec<Arc<Stream>>,
    /// Contexts.
    pub contexts: Vec<Arc<Context>>,
}

/// Objects to release to the driver when the work that may use the objects is complete, and the
/// steps that follow the release.
#[derive(Debug)]
pub(crate) struct Release {
    /// The objects to release.
    pub garbage: Box<Garbage>,
    /// Bytes that the VM's ledger gets back.
    pub charge: u64,
    /// The request to answer after the release, if one waits: operation and number.
    pub reply: Option<(Op, u64)>,
}

impl Objects {
    /// Prepares a release of objects that are no longer valid for the guest, and counts it as in
    /// progress.
    pub(crate) fn leaving(
        &mut self,
        garbage: Garbage,
        charge: u64,
        reply: Option<(Op, u64)>,
    ) -> Release {
        self.allocs.freeing += 1;
        self.allocs.answered += usize::from(reply.is_none());
        Release {
            garbage: garbage.into(),
            charge,
            reply,
        }
    }

    /// Makes the addresses of this memory invalid for earlier requests, because the memory is about
    /// to be released.
    pub(crate) fn lose(&mut self, garbage: &Garbage) {
        let memory = garbage.memory.iter().map(DeviceMemory::address);
        let mappings = garbage.mappings.iter().map(Mapping::address);
        let shadows = garbage.shadows.iter().map(Shadow::address);
        let variables = garbage.variables.iter().copied();
        self.memory
            .lose(memory.chain(mappings).chain(shadows).chain(variables));
    }
}
