//! The C functions, by theme. Each checks what it is given, calls into the rest of the library and
//! writes what comes back; see [`crate::ffi`]. Which of them exist is `build.rs`'s business to find
//! out: a line `fn cuName(` here is all it takes.

pub(crate) mod area;
pub(crate) mod array;
pub(crate) mod batch;
pub(crate) mod boxes;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod coredump;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod graph_attributes;
pub(crate) mod graph_events;
pub(crate) mod graph_exec;
pub(crate) mod graph_memory;
pub(crate) mod graph_nodes;
pub(crate) mod graph_params;
pub(crate) mod graph_run;
pub(crate) mod host;
pub(crate) mod init;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod logs;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod memset;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod profiler;
pub(crate) mod refused;
pub(crate) mod resource;
pub(crate) mod stream;
pub(crate) mod user_object;
pub(crate) mod vmm;
pub(crate) mod word;
