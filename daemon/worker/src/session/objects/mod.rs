//! The objects of a guest's calls: contexts, modules, memory, arrays, graphs.
//!
//! This module checks every handle and address of a request against the objects of the session. An
//! object that work in flight may still use is returned as a [`Release`], which `flow` performs
//! after that work.

mod allocs;
mod arrays;
mod bookings;
mod conditions;
mod contexts;
mod garbage;
mod graphs;
mod images;
mod links;
mod memory;
mod modules;
mod pool;
mod region;
mod rows;
mod shadows;
mod staging;
mod table;
mod vmm;
mod work;

use std::path::Path;

use vgpu_proto::handshake::DeviceInfo;
use vgpu_proto::worker::Start;

use self::allocs::Allocs;
pub(crate) use self::allocs::{Fault, Freeing};
use self::arrays::Arrays;
pub(crate) use self::contexts::ContextState;
use self::contexts::DeviceState;
pub(crate) use self::garbage::Release;
use self::graphs::Graphs;
pub(crate) use self::images::ImageError;
use self::images::Images;
use self::memory::Ledger;
pub(crate) use self::memory::Memory;
pub(crate) use self::modules::image_code;
use self::modules::{FunctionState, ModuleState};
pub(crate) use self::pool::{Done, Over, Pool};
pub(crate) use self::region::{FetchWork, Region};
use self::shadows::Shadows;
pub(crate) use self::staging::{Bulk, Staging};
pub(crate) use self::table::{Kind, Table};
use self::vmm::Vmm;
pub(crate) use self::work::{Work, run_work};
use crate::control::Vgpud;
use crate::driver::{Context, Device, Slots};

/// A device as found at the start: the device, its properties, its primary context.
pub type FoundDevice = (Device, DeviceInfo, std::sync::Arc<Context>);

/// The objects of a session.
pub(crate) struct Objects {
    devices: Vec<DeviceState>,
    pub contexts: Table<ContextState>,
    modules: Table<ModuleState>,
    functions: Table<FunctionState>,
    /// Results of links that the guest has not fetched yet.
    links: Table<Vec<u8>>,
    pub graphs: Graphs,
    pub memory: Memory,
    arrays: Arrays,
    vmm: Vmm,
    shadows: Shadows,
    /// Limits the mappings that the guest makes this process create.
    slots: Slots,
    /// One ledger per device, and at the end the ledger of pinned host memory.
    ledgers: Vec<Ledger>,
    /// Quota of the VM in bytes; `None`: no quota.
    quota: Option<u64>,
    pub allocs: Allocs,
    pub images: Images,
    pub staging: Staging,
    /// Threads for calls that may block.
    pub helpers: Pool,
}

impl Objects {
    /// The objects of a new session.
    ///
    /// # Errors
    /// A sentence, if there is no device.
    pub(crate) fn new(
        start: &Start,
        devices: Vec<FoundDevice>,
        vgpud: Vgpud,
        helpers: Pool,
    ) -> Result<Objects, String> {
        let first = devices.first().ok_or("the driver has no device")?;
        Ok(Objects {
            staging: Staging::new(&first.2),
            ledgers: Ledger::of_session(devices.len(), start.memory_quota),
            devices: devices.into_iter().map(DeviceState::new).collect(),
            contexts: Table::new(Kind::Context),
            modules: Table::new(Kind::Module),
            functions: Table::new(Kind::Function),
            links: Table::new(Kind::Link),
            graphs: Graphs::default(),
            memory: Memory::default(),
            arrays: Arrays::new(),
            vmm: Vmm::new(),
            shadows: Shadows::default(),
            slots: Slots::default(),
            quota: start.memory_quota,
            allocs: Allocs::default(),
            images: Images::new(Path::new(&start.image_dir), vgpud),
            helpers,
        })
    }
}
