//! What is given back to the driver when work is over, and what that frees.

use std::sync::Arc;

use vgpu_proto::call::Op;

use super::Objects;
use crate::driver::{
    Array, Context, DeviceMemory, Event, Function, Mapping, Module, Physical, Reservation, Shadow,
    Stream,
};

/// What is to be given back to the driver, in this order.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// The place of the ledger that its memory is of: the ordinal of its device, or the pinned
    /// one's.
    pub device: usize,
    /// Device memory.
    pub memory: Vec<DeviceMemory>,
    /// Arrays; held only to be dropped.
    #[allow(dead_code)]
    pub arrays: Vec<Arc<Array>>,
    /// Mappings; before what they are of and where.
    pub mappings: Vec<Mapping>,
    /// Memory without addresses.
    #[allow(dead_code)]
    pub physical: Vec<Arc<Physical>>,
    /// Copies of the program's memory.
    pub shadows: Vec<Shadow>,
    /// Addresses.
    #[allow(dead_code)]
    pub reservations: Vec<Arc<Reservation>>,
    /// Addresses of variables of the modules.
    pub variables: Vec<u64>,
    /// Functions; they keep their modules.
    pub functions: Vec<Arc<Function>>,
    /// Modules.
    pub modules: Vec<Arc<Module>>,
    /// Events by our own handle, still in the table until the work is over.
    pub event_ids: Vec<u64>,
    /// Streams likewise.
    pub stream_ids: Vec<u64>,
    /// Events.
    pub events: Vec<Arc<Event>>,
    /// Streams.
    pub streams: Vec<Arc<Stream>>,
    /// Contexts.
    pub contexts: Vec<Arc<Context>>,
}

/// Things that are given back to the driver when the work that may use them is over.
#[derive(Debug)]
pub(crate) struct Release {
    /// The things.
    pub garbage: Box<Garbage>,
    /// Bytes that the VM's ledger gets back.
    pub charge: u64,
    /// The request that is answered then, if one waits: operation and number.
    pub reply: Option<(Op, u64)>,
}

impl Objects {
    /// Counts things that have been taken from the guest as being given back.
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

    /// The memory is about to be given back: earlier requests may no longer use its addresses.
    pub(crate) fn lose(&mut self, garbage: &Garbage) {
        let memory = garbage.memory.iter().map(DeviceMemory::address);
        let mappings = garbage.mappings.iter().map(Mapping::address);
        let shadows = garbage.shadows.iter().map(Shadow::address);
        let variables = garbage.variables.iter().copied();
        self.memory
            .lose(memory.chain(mappings).chain(shadows).chain(variables));
    }
}
