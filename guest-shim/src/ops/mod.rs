//! Operations on memory, streams and graphs with checked arguments: copies, fills, launches, writes
//! and waits of words, events, and the replay of graphs.

pub(crate) mod area;
pub(crate) mod boxes;
pub(crate) mod copy;
pub(crate) mod event;
pub(crate) mod fill;
pub(crate) mod launch;
pub(crate) mod replay;
pub(crate) mod word;
