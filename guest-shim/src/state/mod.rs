//! The state that the guest has without a request to the host.

pub(crate) mod advice;
pub(crate) mod arrays;
pub(crate) mod capture;
pub(crate) mod contexts;
pub(crate) mod current;
pub(crate) mod devices;
pub(crate) mod events;
pub(crate) mod graphs;
pub(crate) mod handles;
pub(crate) mod libraries;
pub(crate) mod links;
pub(crate) mod mapped;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod occupancy;
pub(crate) mod pinned;
pub(crate) mod pools;
pub(crate) mod reserve;
pub(crate) mod streams;
pub(crate) mod tensor_maps;
pub(crate) mod vmm;
pub(crate) mod words;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use vgpu_cuda_abi::coredump;
use vgpu_proto::cuda::GUEST_HANDLES;

use crate::lock;
use crate::session::Session;

/// The state of the library after cuInit has succeeded.
#[derive(Debug)]
pub(crate) struct Shim {
    /// The connection to the worker.
    pub(crate) session: &'static Session,
    /// The devices that the program sees.
    pub(crate) devices: devices::Devices,
    /// Contexts, and the primary context of each device.
    pub(crate) contexts: contexts::Contexts,
    /// Streams.
    pub(crate) streams: handles::Handles<streams::StreamInfo>,
    /// Events.
    pub(crate) events: handles::Handles<events::EventInfo>,
    /// Modules.
    pub(crate) modules: handles::Handles<modules::ModuleInfo>,
    /// Functions of modules.
    pub(crate) functions: handles::Handles<modules::FunctionInfo>,
    /// Libraries.
    pub(crate) libraries: handles::Handles<libraries::Library>,
    /// Kernels of libraries.
    pub(crate) kernels: handles::Handles<libraries::Kernel>,
    /// Tensor maps that the host has made.
    pub(crate) tensor_maps: tensor_maps::TensorMaps,
    /// Links in progress.
    pub(crate) links: handles::Handles<links::LinkState>,
    /// Graphs.
    pub(crate) graphs: handles::Handles<graphs::Graph>,
    /// Nodes of graphs.
    pub(crate) nodes: handles::Handles<graphs::Node>,
    /// Instantiated graphs.
    pub(crate) execs: handles::Handles<graphs::Exec>,
    /// User objects.
    pub(crate) objects: handles::Handles<graphs::NamedObject>,
    /// Condition values of graphs.
    pub(crate) conditions: graphs::conditional::Conditions,
    /// Memory of graphs.
    pub(crate) graph_memory: graphs::block::GraphMemory,
    /// Active captures.
    pub(crate) captures: capture::Captures,
    /// Device memory.
    pub(crate) memory: memory::DeviceMemory,
    /// Arrays, and levels of mipmapped arrays.
    pub(crate) arrays: handles::Handles<arrays::ArrayInfo>,
    /// Mipmapped arrays.
    pub(crate) mipmaps: handles::Handles<arrays::Mipmap>,
    /// Physical memory, which has no address.
    pub(crate) physicals: handles::Handles<vmm::Physical>,
    /// Settings of core dumps, by context (0: all contexts) and setting.
    pub(crate) coredump: coredump::Settings,
    /// Memory pools.
    pub(crate) memory_pools: handles::Handles<pools::Pool>,
    /// Pools of each device.
    pub(crate) pools: pools::Pools,
    /// Page-locked and managed memory.
    pub(crate) pinned: pinned::Pinned,
    /// Locked while a block is being mapped for kernels.
    pub(crate) mapping: Mutex<()>,
    /// Advice on managed memory.
    pub(crate) advice: advice::Advice,
    /// Images that the host had when it last answered.
    pub(crate) images: modules::KnownImages,
    next_handle: AtomicU64,
}

impl Shim {
    /// The state at the start of a session.
    pub(crate) fn new(session: &'static Session, devices: devices::Devices) -> Shim {
        Shim {
            session,
            contexts: contexts::Contexts::new(devices.count()),
            devices,
            streams: handles::Handles::new(),
            events: handles::Handles::new(),
            modules: handles::Handles::new(),
            functions: handles::Handles::new(),
            libraries: handles::Handles::new(),
            kernels: handles::Handles::new(),
            tensor_maps: tensor_maps::TensorMaps::default(),
            links: handles::Handles::new(),
            graphs: handles::Handles::new(),
            nodes: handles::Handles::new(),
            execs: handles::Handles::new(),
            objects: handles::Handles::new(),
            conditions: graphs::conditional::Conditions::default(),
            graph_memory: graphs::block::GraphMemory::default(),
            captures: capture::Captures::default(),
            memory: memory::DeviceMemory::default(),
            arrays: handles::Handles::new(),
            mipmaps: handles::Handles::new(),
            physicals: handles::Handles::new(),
            coredump: Default::default(),
            memory_pools: handles::Handles::new(),
            pools: pools::Pools::default(),
            pinned: pinned::Pinned::default(),
            mapping: std::sync::Mutex::default(),
            advice: advice::Advice::default(),
            images: modules::KnownImages::default(),
            next_handle: AtomicU64::new(GUEST_HANDLES.start),
        }
    }

    /// A new handle. 2^60 handles last longer than any process runs.
    pub(crate) fn mint(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Removes all objects of a destroyed context.
    pub(crate) fn purge(&self, ctx: u64) {
        self.contexts.remove(ctx);
        self.streams.retain(|s| s.ctx.handle.0 != ctx);
        self.events.retain(|e| e.ctx.0 != ctx);
        self.functions.retain(|f| f.ctx.0 != ctx);
        self.modules.retain(|m| m.ctx.0 != ctx);
        for library in self.libraries.all() {
            library.forget(ctx);
        }
        for kernel in self.kernels.all() {
            kernel.forget(ctx);
        }
        self.arrays.retain(|a| a.ctx.0 != ctx);
        self.mipmaps.retain(|m| m.ctx.0 != ctx);
        self.links.retain(|l| l.ctx.0 != ctx);
        for exec in self.execs.all() {
            // The worker has dropped the recordings with the context.
            lock(&exec.state).recorded.retain(|(c, _)| *c != ctx);
        }
        self.conditions.forget_context(ctx);
        self.graph_memory.forget_context(self, ctx);
        self.memory.remove_context(ctx);
        for block in self.pinned.take_managed(ctx) {
            // The error is ignored: if the session has ended, the caller's next call returns the
            // code.
            let _ = self.give_up(&block);
        }
    }
}
