//! The driver: memory, contexts, streams, events, modules, and the device shared across processes.
